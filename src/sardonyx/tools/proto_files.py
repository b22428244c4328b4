"""Writes ModelProtos to files, atomically; the caller's object stays as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import onnx

from sardonyx.base.atomic_file import writing
from sardonyx.errors import InvalidArgument
from sardonyx.save.tensor import ALIGN, LARGE, PAGE


def save_proto(
    model: onnx.ModelProto,
    path: str | os.PathLike[str],
    data_file: str | None = None,
    min_bytes: int = 1024,
) -> None:
    """Write a model, with tensors from `min_bytes` on in `data_file` beside it, if that is given.

    The data file is complete before the model appears.
    """
    target = os.path.abspath(os.fspath(path))
    if data_file is None:
        data = model.SerializeToString()
        with writing(target) as file:
            file.write(data)
        return
    data_path = os.path.join(os.path.dirname(target), data_file)
    if os.path.basename(data_file) != data_file or data_path == target:
        raise InvalidArgument(f"{data_file!r} is not the name of another file beside {target}")
    if any(_location(tensor) == data_file for tensor in model.graph.initializer):
        raise InvalidArgument(
            f"{data_file} has weights of the model, which are not loaded and would be lost",
            hint="load the model with its external data, or give another name",
        )
    with _without_data(model, data_file, min_bytes) as tensors:
        light = model.SerializeToString()
        with writing(target) as file, writing(data_path) as data_out:
            end = 0
            for offset, raw in tensors:
                data_out.write(bytes(offset - end))
                data_out.write(raw)
                end = offset + len(raw)
            file.write(light)


def _location(tensor: onnx.TensorProto) -> str | None:
    """Return the file that a tensor is in; None for one in memory."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    named = (entry.value for entry in tensor.external_data if entry.key == "location")
    return next(map(os.path.normpath, named), None)


@contextlib.contextmanager
def _without_data(
    model: onnx.ModelProto, data_file: str, min_bytes: int
) -> Iterator[list[tuple[int, bytes]]]:
    """Let initializers refer to a file; yield the offsets and bytes that it must have."""
    taken: list[tuple[onnx.TensorProto, bytes]] = []
    tensors: list[tuple[int, bytes]] = []
    end = 0
    try:
        for tensor in model.graph.initializer:
            raw = tensor.raw_data
            if len(raw) < max(min_bytes, 1):
                continue
            alignment = PAGE if len(raw) >= LARGE else ALIGN
            offset = -(-end // alignment) * alignment
            end = offset + len(raw)
            tensors.append((offset, raw))
            taken.append((tensor, raw))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": data_file, "offset": offset, "length": len(raw)}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
        yield tensors
    finally:
        for tensor, raw in taken:
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = raw
