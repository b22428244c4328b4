"""Convolutions with epilogues, by their kernels against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.passes.elementwise_fusion import fuse_chains
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.kernels import run_splits
from tests.native.test_conv import Array, node_of, random


def with_epilogue(
    op: str, x: Array, w: Array, build: Any, out_channels: int, **attrs: Any
) -> tuple[Node, dict[Value, Array]]:
    """A convolution with elementwise nodes after it, fused; and what its operands are."""
    node = node_of(op, x, w, **attrs)
    graph = node.graph
    builder = Builder(graph, graph.scope)
    shape = node.outputs[0].tensor.static
    assert shape is not None
    row, whole = random(out_channels), random(*shape)
    operands = [constant(ArrayConst(row)), Value("r", Fact(F32, shape))]
    graph.inputs.append(operands[1])
    graph.set_outputs([build(builder, node.outputs[0], *operands)])
    fuse_chains(graph)
    (made,) = graph.nodes
    return made, {node.inputs[0]: x, operands[1]: whole}


def gated(b: Builder, y: Value) -> Any:
    return b.Mul(y, b.Sigmoid(y))


def clipped(b: Builder, y: Value, low: float = 0) -> Any:
    return b.Clip(y, b.const(np.float32(low)), b.const(np.float32(6)))


EPILOGUES = {
    "bias": lambda b, y, row, whole: b.Add(y, row),
    "relu": lambda b, y, row, whole: b.Relu(y),
    "bias and relu": lambda b, y, row, whole: b.Relu(b.Add(row, y)),
    "residual": lambda b, y, row, whole: b.Relu(b.Add(b.Add(y, row), whole)),
    "gate": lambda b, y, row, whole: gated(b, b.Add(y, row)),
    "gate and residual": lambda b, y, row, whole: b.Add(gated(b, b.Add(y, row)), whole),
    "swish": lambda b, y, row, whole: b.Mul(b.Swish(y), row),
    "own gate": lambda b, y, row, whole: gated(b, y),
    "two gates": lambda b, y, row, whole: b.Mul(gated(b, y), b.Sigmoid(y)),
    "bound twice": lambda b, y, row, whole: clipped(b, clipped(b, b.Add(y, row))),
    "bound and residual": lambda b, y, row, whole: b.Add(clipped(b, y), whole),
    "odd bounds": lambda b, y, row, whole: clipped(b, y, -1),
    "scale": lambda b, y, row, whole: b.Add(b.Mul(y, row), whole),
    "clip": lambda b, y, row, whole: clipped(b, b.Add(y, row)),
    "residual and clip": lambda b, y, row, whole: clipped(b, b.Add(whole, b.Add(y, row))),
    "bias after residual": lambda b, y, row, whole: b.Add(b.Add(y, whole), row),
    "residual and gate": lambda b, y, row, whole: gated(b, b.Add(y, whole)),
    "residual and program": lambda b, y, row, whole: b.Mul(b.LeakyRelu(b.Add(y, whole)), row),
    "gate, residual and program": lambda b, y, row, whole: b.Mul(b.Add(whole, gated(b, y)), row),
    "residual twice": lambda b, y, row, whole: b.Mul(b.Add(y, whole), whole),
}
SHARING = {  # those that may be written over what they add
    "residual",
    "residual and clip",
    "bias after residual",
    "residual and gate",
    "residual and program",
    "gate and residual",
    "bound and residual",
    "gate, residual and program",
}
LAYERS = {
    "product": ("Conv", (2, 6, 5, 20), (40, 20, 3, 2), {}),
    "wide": ("Conv", (1, 5, 5, 8), (300, 8, 1, 1), {}),
    "groups": ("Conv", (1, 5, 5, 34), (70, 17, 1, 1), {"group": 2}),
    "winograd": ("Conv", (2, 14, 17, 16), (50, 16, 3, 3), {}),
    "large winograd": ("Conv", (2, 11, 13, 16), (50, 16, 5, 5), {}),
    "dilated winograd": ("Conv", (2, 15, 18, 16), (33, 16, 3, 3), {"dilations": [2, 2]}),
    "depthwise": ("Conv", (2, 6, 9, 37), (37, 1, 3, 3), {"group": 37}),
    "several passes": ("Conv", (1, 7, 6, 70), (45, 70, 3, 3), {"strides": [1, 2]}),
    "short rows": ("Conv", (1, 6, 26, 32), (32, 1, 3, 3), {"group": 32}),
    "one map": ("Conv", (2, 4, 7, 3), (1, 3, 3, 3), {}),
    "few output channels": ("Conv", (2, 4, 40, 3), (3, 3, 3, 3), {}),
    "side by side": ("ConvTranspose", (2, 6, 5, 20), (20, 5, 2, 2), {"strides": [2, 2]}),
    "transposed": ("ConvTranspose", (2, 6, 5, 20), (20, 33, 2, 3), {"strides": [2, 2]}),
}


@pytest.mark.parametrize("what", EPILOGUES)
@pytest.mark.parametrize("layer", LAYERS)
def test_epilogues(layer: str, what: str) -> None:
    op, image, weights, attrs = LAYERS[layer]
    out_channels = weights[1] if op == "ConvTranspose" else weights[0]
    node, values = with_epilogue(
        op, random(*image), random(*weights), EPILOGUES[what], out_channels, **attrs
    )
    assert node.op.key == (INTERNAL, op)
    call = lowered(node)
    assert isinstance(call, Call), call
    assert bool(call.shares) == (what in SHARING)
    arrays = [values[v] if v in values else v.const.read() for v in node.inputs]
    expected = node.op.run(arrays, node.attrs)[0]
    size = np.abs(expected).max()
    for isa in native.isas:
        (found,) = run_splits(call, node, values, isa)
        for how in (*({"share": share} for share in call.shares), {"gap": 3}):
            assert run_splits(call, node, values, isa, **how)[0].tobytes() == found.tobytes(), isa
        np.testing.assert_allclose(found, expected, 2e-5, 1e-5 * size, err_msg=isa)
