"""Mixtures of experts on the CPU."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.dtype import F32, U8
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.moe.quantized import ACTIVATIONS, named_inputs
from sardonyx.ops.moe.standard import MoeInputs as Experts
from sardonyx.ops.moe.standard import is_fused
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

FLOAT: Final = 32  # bits of weights that are floats


def qmoe(node: Node) -> Call | No:
    """QMoE; weights are read as they lie in the model's file."""
    values, attrs = [optional_input(node, i) for i in range(21)], node.attrs
    x = named_inputs(values, attrs)
    first, second, third = x.layers
    reals = (x.x, x.router, x.chosen, *(v for w in x.layers for v in (w.scales, w.bias)))
    if odd := next((v for v in reals if v is not None and v.tensor.dtype is not F32), None):
        return No(f"no kernel for {odd.tensor.dtype}")
    inner = second.weights.tensor.dims[2]
    if not isinstance(inner, int) or input_of(node, 0).tensor.shape is None:
        return No("the number of units is not known")
    if third.weights is not None and third.bits != first.bits:
        return No("no kernel for fc1 and fc3 of different bits")
    layers = [v for w in x.layers for v in (_stored(w.weights), w.scales, w.bias)]
    operands = (x.x, x.router, *layers, *(w.zeros for w in x.layers), x.chosen)
    ints = (
        attrs["k"], inner * (8 // second.bits), attrs["block_size"] or 0,
        *(w.bits for w in x.layers), ACTIVATIONS.index(attrs["activation_type"]),
        attrs["swiglu_fusion"] if is_fused(attrs) else 0,
        int(bool(attrs["normalize_routing_weights"])), 0,
    )  # fmt: skip
    return Call("moe", operands, ints, _floats(attrs))


def _floats(attrs: dict[str, Any]) -> tuple[float, float, float]:
    limit = math.inf if attrs["swiglu_limit"] is None else attrs["swiglu_limit"]
    return attrs["activation_alpha"], attrs["activation_beta"], limit


def moe(node: Node) -> Call | No:
    """MoE: the same with weights of floats."""
    x, attrs = Experts(*[optional_input(node, i) for i in range(8)]), node.attrs
    if x.x.tensor.dtype is not F32:
        return No(f"no kernel for {x.x.tensor.dtype}")
    inner = x.second.tensor.dims[2]
    if not isinstance(inner, int):
        return No("the number of units is not known")
    layers = (
        *(x.first, None, x.first_bias, x.second, None, x.second_bias),
        *(x.third, None, x.third_bias),
    )
    shares = int(bool(attrs["normalize_routing_weights"]))
    ints = (
        *(attrs["k"], inner, 0, FLOAT, FLOAT, FLOAT),
        ACTIVATIONS.index(attrs["activation_type"]),
        attrs["swiglu_fusion"] if is_fused(attrs) else 0,
        *(shares, 1 - shares),
    )
    operands = (x.x, x.router, *layers, None, None, None, None)
    return Call("moe", operands, ints, _floats(attrs))


def _stored(weights: Value | None) -> Value | Stored | None:
    """Constant bytes are read in place."""
    if weights is None or not weights.is_const:
        return weights
    assert weights.tensor.dtype is U8
    return Stored(weights)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (MICROSOFT, "MoE"): moe,
    (MICROSOFT, "QMoE"): qmoe,
}
