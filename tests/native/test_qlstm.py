"""The recurrent part of int8 LSTMs, on every ISA and for any split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.ops import lookup
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.kernels import run_splits

# Where a state is between two steps of the quantizer, sums that differ in their last bit may
# fall on both sides, and a step of 1/255 of the range goes through the weights.
STEP = 0.02


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def whole(dtype: Any, *shape: int) -> Any:
    low = 0 if dtype == np.uint8 else -128
    return np.random.default_rng(sum(shape)).integers(low, low + 256, shape).astype(dtype)


class Layer:
    """A node whose recurrent weights are constant, and what is fed to it."""

    def __init__(  # noqa: PLR0913 - sizes and kinds, each by name
        self,
        hidden: int,
        batch: int,
        *,
        length: int = 4,
        dtype: Any = np.int8,
        per_column: bool = False,
        has_zero: bool = False,
        more: tuple[Any, ...] = (),
        **attrs: Any,
    ) -> None:
        n = 2 if attrs.get("direction") == b"bidirectional" else 1
        columns = (n, 4 * hidden) if per_column else (n,)
        scale = np.abs(random(*columns)) * np.float32(0.004 / np.sqrt(hidden)) + np.float32(1e-4)
        zero = whole(dtype, *columns) if has_zero else None
        if dtype == np.uint8 and zero is None:
            zero = np.full(columns, 128, np.uint8)
        arrays = [random(length, batch, n * 4 * hidden), whole(dtype, n, hidden, 4 * hidden), scale]
        self.fed: dict[Value, Any] = {}
        self.arrays = [*arrays, zero, *more]
        inputs = [self._value(a, i == 1) for i, a in enumerate(self.arrays)]
        op = lookup("sardonyx", "QLSTM")
        assert op is not None
        graph = Graph()
        self.node: Node = graph.add(op, inputs, {**op.defaults, **attrs}, 3)
        infer_node(graph.scope, self.node)

    def _value(self, array: Any, is_const: bool) -> Value | None:
        if array is None:
            return None
        value = constant(ArrayConst(np.ascontiguousarray(array)))
        if not is_const:
            value.fact = value.tensor.without_contents()
            self.fed[value] = array
        return value

    def run(self, isa: str) -> list[Any]:
        call = lowered(self.node)
        assert isinstance(call, Call)
        return run_splits(call, self.node, self.fed, isa)

    def check(self) -> None:
        expected = self.node.op.run(self.arrays, self.node.attrs)
        for isa in native.isas:
            for a, b in zip(self.run(isa), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=STEP)


@pytest.mark.parametrize("hidden", [1, 7, 31, 32, 33, 64])
def test_sizes(hidden: int) -> None:
    for batch in (1, 2, 5, 13):
        Layer(hidden, batch).check()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("has_zero", [False, True])
def test_weights(dtype: Any, per_column: bool, has_zero: bool) -> None:
    kind = {"dtype": dtype, "per_column": per_column, "has_zero": has_zero}
    Layer(9, 3, direction=b"bidirectional", **kind).check()


@pytest.mark.parametrize("direction", [b"forward", b"reverse", b"bidirectional"])
@pytest.mark.parametrize(("hidden", "batch"), [(9, 6), (256, 14)])
def test_lengths(direction: bytes, hidden: int, batch: int) -> None:
    """By itself, and with units that threads share."""
    n = 2 if direction == b"bidirectional" else 1
    lens = np.resize([0, 4, 3, 1, 4, 2], batch).astype(np.int32)
    states = random(n, batch, hidden), random(n, batch, hidden) * 2
    Layer(hidden, batch, direction=direction, more=(lens, *states)).check()


def test_variants() -> None:
    Layer(10, 2, more=(None, None, None, random(1, 30)), clip=0.5).check()
    Layer(10, 2, input_forget=1).check()
    Layer(10, 2, activations=(b"HardSigmoid", b"Softsign", b"Relu")).check()
    Layer(10, 2, length=0).check()
    Layer(10, 0).check()
    Layer(256, 13, length=1).check()


def test_sequence_length_out_of_range() -> None:
    layer = Layer(4, 2, more=(np.array([1, 5], np.int32),))
    with pytest.raises(RuntimeError, match=r"sequence_lens holds 5, outside \[0, 4\]"):
        layer.run("")
