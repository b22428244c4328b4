"""Models with packs in folders of their own, and changes to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper

from tests.pack.packs import (
    embedded,
    external,
    layers,
    packed,
)
from tests.weights.models import settle


class Reads:
    """Counts the bytes that are hashed."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def taken(self) -> int:
        """Those since it was asked last."""
        found, self.size_bytes = self.size_bytes, 0
        return found


def several(tmp: Path, made: onnx.ModelProto | None = None) -> str:
    """The model with two files of weights, one of them in a folder below; the rest is inside."""
    made = made or layers()
    (tmp / "below").mkdir(exist_ok=True)
    for name, location in (("w", "w.data"), ("v", "below/v.data"), ("scale", "below/v.data")):
        tensor = next(t for t in made.graph.initializer if t.name == name)
        data = tmp / location
        offset = data.stat().st_size if data.exists() and name == "scale" else 0
        with data.open("ab" if offset else "wb") as file:
            file.write(tensor.raw_data)
        external_data_helper.set_external_data(tensor, location, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return embedded(tmp, made)


PLACES = [embedded, external, several]


def model_in(folder: Path, place: Callable[..., str]) -> str:
    """A model in a folder of its own, old enough to be known again, with its pack."""
    folder.mkdir()
    path = place(folder)
    settle()
    packed(path)
    settle()
    return path


def files_of(path: str) -> list[Path]:
    """The files of a model, but not its pack."""
    return [p for p in Path(path).parent.rglob("*") if p.is_file() and p.suffix != ".pack"]


def find(path: str, name: str) -> tuple[Path, int]:
    """The file of a weight, and its offset."""
    raw = next(t.raw_data for t in layers().graph.initializer if t.name == name)
    for file in files_of(path):
        at = file.read_bytes().find(raw)
        if at >= 0:
            return file, at
    raise AssertionError(name)


def retrain(path: str, name: str = "w", at: int = 4) -> None:
    """Changes an element in place, outside of samples; size and time of writing stay."""
    file, start = find(path, name)
    before = file.stat()
    with file.open("r+b") as data:
        data.seek(start + at)
        old = np.frombuffer(data.read(4), np.float32)
        data.seek(start + at)
        data.write((old + np.float32(100)).tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    settle()
