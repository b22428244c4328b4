"""Ops of com.microsoft that are several products with n-bit weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder

_SHARED: Final = ("K", "accuracy_level", "bits", "block_size")  # of all products in a node


_ACTIVATIONS: Final = (b"silu", b"swish", b"gelu", b"relu")


def _normalized(b: Builder, node: OldNode, epsilon: float, outputs: int) -> tuple[Any, Any]:
    """The input after its norm, if it has one; and its sum with the skip connection, if any."""
    x, skip, scale = (node.input(i) for i in range(3))
    given = {"epsilon": node.attr("epsilon", float(np.float32(epsilon)))}
    if skip is None and node.n_outputs > outputs:
        raise InvalidGraph("input_skip_bias_sum is the sum with skip, which is missing")
    if scale is None and skip is not None:
        raise InvalidGraph("skip is added before a norm, and norm_scale is missing")
    if scale is None:
        return x, None
    if skip is None:
        return b.SimplifiedLayerNormalization(x, scale, **given), None
    made = b.node(
        "SkipSimplifiedLayerNormalization", x, skip, scale, outputs=4, domain=MICROSOFT, **given
    )
    return made.outputs[0], made.outputs[3]


def _product(b: Builder, node: OldNode, x: Any, slot: int, columns: str) -> Value:
    """The product with the weights, scales and bias that begin at an input."""
    weights, scales, bias = (node.input(slot + i) for i in range(3))
    given = {k: node.attrs[k] for k in _SHARED if k in node.attrs}
    return b.MatMulNBits(
        x, weights, scales, None, None, bias, domain=MICROSOFT, N=node.attr(columns), **given
    )


@upgrade("MatMulNBitsQkv", below=ANY, domain=MICROSOFT)
def three_products(b: Builder, node: OldNode) -> Any:
    x, total = _normalized(b, node, 1e-6, outputs=3)
    parts = ((3, "Nq"), (6, "Nkv"), (9, "Nkv"))
    return *(_product(b, node, x, slot, columns) for slot, columns in parts), total


@upgrade("MatMulNBitsMlp", below=ANY, domain=MICROSOFT)
def gated_product(b: Builder, node: OldNode) -> Any:
    name = node.attr("activation")
    if name not in _ACTIVATIONS:
        known = ", ".join(a.decode() for a in _ACTIVATIONS)
        raise InvalidGraph(f"activation {name!r} is none of {known}")
    x, total = _normalized(b, node, 1e-5, outputs=1)
    gate, up = (_product(b, node, x, slot, "N") for slot in (3, 6))
    if name == b"relu":
        opened = b.Relu(gate)
    elif name == b"gelu":
        opened = b.Gelu(gate)
    else:
        opened = b.Mul(gate, b.Sigmoid(gate))
    return b.Mul(opened, up), total


UPGRADES: Final = (
    *three_products,
    *gated_product,
)
