"""Hugging Face Trainer with a wrapped model: trains, evaluates, saves and resumes.

python tools/training/use_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sentences import Sentences, classifier, compare
from transformers import Trainer, TrainingArguments

from sardonyx.train import report, wrap


def trained(
    folder: Path, is_wrapped: bool, resume: bool = False
) -> tuple[list[float], list[float]]:
    """Losses of training and of evaluation; the checkpoint of half of the steps may be resumed."""
    torch._dynamo.reset()
    model = classifier()
    if is_wrapped:
        wrap(model)
    arguments = TrainingArguments(
        str(folder), max_steps=8, save_steps=4, eval_strategy="steps", eval_steps=4,
        logging_steps=1, logging_first_step=True, per_device_train_batch_size=8,
        gradient_accumulation_steps=2, max_grad_norm=0.5, learning_rate=1e-3, warmup_steps=2,
        report_to=[], use_cpu=True, seed=0, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Sentences(64, 1), eval_dataset=Sentences(20, 2)
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4") if resume else None)
    if is_wrapped:
        found = report(model)
        assert found.graphs
        assert not found.fallbacks, str(found)
        predictions = trainer.predict(Sentences(20, 2)).predictions
        assert predictions.shape == (20, 2)
        trainer.save_model(str(folder / "final"))
        loaded = type(model).from_pretrained(folder / "final")
        saved, kept = loaded.state_dict(), model.state_dict()
        assert all(torch.equal(saved[name], kept[name]) for name in kept)
    history = trainer.state.log_history
    return (
        [row["loss"] for row in history if "loss" in row],
        [row["eval_loss"] for row in history if "eval_loss" in row],
    )


def main() -> None:
    """Compare with the plain model."""
    with tempfile.TemporaryDirectory() as name:
        plain, wrapped = Path(name, "plain"), Path(name, "wrapped")
        expected, found = trained(plain, False), trained(wrapped, True)
        compare("Trainer, training", found[0], expected[0])
        compare("Trainer, evaluation", found[1], expected[1])
        resumed = trained(wrapped, True, resume=True)
        compare("Trainer, resumed", resumed[0], expected[0])
        from_plain = trained(plain, True, resume=True)
        compare("Trainer, resumed from the plain model", from_plain[0], expected[0])


if __name__ == "__main__":
    main()
