"""Replacements of contrib ops that fuse several matrix products with n-bit weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()

_SHARED: Final = ("K", "accuracy_level", "bits", "block_size")  # attributes of all matrix products
_ACTIVATIONS: Final = (b"silu", b"swish", b"gelu", b"relu")


def _normalized(b: Builder, node: OldNode, epsilon: float, outputs: int) -> tuple[Any, Any]:
    """Return the input after its RMS norm, if any, and its sum with the skip input, if any."""
    x, skip, scale = (node.input(i) for i in range(3))
    attrs = {"epsilon": node.attr("epsilon", float(np.float32(epsilon)))}
    if skip is None and node.n_outputs > outputs:
        raise InvalidGraph("input_skip_bias_sum is the sum with skip, which is missing")
    if scale is None and skip is not None:
        raise InvalidGraph("skip is added before a norm, and norm_scale is missing")
    if scale is None:
        return x, None
    if skip is None:
        return b.SimplifiedLayerNormalization(x, scale, **attrs), None
    op = "SkipSimplifiedLayerNormalization"
    y, _, _, total = b.node(op, x, skip, scale, outputs=4, domain=MICROSOFT, **attrs).outputs
    return y, total


def _matmul(b: Builder, node: OldNode, x: Any, slot: int, columns: str) -> Value:
    """Multiply x by the weights whose codes, scales and bias are the inputs from `slot` on."""
    weights, scales, bias = (node.input(slot + i) for i in range(3))
    attrs: dict[str, Any] = {k: node.attrs[k] for k in _SHARED if k in node.attrs}
    attrs["N"] = node.attr(columns)
    return b.MatMulNBits(x, weights, scales, None, None, bias, domain=MICROSOFT, **attrs)


@UPGRADES.rule("MatMulNBitsQkv", domain=MICROSOFT)
def qkv_projections(b: Builder, node: OldNode) -> Any:
    x, total = _normalized(b, node, 1e-6, outputs=3)
    weights = ((3, "Nq"), (6, "Nkv"), (9, "Nkv"))
    return *(_matmul(b, node, x, slot, columns) for slot, columns in weights), total


@UPGRADES.rule("MatMulNBitsMlp", domain=MICROSOFT)
def gated_mlp(b: Builder, node: OldNode) -> Any:
    """act(x @ gate) * (x @ up)."""
    name = node.attr("activation")
    if name not in _ACTIVATIONS:  # None if it is missing
        known = ", ".join(a.decode() for a in _ACTIVATIONS)
        raise InvalidGraph(f"activation must be one of {known}, got {name!r}")
    x, total = _normalized(b, node, 1e-5, outputs=1)
    gate, up = (_matmul(b, node, x, slot, "N") for slot in (3, 6))
    if name in (b"relu", b"gelu"):
        activated = b.Relu(gate) if name == b"relu" else b.Gelu(gate)
    else:
        activated = b.Mul(gate, b.Sigmoid(gate))
    return b.Mul(activated, up), total
