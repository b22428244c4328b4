"""Lightning with a wrapped module: trains, evaluates, saves and resumes.

python tools/training/use_lightning.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sentences import Sentences, classifier, compare
from torch.utils.data import DataLoader

from sardonyx.train import report, wrap


class Classifier(lightning.LightningModule):
    """BERT, with the losses of all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.network = classifier()
        self.losses: list[float] = []
        self.evaluated: list[float] = []

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.network(**batch).loss
        return loss

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        torch.manual_seed(100 * self.current_epoch + index)  # as in a run that is resumed
        loss: torch.Tensor = self(**batch)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.evaluated.append(self(**batch).item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def trained(folder: Path, is_wrapped: bool, resume: bool = False) -> Classifier:
    """A module after two epochs; that of the first may be resumed."""
    torch._dynamo.reset()
    module = Classifier()
    if is_wrapped:
        wrap(module)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, gradient_clip_val=0.5,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
    )  # fmt: skip
    loaders: Any = DataLoader(Sentences(48, 1), 8), DataLoader(Sentences(20, 2), 8)
    start = folder / "epoch=0.ckpt" if resume else None
    trainer.fit(module, *loaders, ckpt_path=start, weights_only=False)
    if is_wrapped:
        found = report(module)
        assert found.graphs
        assert not found.fallbacks, str(found)
    return module


def main() -> None:
    """Compare with the plain module."""
    with tempfile.TemporaryDirectory() as name:
        plain, wrapped = Path(name, "plain"), Path(name, "wrapped")
        expected, found = trained(plain, False), trained(wrapped, True)
        compare("Lightning, training", found.losses, expected.losses)
        compare("Lightning, evaluation", found.evaluated, expected.evaluated)
        for what, folder in (("resumed", wrapped), ("resumed from the plain module", plain)):
            resumed = trained(folder, True, resume=True)
            half = len(expected.losses) // 2
            compare(f"Lightning, {what}", resumed.losses, expected.losses[half:])


if __name__ == "__main__":
    main()
