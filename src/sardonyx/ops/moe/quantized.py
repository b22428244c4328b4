"""QMoE: a mixture of experts with 2-, 4- or 8-bit weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph, NotImplemented, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, U8, by_name
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import expect_dims, same_rank
from sardonyx.ops.moe import standard
from sardonyx.ops.moe.standard import (
    SWIGLU,
    activated,
    check_router,
    is_fused,
    mix_experts,
    top_experts,
)
from sardonyx.ops.nbits.gather import unpack_codes
from sardonyx.ops.softmax.standard import softmax

_REALS: Final = frozenset((F32, F16, BF16))
_F8: Final = by_name("f8e4m3fn")
ACTIVATIONS: Final = (*standard.ACTIVATIONS, SWIGLU)  # by the kernels' number

qmoe: Final = contrib_op(
    "QMoE",
    "input:T router_probs:T fc1_experts_weights:T1 fc1_scales:T2? fc1_experts_bias:T? "
    "fc2_experts_weights:T1 fc2_scales:T2? fc2_experts_bias:T? fc3_experts_weights:T1? "
    "fc3_scales:T2? fc3_experts_bias:T? fc1_zero_points:T1? fc2_zero_points:T1? "
    "fc3_zero_points:T1? router_weights:T? fc1_global_scale:T4? fc2_global_scale:T4? "
    "fc1_act_scale:T4? fc2_act_scale:T4? fc1_act_block_scale:T2? fc2_act_block_scale:T2?",
    "output:T",
    attrs={
        "accuracy_level": 0,
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "activation_type": b"relu",
        "block_size": optional("int"),
        "expert_weight_bits": 4,
        "fc1_expert_weight_bits": optional("int"),
        "fc2_expert_weight_bits": optional("int"),
        "fc3_expert_weight_bits": optional("int"),
        "k": 1,
        "normalize_routing_weights": 0,
        "quant_type": b"int",
        "swiglu_fusion": 0,
        "swiglu_limit": optional("float"),
        "use_sparse_mixer": 0,
        "weights_prepacked": -1,
    },
    types={
        "T": _REALS,
        "T1": frozenset((U8, _F8)),
        "T2": _REALS | {by_name("f8e8m0"), _F8},
        "T4": frozenset((F32,)),
    },
)


@frozen
class ExpertLayer:
    """One linear layer of all experts: facts, arrays or values."""

    weights: Any
    scales: Any
    bias: Any
    zeros: Any
    bits: int


@frozen
class QMoeInputs:
    """The inputs of a QMoE by name: facts, arrays or values."""

    x: Any
    router: Any
    layers: tuple[ExpertLayer, ExpertLayer, ExpertLayer]  # fc1, fc2, and fc3 (the gate of fc1)
    chosen: Any  # router_weights: mixing weights, where router_probs only selects experts


def named_inputs(inputs: Any, attrs: dict[str, Any]) -> QMoeInputs:
    """Return the inputs by name."""
    common = attrs["expert_weight_bits"]
    layers = []
    for i in range(3):
        weights, scales, bias = inputs[2 + 3 * i : 5 + 3 * i]
        bits = attrs[f"fc{i + 1}_expert_weight_bits"] or common
        layers.append(ExpertLayer(weights, scales, bias, inputs[11 + i], bits))
    return QMoeInputs(inputs[0], inputs[1], (layers[0], layers[1], layers[2]), inputs[14])


def _check(x: QMoeInputs, attrs: dict[str, Any], rest: Any) -> None:
    if attrs["quant_type"] != b"int":
        shown = attrs["quant_type"].decode(errors="replace")
        raise NotImplemented(
            f"quant_type {shown} (float8 or float4 weights) is not supported",
            hint="export the model with weights of 4 or 8 bits (quant_type=int)",
        )
    if any(f is not None for f in rest):
        raise InvalidGraph("global and activation scales need a float quant_type, got int")
    if attrs["use_sparse_mixer"]:
        raise NotImplemented(
            "use_sparse_mixer is 1: sparse-mixer routing is not supported",
            hint="export the model with use_sparse_mixer=0",
        )
    _check_layers(x, attrs)


def _check_layers(x: QMoeInputs, attrs: dict[str, Any]) -> None:
    block = attrs["block_size"] or 0
    if block and (block < 16 or block & (block - 1)):
        raise ShapeError(f"block_size must be a power of two and at least 16, got {block}")
    has_gate = x.layers[2].weights is not None
    if has_gate and is_fused(attrs):
        raise InvalidGraph("fc3 is present, and swiglu_fusion means that fc1 contains it")
    if attrs["activation_type"] == SWIGLU and not is_fused(attrs) and not has_gate:
        raise InvalidGraph("swiglu needs fc3_experts_weights, or swiglu_fusion 1 or 2")
    for layer in x.layers:
        if layer.weights is not None and (layer.bits not in (2, 4, 8) or layer.scales is None):
            raise ShapeError(f"weights must have 2, 4 or 8 bits and scales, got {layer.bits} bits")


def _check_layer(
    g: Scope, name: str, layer: ExpertLayer, sizes: tuple[Size, Size, Size], block: int
) -> None:
    """Check the weights of all experts, [rows, columns] each, with their bias, scales and zeros."""
    experts, rows, columns = sizes
    g.divides(8 // layer.bits, columns, f"rows of {name} weights are not whole bytes")
    stored = (experts, rows, columns * layer.bits // 8)
    expect_dims(g, stored, **{f"{name}_experts_weights": layer.weights})
    expect_dims(g, (experts, rows), **{f"{name}_experts_bias": layer.bias})
    per_byte = 8 // layer.bits
    if block:
        g.divides(block, columns, f"block_size does not divide the columns of {name}")
        n = columns // block
        scales: tuple[Size, ...] = (experts, rows, n)
        zeros: tuple[Size, ...] = (experts, rows, (n + (per_byte - 1)) // per_byte)
    else:
        scales, zeros = (experts, rows), (experts, (rows + (per_byte - 1)) // per_byte)
    expect_dims(g, scales, **{f"{name}_scales": layer.scales})
    expect_dims(g, zeros, **{f"{name}_zero_points": layer.zeros})


@qmoe.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> Any:
    x = named_inputs(facts, attrs)
    _check(x, attrs, facts[15:])
    first, second, third = x.layers
    experts, width = check_router(g, x.x, x.router, attrs), x.x.dims[-1]
    same_rank(3, fc1_experts_weights=first.weights, fc2_experts_weights=second.weights)
    expect_dims(g, (x.router.dims[0], experts), router_weights=x.chosen)
    block = attrs["block_size"] or 0
    # fc2 reads the hidden state: its columns are the inner size, packed in bytes.
    inner = second.weights.dims[2] * (8 // second.bits)
    rows = inner * 2 if is_fused(attrs) else inner
    _check_layer(g, "fc1", first, (experts, rows, width), block)
    _check_layer(g, "fc2", second, (experts, width, inner), block)
    if third.weights is not None:
        _check_layer(g, "fc3", third, (experts, inner, width), block)
    return x.x.without_contents()


def _matrix(layer: ExpertLayer, expert: int, block: int) -> Array:
    """Return the weights of one expert, dequantized to float32."""
    q = unpack_codes(layer.weights[expert], layer.bits).astype(np.float32)
    scales = wide(layer.scales[expert]).reshape(q.shape[0], -1)
    zeros: Any = np.float32(1 << layer.bits - 1)
    if layer.zeros is not None:
        zeros = unpack_codes(layer.zeros[expert], layer.bits).astype(np.float32)
        # Packed zero points are padded to bytes: along the blocks, or along the rows if per row.
        zeros = zeros[:, : scales.shape[1]] if block else zeros[: q.shape[0], None]
        zeros = np.repeat(zeros, block or q.shape[1], axis=1)
    weights: Array = (q - zeros) * np.repeat(scales, block or q.shape[1], axis=1)
    return weights


def _layer(x: Array, layer: ExpertLayer, expert: int, block: int) -> Any:
    y = x @ _matrix(layer, expert, block).T
    return y if layer.bias is None else y + wide(layer.bias[expert])


def _routed(x: QMoeInputs, k: int, normalizes: object) -> tuple[Array, Array]:
    """Return each token's top-k experts and their shares, a softmax over the chosen ones."""
    router = wide(x.router)
    chosen = top_experts(router, k)
    if x.chosen is None:
        return chosen, softmax(np.take_along_axis(router, chosen, 1), axis=1)
    # router_weights are used as they are, or normalized over the chosen experts.
    shares = np.take_along_axis(wide(x.chosen), chosen, 1)
    if normalizes:
        total = shares.sum(axis=1, keepdims=True)
        shares = shares / np.where(total == 0, 1, total)
    return chosen, shares


@qmoe.reference
@np.errstate(all="ignore")
def _(*arrays: Any, **attrs: Any) -> Array:
    x, block = named_inputs(arrays, attrs), attrs["block_size"] or 0
    first, second, third = x.layers

    def expert(rows: Array, e: int) -> Any:
        gate = None if third.weights is None else _layer(rows, third, e, block)
        return _layer(activated(_layer(rows, first, e, block), gate, attrs), second, e, block)

    tokens = wide(x.x).reshape(-1, x.x.shape[-1])
    chosen, shares = _routed(x, attrs["k"], attrs["normalize_routing_weights"])
    return mix_experts(tokens, chosen, shares, expert).reshape(x.x.shape).astype(x.x.dtype)


OPS: Final = (qmoe,)
