"""Save: a graph as an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.load.model import Model


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """Where to write, and which weights go into a file of their own."""

    path: str
    data_file: str | None = None  # external data, beside the model; None: weights stay in the model
    min_bytes: int = 1024  # smaller tensors stay in the model even so


def save(model: Model, options: SaveOptions) -> None:
    """Writes the model with its graph as it is now."""
