"""Attention in training: both kernels, on every ISA and in any split, against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.graph.op import GRADIENT
from sardonyx.load.model import Declared, Model
from sardonyx.ops import lookup
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from sardonyx.session import InferenceSession
from tests.kernels import run_splits

RNG = np.random.default_rng(5)

# batch, heads, heads of keys, rows, keys, depth, width
SIZES = (
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 7, 5, 8, 8),
    (1, 2, 2, 17, 33, 16, 17),
    (1, 2, 2, 129, 129, 64, 64),
    (1, 1, 1, 197, 197, 64, 64),
    (1, 6, 2, 31, 70, 32, 24),
    (1, 4, 1, 50, 600, 40, 33),
    (1, 1, 1, 5, 300, 300, 280),
    (1, 9, 9, 60, 513, 8, 8),
    (1, 2, 1, 5, 0, 4, 4),
    (2, 2, 2, 0, 5, 4, 4),
    (0, 2, 2, 3, 5, 4, 4),
)
MASKS = ("none", "bools", "floats", "causal", "keys", "blind", "transposed")


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def mask_of(kind: str, sizes: tuple[int, ...]) -> Any:
    batch, heads, _, rows, keys, _, _ = sizes
    match kind:
        case "bools":
            return RNG.random((batch, heads, rows, keys)) < 0.7
        case "floats":
            return random(1, heads, rows, keys)
        case "keys":
            return RNG.random((batch, 1, 1, keys)) < 0.7
        case "blind":
            mask = RNG.random((rows, keys)) < 0.7
            mask[: rows // 2] = False  # queries that see no key
            return mask
        case "transposed":
            return random(batch, 1, keys, rows).swapaxes(2, 3)
    return None


class Attention:
    """Operands of both ops; `y` and `lse` are computed in float64."""

    def __init__(self, sizes: tuple[int, ...], kind: str, drops: bool) -> None:
        batch, heads, kv_heads, rows, keys, depth, width = sizes
        # Heads after rows in memory, as projections write them.
        self.q = random(batch, rows, heads, depth).swapaxes(1, 2)
        self.k = random(batch, keys, kv_heads, depth).swapaxes(1, 2)
        self.v = random(batch, keys, kv_heads, width).swapaxes(1, 2)
        self.dy = random(batch, rows, heads, width)
        self.mask = mask_of(kind, sizes)
        self.keep = RNG.random((batch, heads, rows, keys)) < 0.8 if drops else None
        self.attrs = {
            "scale": 0.3, "is_causal": int(kind == "causal"), "keep_scale": 1.25 if drops else 1.0,
        }  # fmt: skip

    def forward(self) -> list[Any]:
        return [self.q, self.k, self.v, self.mask, self.keep]

    def backward(self, y: Any, lse: Any) -> list[Any]:
        return [self.dy, self.q, self.k, self.v, y, lse, self.mask, self.keep]


def wide(arrays: list[Any]) -> list[Any]:
    return [None if a is None else a if a.dtype == bool else a.astype(np.float64) for a in arrays]


def node_of(name: str, arrays: list[Any], attrs: dict[str, Any]) -> tuple[Node, dict[Value, Any]]:
    op = lookup(GRADIENT, name)
    assert op is not None
    graph, fed = Graph(), {}
    inputs: list[Value | None] = []
    for i, array in enumerate(arrays):
        value = None
        if array is not None:
            value = Value(
                f"x{i}", constant(ArrayConst(np.ascontiguousarray(array))).tensor.without_contents()
            )
            fed[value] = array
        inputs.append(value)
    node = graph.add(op, inputs, {**op.defaults, **attrs}, len(op.outputs))
    infer_node(graph.scope, node)
    return node, fed


def check(name: str, arrays: list[Any], attrs: dict[str, Any]) -> list[Any]:
    node, fed = node_of(name, arrays, attrs)
    call = lowered(node)
    assert isinstance(call, Call)
    expected: list[Any] = list(node.op.run(wide(arrays), node.attrs))
    for isa in native.isas:
        for a, b in zip(run_splits(call, node, fed, isa), expected, strict=True):
            size = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=1)
            # Sums over 300 keys in float32: 6e-6 was seen with AVX2, compiled by g++ 13.
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=8e-6 * size, err_msg=isa)
    return expected


@pytest.mark.parametrize("drops", [False, True], ids=["all", "dropout"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels(sizes: tuple[int, ...], kind: str, drops: bool) -> None:
    x = Attention(sizes, kind, drops)
    y, lse = check("AttentionTraining", x.forward(), x.attrs)
    given = x.backward(y.astype(np.float32), lse.astype(np.float32))
    check("AttentionGradient", given, x.attrs)


def test_strided_dropout_mask_and_dy() -> None:
    x = Attention((1, 2, 2, 9, 40, 8, 8), "none", True)
    assert x.keep is not None
    x.keep = np.repeat(x.keep, 2, axis=-1)[..., ::2]
    x.dy = np.repeat(x.dy, 2, axis=-1)[..., ::2]
    y, lse = check("AttentionTraining", x.forward(), x.attrs)
    given = x.backward(y.astype(np.float32), lse.astype(np.float32))
    check("AttentionGradient", given, x.attrs)


def test_nan_scores_propagate() -> None:
    x = Attention((1, 1, 1, 20, 40, 8, 8), "none", False)
    x.q[0, 0, 3, 2] = np.nan
    y, lse = check("AttentionTraining", x.forward(), x.attrs)
    assert np.isnan(y[0, 3]).all()
    assert np.isnan(lse[0, 0, 3])
    assert np.isfinite(y[0, 4]).all()


@pytest.mark.parametrize("drops", [False, True], ids=["all", "dropout"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", [(2, 3, 3, 7, 5, 8, 8), (1, 6, 2, 31, 70, 32, 24)], ids=str)
def test_decompositions(sizes: tuple[int, ...], kind: str, drops: bool) -> None:
    """float64 has no kernel."""
    x = Attention(sizes, kind, drops)
    forward = wide(x.forward())
    y, lse = run_session("AttentionTraining", forward, x.attrs)
    run_session("AttentionGradient", wide(x.backward(y, lse)), x.attrs)


def run_session(name: str, arrays: list[Any], attrs: dict[str, Any]) -> list[Any]:
    arrays = [None if a is None else np.ascontiguousarray(a) for a in arrays]
    node, fed = node_of(name, arrays, attrs)
    graph = node.graph
    for value in fed:
        graph.add_input(value)
    graph.set_outputs(list(node.outputs))
    for i, value in enumerate(node.outputs):
        value.name = f"y{i}"
    declared = [[Declared(v.name, v.tensor.without_contents(), v.tensor.static) for v in vs]
                for vs in (graph.inputs, graph.outputs)]  # fmt: skip
    expected = list(node.op.run(arrays, node.attrs))
    model = Model(graph, 11, {"": 23}, *declared, [], producer_name="test")
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    found = session.run(None, {v.name: a for v, a in fed.items()})
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return expected
