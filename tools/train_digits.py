"""Trains the built-in model and writes it, with a few held-out images, to src/sardonyx/models.

Needs torch, onnx and scikit-learn (for its 8x8 digits); takes about ten seconds on one core:

    python tools/train_digits.py

The split and the training are seeded: the same versions of these packages give the same model.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 7
EPOCHS = 60
BATCH = 64
NEEDED = 0.97  # share of held-out images that must come out right
HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "src" / "sardonyx" / "models"


class Digits(nn.Module):
    """Two convolutions and one fully connected layer; pixels are 0 to 16."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Linear(32 * 4 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classes(self.features(image / 16).flatten(1))
        return scores if self.training else scores.softmax(1)


def train(images: torch.Tensor, labels: torch.Tensor) -> Digits:
    """A model trained on these images, in evaluation mode."""
    model = Digits()
    steps = EPOCHS * -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(
                model(images[chosen]), labels[chosen], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def export(model: Digits, path: pathlib.Path) -> None:
    """Writes the model with its normalizations unfolded: folding them is the runtime's work."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        input_names=["image"],
        output_names=["probabilities"],
        dynamic_axes={"image": {0: "batch"}, "probabilities": {0: "batch"}},
        opset_version=17,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamo=False,
    )
    proto = onnx.load(path)
    proto.doc_string = "Handwritten digits, 8x8 pixels of 0 to 16"
    proto.graph.name = "digits"
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def main() -> None:
    """Trains, checks, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=MODELS)
    folder = parser.parse_args().folder
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32).reshape(-1, 1, 8, 8)
    seen, held_out, seen_labels, held_labels = train_test_split(
        images, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    model = train(torch.from_numpy(seen), torch.from_numpy(seen_labels))
    with torch.no_grad():
        answers = model(torch.from_numpy(held_out)).argmax(1).numpy()
    accuracy = float((answers == held_labels).mean())
    print(f"{accuracy:.2%} of {len(held_labels)} held-out images are right")
    if accuracy < NEEDED:
        raise SystemExit(f"that is less than {NEEDED:.0%}: nothing was written")

    folder.mkdir(parents=True, exist_ok=True)
    export(model, folder / "digits.onnx")
    # The first held-out image of each digit, whatever the model makes of it.
    chosen = [int(np.flatnonzero(held_labels == digit)[0]) for digit in range(10)]
    np.savez_compressed(
        folder / "digits.npz", image=held_out[chosen], label=held_labels[chosen].astype(np.int64)
    )
    for name in ("digits.onnx", "digits.npz"):
        print(f"{folder / name}: {(folder / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
