"""Accelerate with a wrapped model: trains, evaluates, saves and resumes.

python tools/training/use_accelerate.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from sentences import Sentences, classifier, compare
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

from sardonyx.train import report, wrap

Losses = tuple[list[float], list[float]]


def trained(folder: Path, is_wrapped: bool, resume: bool = False) -> Losses:
    """Losses of training and of evaluation; the state after the first of two epochs is saved."""
    torch._dynamo.reset()
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = classifier()
    if is_wrapped:
        wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    set_seed(1)
    model, optimizer, loader, held_out, schedule = accelerator.prepare(
        model, optimizer,
        DataLoader(Sentences(48, 1), 8, shuffle=True), DataLoader(Sentences(20, 2), 8),
        get_linear_schedule_with_warmup(optimizer, 2, 12),
    )  # fmt: skip
    losses: list[float] = []
    if resume:
        accelerator.load_state(str(folder))
    for epoch in range(1 if resume else 0, 2):
        set_seed(10 + epoch)
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(str(folder))
    model.eval()
    with torch.no_grad():
        evaluated = [accelerator.gather(model(**batch).loss).mean().item() for batch in held_out]
    if is_wrapped:
        found = report(accelerator.unwrap_model(model))
        assert found.graphs
        assert not found.fallbacks, str(found)
    return losses, evaluated


def main() -> None:
    """Compare with the plain model."""
    with tempfile.TemporaryDirectory() as name:
        plain, wrapped = Path(name, "plain"), Path(name, "wrapped")
        expected, found = trained(plain, False), trained(wrapped, True)
        compare("Accelerate, training", found[0], expected[0])
        compare("Accelerate, evaluation", found[1], expected[1])
        resumed = trained(wrapped, True, resume=True)
        compare("Accelerate, resumed", resumed[0], expected[0][len(expected[0]) // 2 :])
        compare("Accelerate, evaluation of the resumed", resumed[1], expected[1])


if __name__ == "__main__":
    main()
