"""Upgrades of Dropout, and replacements of contrib ops that fuse it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import U32
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Dropout", below=12)
def ratio_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The ratio was an attribute; opsets 7 to 11 never dropped anything at inference."""
    is_training = node.version < 7 and not node.attr("is_test", 0)
    ratio = b.const(np.float32(node.attr("ratio", 0.5)))
    mode = b.const(np.bool_(is_training))
    y, mask = b.node("Dropout", node.input(0), ratio, mode, outputs=2).outputs
    # Before opset 10 the mask had the type of the data.
    return y, mask if node.version >= 10 else b.CastLike(mask, node.input(0))


@UPGRADES.rule("BiasDropout", domain=MICROSOFT)
def bias_dropout(b: Builder, node: OldNode) -> Any:
    """dropout(x + bias) + residual, where the residual may be absent."""
    x, bias, residual, *rest = (node.input(i) for i in range(5))
    y, mask = b.node("Dropout", b.Add(x, bias), *rest, outputs=2, **node.attrs).outputs
    return y if residual is None else b.Add(y, residual), mask


def _bitmask(b: Builder, mask: Any) -> Value:
    """Pack bools into uint32, 32 to a number, the first in the lowest bit."""
    flat = b.Reshape(b.Cast(mask, to=U32.onnx), b.ints(-1))
    missing = b.Mod(b.Neg(b.Shape(flat)), b.ints(32))
    padded = b.Pad(flat, b.Concat(b.ints(0), missing, axis=0))
    powers = b.const(np.uint32(1) << np.arange(32, dtype=np.uint32))
    weighted = b.Mul(b.Reshape(padded, b.ints(-1, 32)), powers)
    return b.ReduceSum(weighted, b.ints(1), keepdims=0)


@UPGRADES.rule("BitmaskDropout", domain=MICROSOFT)
def bitmask_dropout(b: Builder, node: OldNode) -> Any:
    y, mask = b.node("Dropout", *node.inputs, outputs=2, **node.attrs).outputs
    return y, None if node.n_outputs < 2 else _bitmask(b, mask)


@UPGRADES.rule("BitmaskBiasDropout", domain=MICROSOFT)
def bitmask_bias_dropout(b: Builder, node: OldNode) -> Any:
    y, mask = bias_dropout(b, node)
    return y, None if node.n_outputs < 2 else _bitmask(b, mask)
