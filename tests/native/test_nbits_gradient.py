"""The gradient of MatMulNBits: its kernel on every ISA, in any split, against the reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx
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
from tests.kernels import run_call, run_splits

ZEROS = ("none", "packed", "floats")
# rows of dy, N, K, block size
SIZES = (
    (1, 1, 1, 16),
    (3, 20, 90, 32),
    (5, 33, 17, 16),
    (2, 300, 96, 64),
    (150, 40, 300, 128),
    (7, 513, 270, 16),
    (150, 4160, 40, 16),  # cut along N
    (0, 20, 32, 16),
)


class Weights:
    """n-bit weights [N, K] in blocks along K, and a gradient dy."""

    def __init__(self, sizes: tuple[int, ...], bits: int, zeros: str, dtype: Any) -> None:
        m, n, k, block = sizes
        rng = np.random.default_rng(m + n + k + bits)
        blocks = -(-k // block)
        self.dy = rng.standard_normal((m, n)).astype(dtype)
        self.q = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        self.scales = rng.standard_normal((n, blocks)).astype(dtype)
        self.zero: Any = None
        if zeros == "packed":
            self.zero = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
        elif zeros == "floats":
            self.zero = (rng.standard_normal((n, blocks)) * 3).astype(dtype)
        self.attrs = {"K": k, "N": n, "bits": bits, "block_size": block}

    def stored(self) -> list[Any]:
        return [self.q, self.scales, self.zero]


def node_of(weights: Weights, is_constant: bool) -> tuple[Node, dict[Value, Any]]:
    op = lookup(GRADIENT, "MatMulNBitsGradient")
    assert op is not None
    dy = Value("dy", constant(ArrayConst(weights.dy)).tensor.without_contents())
    inputs: list[Value | None] = [dy]
    fed: dict[Value, Any] = {dy: weights.dy}
    for name, array in zip(("q", "scales", "zero"), weights.stored(), strict=True):
        value = None if array is None else constant(ArrayConst(array))
        if value is not None and not is_constant:
            value = Value(name, value.tensor.without_contents())
            fed[value] = array
        inputs.append(value)
    node = Graph().add(op, inputs, weights.attrs, 1)
    infer_node(node.graph.scope, node)
    return node, fed


def expected(weights: Weights, node: Node) -> Any:
    wide = [a.astype(np.float64) if a is not None and a.dtype != np.uint8 else a
            for a in (weights.dy, *weights.stored())]  # fmt: skip
    return node.op.run(wide, node.attrs)[0].astype(np.float64)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernel(sizes: tuple[int, ...], bits: int, zeros: str) -> None:
    weights = Weights(sizes, bits, zeros, np.float32)
    node, fed = node_of(weights, is_constant=True)
    call = lowered(node)
    assert isinstance(call, Call)
    wanted = expected(weights, node)
    scale = np.abs(wanted).max(initial=1)
    for isa in native.isas:
        found = run_splits(call, node, fed, isa)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * scale, err_msg=isa)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("zeros", ZEROS)
def test_half_types_are_widened(zeros: str, dtype: Any) -> None:
    """The result is that of float32, rounded once."""
    weights = Weights((3, 20, 90, 32), 4, zeros, dtype)
    node, fed = node_of(weights, is_constant=True)
    call = lowered(node)
    assert isinstance(call, Call)
    wanted = expected(weights, node)
    rounding = 2.0**-10 if dtype == np.float16 else 2.0**-7
    for isa in native.isas:
        found = run_call(call, node, fed, {}, isa)[0].astype(np.float64)
        np.testing.assert_allclose(found, wanted, rtol=rounding, atol=1e-3, err_msg=isa)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("sizes", [(3, 20, 90, 32), (2, 1100, 2048, 32)], ids=str)
def test_weights_that_are_computed(sizes: tuple[int, ...], zeros: str) -> None:
    """Without constants there is no kernel: the decomposition reads rows, many in a Loop."""
    weights = Weights(sizes, 4, zeros, np.float32)
    node, fed = node_of(weights, is_constant=False)
    graph = node.graph
    for value in fed:
        graph.add_input(value)
    graph.set_outputs(list(node.outputs))
    node.outputs[0].name = "dx"
    declared = [[Declared(v.name, v.tensor.without_contents(), v.tensor.static) for v in vs]
                for vs in (graph.inputs, graph.outputs)]  # fmt: skip
    model = Model(graph, 11, {"": 23}, *declared, [], producer_name="test")
    (found,) = sardonyx.InferenceSession(model).run(None, {v.name: a for v, a in fed.items()})
    wanted = expected(weights, node)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("attrs", "shapes", "why"),
    [
        ({}, ((20, 3, 16), (1, 1)), "scales"),
        ({}, ((20, 3, 16), (20, 3), (20, 3)), "zero_points"),
        ({}, ((20, 90), (20, 3)), "B"),
        ({"block_size": 8}, ((20, 12, 4), (20, 12)), "block_size"),
        ({"bits": 5}, ((20, 3, 20), (20, 3)), "bits"),
    ],
    ids=str,
)
def test_weights_of_other_sizes_are_refused(attrs: Any, shapes: Any, why: str) -> None:
    """The kernel reads weights by the attributes; a model may have this node as any other."""
    op = lookup(GRADIENT, "MatMulNBitsGradient")
    assert op is not None
    types = (np.uint8, np.float32, np.uint8)
    stored = [constant(ArrayConst(np.zeros(s, t))) for s, t in zip(shapes, types, strict=False)]
    dy = Value("dy", constant(ArrayConst(np.zeros((3, 20), np.float32))).tensor.without_contents())
    values = {"K": 90, "N": 20, "bits": 4, "block_size": 32, **attrs}
    node = Graph().add(op, [dy, *stored], values, 1)
    with pytest.raises(sardonyx.errors.ShapeError, match=why):
        infer_node(node.graph.scope, node)
