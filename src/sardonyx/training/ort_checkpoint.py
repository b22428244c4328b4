"""Checkpoints of onnxruntime-training: FlatBuffers of the schema ort_training_checkpoint.fbs.

The enumerations below number the fields of its tables, in the order of the schema.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

import numpy as np

from sardonyx.base.flatbuffer import FlatBuffer, Table
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.graph.dtype import STRING
from sardonyx.load.source import map_file
from sardonyx.load.tensor import dtype_of, shape_of
from sardonyx.training.state import DEFAULT_RATE, OptimizerState, ParameterState, TrainingState

IDENTIFIER: Final = b"ODTC"
VERSIONS: Final = (1, 2)  # 2 added nominal checkpoints


class _Checkpoint(IntEnum):
    VERSION, MODULE_STATE, OPTIMIZER_GROUPS, PROPERTIES = range(4)


class _Module(IntEnum):
    TRAINABLE, FROZEN, IS_NOMINAL, HAS_EXTERNAL_DATA = range(4)


class _Tensor(IntEnum):
    NAME, DOC, DIMS, TYPE, RAW, STRINGS, EXTERNAL_OFFSET = range(7)


class _Group(IntEnum):
    NAME, STEP, INITIAL_RATE, STATES = range(4)


class _Moments(IntEnum):
    PARAMETER, TENSORS = range(2)


class _Properties(IntEnum):
    INTS, FLOATS, STRINGS = range(3)


def is_ort_checkpoint(data: memoryview) -> bool:
    """Return whether bytes are a checkpoint of onnxruntime-training."""
    return bytes(data[4:8]) == IDENTIFIER


def read_ort_checkpoint(data: memoryview, path: str) -> TrainingState:
    """Return the state that a checkpoint stores; arrays are copies."""
    return _Reader(FlatBuffer(data, path, "checkpoint"), path).state()


class _Reader:
    """Converts the tables of one file."""

    def __init__(self, buffer: FlatBuffer, path: str) -> None:
        self._buffer = buffer
        self._path = path
        self._external: memoryview | None = None

    def state(self) -> TrainingState:
        root = self._buffer.root(IDENTIFIER)
        if (version := root.int32(_Checkpoint.VERSION)) not in VERSIONS:
            raise NotImplemented(
                f"{self._path} has version {version} of onnxruntime's checkpoint format, "
                f"and {VERSIONS[-1]} is the newest known"
            )
        state = TrainingState()
        module = root.table(_Checkpoint.MODULE_STATE)
        if module is not None:
            self._read_module(module, state)
        for group in root.tables(_Checkpoint.OPTIMIZER_GROUPS):
            self._read_group(group, state)
        bag = root.table(_Checkpoint.PROPERTIES)
        if bag is not None:
            self._read_properties(bag, state)
        return state

    def _read_module(self, module: Table, state: TrainingState) -> None:
        state.is_nominal = module.bool(_Module.IS_NOMINAL)
        if module.bool(_Module.HAS_EXTERNAL_DATA):
            path = self._path + ".data"
            self._external = map_file(path, path).data
        for slot in (_Module.TRAINABLE, _Module.FROZEN):
            for tensor in module.tables(slot):
                name = self._name(tensor, _Tensor.NAME, "a parameter")
                if name in state.parameters:
                    raise self._buffer.error(f"there are two parameters {name}")
                data = None if state.is_nominal else self._array(tensor, f"the parameter {name}")
                state.add(ParameterState(name, slot == _Module.TRAINABLE, data))

    def _read_group(self, table: Table, state: TrainingState) -> None:
        name = self._name(table, _Group.NAME, "an optimizer group")
        if name in state.groups:
            raise self._buffer.error(f"there are two optimizer groups {name}")
        # The current rate is not stored: onnxruntime resumes with its default.
        group = OptimizerState(
            table.int64(_Group.STEP), table.float32(_Group.INITIAL_RATE), DEFAULT_RATE
        )
        for entry in table.tables(_Group.STATES):
            parameter = self._name(entry, _Moments.PARAMETER, "the state of a parameter")
            moments = group.moments.setdefault(parameter, {})
            for tensor in entry.tables(_Moments.TENSORS):
                moment = self._name(tensor, _Tensor.NAME, f"a moment of {parameter}")
                if moment in moments:
                    raise self._buffer.error(f"{parameter} has two moments {moment}")
                moments[moment] = self._array(tensor, f"{moment} of {parameter}")
        state.groups[name] = group

    def _read_properties(self, bag: Table, state: TrainingState) -> None:
        name, value = 0, 1  # fields of IntProperty, FloatProperty and StringProperty
        for entry in bag.tables(_Properties.INTS):
            state.set_property(self._name(entry, name, "a property"), entry.int64(value))
        for entry in bag.tables(_Properties.FLOATS):
            state.set_property(self._name(entry, name, "a property"), entry.float32(value))
        for entry in bag.tables(_Properties.STRINGS):
            state.set_property(self._name(entry, name, "a property"), entry.text(value))

    def _name(self, table: Table, index: int, what: str) -> str:
        name = table.text(index)
        if not name:
            raise self._buffer.error(f"{what} has no name")
        return name

    def _array(self, tensor: Table, what: str) -> Array:
        """Return a copy of a tensor."""
        try:
            dtype, shape = (
                dtype_of(tensor.int32(_Tensor.TYPE)),
                shape_of(tensor.int64s(_Tensor.DIMS)),
            )
        except InvalidGraph as error:
            raise self._buffer.error(f"{what}: {error.what}") from None
        if dtype is STRING or dtype.bits < 8:
            raise NotImplemented(f"{what} in {self._path} is a tensor of {dtype.ort_name}")
        n_bytes = math.prod(shape) * dtype.itemsize
        offset = tensor.int64(_Tensor.EXTERNAL_OFFSET, -1)
        raw = tensor.raw(_Tensor.RAW) if offset < 0 else self._outside(offset, n_bytes, what)
        if raw.nbytes != n_bytes:
            raise self._buffer.error(f"{what} is {dtype}{list(shape)} and has {raw.nbytes} bytes")
        return np.frombuffer(bytearray(raw), dtype.np).reshape(shape)

    def _outside(self, offset: int, n_bytes: int, what: str) -> memoryview:
        """Return bytes of the data file beside the checkpoint."""
        if self._external is None:
            raise self._buffer.error(f"{what} is in a data file, and the checkpoint has none")
        if offset + n_bytes > self._external.nbytes:
            raise self._buffer.error(
                f"{what} is at bytes {offset} to {offset + n_bytes} of {self._path}.data, "
                f"which has {self._external.nbytes}"
            )
        return self._external[offset : offset + n_bytes]
