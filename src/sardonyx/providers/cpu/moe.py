"""Mixture of experts (MoE) on the CPU."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.dtype import F32, U8
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.moe.quantized import ACTIVATIONS, named_inputs
from sardonyx.ops.moe.standard import MoeInputs, is_fused
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types, padded_inputs

FLOAT: Final = 32  # bits of weights that are floats


def qmoe(node: Node) -> Call | No:
    """Lower QMoE; the kernel reads weights as the model's file stores them."""
    attrs = node.attrs
    x = named_inputs(padded_inputs(node, 21), attrs)
    first, second, third = x.layers
    reals = (x.x, x.router, x.chosen, *(v for w in x.layers for v in (w.scales, w.bias)))
    if other := next((v for v in reals if v is not None and v.tensor.dtype is not F32), None):
        return No(f"no kernel for {other.tensor.dtype}")
    inner = second.weights.tensor.dims[2]
    if not isinstance(inner, int):
        return No("the number of hidden units is not known")
    # Both layers read activations in an order that depends on the bits of the codes.
    if third.weights is not None and third.bits != first.bits:
        return No("no kernel for fc1 and fc3 of different bits")
    layers = [v for w in x.layers for v in (_stored(w.weights), w.scales, w.bias)]
    operands = (x.x, x.router, *layers, *(w.zeros for w in x.layers), x.chosen)
    # Two or more codes of a sub-byte type share a byte of `inner`.
    sizes = (inner * (8 // second.bits), attrs["block_size"] or 0, *(w.bits for w in x.layers))
    return _call(operands, sizes, attrs, scores_all_experts=False)


def moe(node: Node) -> Call | No:
    """Lower MoE, whose weights are floats: no scales and zero points."""
    x, attrs = MoeInputs(*padded_inputs(node, 8)), node.attrs
    inner = x.second.tensor.dims[2]
    if not isinstance(inner, int):
        return No("the number of hidden units is not known")
    first, second = (x.first, None, x.first_bias), (x.second, None, x.second_bias)
    third = (x.third, None, x.third_bias)
    operands = (x.x, x.router, *first, *second, *third, None, None, None, None)
    # Without normalization MoE weighs experts by a softmax over all of them, QMoE over the chosen.
    is_normalized = bool(attrs["normalize_routing_weights"])
    return _call(operands, (inner, 0, FLOAT, FLOAT, FLOAT), attrs, not is_normalized)


def _call(
    operands: tuple[Value | Stored | None, ...],
    sizes: tuple[int, ...],
    attrs: dict[str, Any],
    scores_all_experts: bool,
) -> Call:
    """`sizes`: hidden units, block size of the quantization, bits of the weights of each layer."""
    activation = ACTIVATIONS.index(attrs["activation_type"])
    fusion = attrs["swiglu_fusion"] if is_fused(attrs) else 0
    is_normalized = int(bool(attrs["normalize_routing_weights"]))
    limit = math.inf if attrs["swiglu_limit"] is None else attrs["swiglu_limit"]
    ints = (attrs["k"], *sizes, activation, fusion, is_normalized, int(scores_all_experts))
    floats = (attrs["activation_alpha"], attrs["activation_beta"], limit)
    return Call("moe", operands, ints, floats)


def _stored(weights: Value | None) -> Value | Stored | None:
    """Return weights; constant bytes are read in place."""
    if weights is None or not weights.is_const:
        return weights
    assert weights.tensor.dtype is U8
    return Stored(weights)


LOWERINGS: Final[Lowerings] = {
    (MICROSOFT, "MoE"): for_types((F32,), moe),
    (MICROSOFT, "QMoE"): qmoe,
}
