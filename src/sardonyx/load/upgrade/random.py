"""Older forms of the random ops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import U32
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Dropout", below=12)
def ratio_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The ratio was an attribute; from opset 7 on, numbers were dropped only outside inference."""
    is_training = node.version < 7 and not node.attr("is_test", 0)
    ratio = b.const(np.float32(node.attr("ratio", 0.5)))
    mode = b.const(np.bool_(is_training))
    y, mask = b.node("Dropout", node.input(0), ratio, mode, outputs=2).outputs
    # Before opset 10 the mask had the type of the data.
    return y, mask if node.version >= 10 else b.CastLike(mask, node.input(0))


@upgrade("BiasDropout", below=ANY, domain=MICROSOFT)
def bias_dropout_residual(b: Builder, node: OldNode) -> Any:
    x, bias, residual, *rest = (node.input(i) for i in range(5))
    y, mask = b.node("Dropout", b.Add(x, bias), *rest, outputs=2, **node.attrs).outputs
    return y if residual is None else b.Add(y, residual), mask


def _bits(b: Builder, mask: Any) -> Value:
    """Truths as bits, 32 to a number, the first the lowest."""
    flat = b.Reshape(b.Cast(mask, to=U32.onnx), b.ints(-1))
    missing = b.Mod(b.Neg(b.Shape(flat)), b.ints(32))
    padded = b.Pad(flat, b.Concat(b.ints(0), missing, axis=0))
    powers = b.const(np.uint32(1) << np.arange(32, dtype=np.uint32))
    rows = b.Mul(b.Reshape(padded, b.ints(-1, 32)), powers)
    return b.ReduceSum(rows, b.ints(1), keepdims=0)


@upgrade("BitmaskDropout", below=ANY, domain=MICROSOFT)
def dropout_in_bits(b: Builder, node: OldNode) -> Any:
    y, mask = b.node("Dropout", *node.inputs, outputs=2, **node.attrs).outputs
    return y, None if node.n_outputs < 2 else _bits(b, mask)


@upgrade("BitmaskBiasDropout", below=ANY, domain=MICROSOFT)
def bias_dropout_in_bits(b: Builder, node: OldNode) -> Any:
    x, bias, residual, *rest = (node.input(i) for i in range(5))
    y, mask = b.node("Dropout", b.Add(x, bias), *rest, outputs=2, **node.attrs).outputs
    if residual is not None:
        y = b.Add(y, residual)
    return y, None if node.n_outputs < 2 else _bits(b, mask)


UPGRADES: Final = (
    *ratio_becomes_an_input,
    *bias_dropout_residual,
    *dropout_in_bits,
    *bias_dropout_in_bits,
)
