"""Writes checkpoints that onnxruntime-training reads, with the tables of `ort_checkpoint`."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.flatbuffer_writer import (
    MAX_BYTES,
    Append,
    Field,
    Scalar,
    file,
    table,
    tables,
    text,
    vector,
)
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import F32, by_numpy
from sardonyx.training.ort_checkpoint import IDENTIFIER, VERSIONS
from sardonyx.training.state import OptimizerState, TrainingState

MAX_TENSOR_BYTES: Final = MAX_BYTES - (1 << 20)  # the rest is for names


def ort_checkpoint(state: TrainingState, include_optimizer_state: bool = False) -> bytearray:
    """Return a state as the bytes of a checkpoint of onnxruntime-training.

    The format has no field for the current learning rate: onnxruntime resumes with its default.
    """
    groups = state.groups if include_optimizer_state else {}
    arrays = [p.data for p in state.parameters.values() if p.data is not None]
    for group in groups.values():
        arrays += [array for moments in group.moments.values() for array in moments.values()]
    n_bytes = sum(array.nbytes for array in arrays)
    if n_bytes > MAX_TENSOR_BYTES:
        raise InvalidArgument(
            f"the tensors have {n_bytes} bytes, and in a checkpoint of onnxruntime at most "
            f"{MAX_TENSOR_BYTES}",
            hint="CheckpointState.save_checkpoint writes files of any size",
        )
    root = table(
        [
            Scalar("<i", VERSIONS[-1]),
            _module(state),
            tables([_group(name, group) for name, group in groups.items()]),
            _properties(state),
        ]
    )
    return file(root, IDENTIFIER)


def _module(state: TrainingState) -> Append:
    parameters = state.parameters.values()
    trainable, frozen = (
        tables([_tensor(p.name, p.data) for p in parameters if p.requires_grad is kind])
        for kind in (True, False)
    )
    return table([trainable, frozen, Scalar("<B", state.is_nominal)])


def _tensor(name: str, data: Array | None) -> Append:
    """A tensor; that of a nominal checkpoint has neither dims nor data."""
    dtype, shape, raw = F32, (), b""
    if data is not None:
        found = by_numpy(data.dtype)
        if found is None:
            raise InvalidArgument(f"the tensor {name} has the type {data.dtype}")
        dtype, shape, raw = found, data.shape, data.tobytes()
    dims = vector(np.array(shape, "<i8").tobytes(), len(shape), 8)
    return table([text(name), None, dims, Scalar("<i", dtype.onnx), vector(raw, len(raw), 8)])


def _group(name: str, group: OptimizerState) -> Append:
    states = [
        table([text(parameter), tables([_tensor(m, data) for m, data in sorted(moments.items())])])
        for parameter, moments in group.moments.items()
    ]
    rate = Scalar("<f", group.initial_rate)
    return table([text(name), Scalar("<q", group.step), rate, tables(states)])


def _properties(state: TrainingState) -> Append:
    kinds: dict[type, list[Append]] = {int: [], float: [], str: []}
    for name, value in state.properties.items():
        match value:
            case int():
                stored: Field = Scalar("<q", value)
            case float():
                stored = Scalar("<f", value)
            case str():
                stored = text(value)
        kinds[type(value)].append(table([text(name), stored]))
    return table([tables(entries) for entries in kinds.values()])
