"""QMoE: a mixture of experts with 2-, 4- or 8-bit weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph, NotImplemented, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, U8, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.nbits.gather import unpack_codes
from sardonyx.ops.softmax.standard import softmax

_REALS: Final = frozenset((F32, F16, BF16))
_F8: Final = by_name("f8e4m3fn")
ACTIVATIONS: Final = (b"relu", b"gelu", b"silu", b"identity", b"swiglu")  # by the kernels' number

qmoe: Final = Op(
    "QMoE",
    1,
    "input:T router_probs:T fc1_experts_weights:T1 fc1_scales:T2? fc1_experts_bias:T? "
    "fc2_experts_weights:T1 fc2_scales:T2? fc2_experts_bias:T? fc3_experts_weights:T1? "
    "fc3_scales:T2? fc3_experts_bias:T? fc1_zero_points:T1? fc2_zero_points:T1? "
    "fc3_zero_points:T1? router_weights:T? fc1_global_scale:T4? fc2_global_scale:T4? "
    "fc1_act_scale:T4? fc2_act_scale:T4? fc1_act_block_scale:T2? fc2_act_block_scale:T2?",
    "output:T",
    domain=MICROSOFT,
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


def is_fused(attrs: dict[str, Any]) -> bool:
    """Whether fc1 computes both operands of a SwiGLU."""
    return attrs["activation_type"] == b"swiglu" and bool(attrs["swiglu_fusion"])


def _check(x: QMoeInputs, attrs: dict[str, Any], rest: Any) -> None:
    if attrs["quant_type"] != b"int":
        shown = attrs["quant_type"].decode(errors="replace")
        raise NotImplemented(
            f"quant_type {shown} (float8 or float4 weights) is not supported",
            hint="export the model with weights of 4 or 8 bits (quant_type=int)",
        )
    if any(f is not None for f in rest):
        raise InvalidGraph("global and activation scales need a float quant_type, and it is int")
    if attrs["activation_type"] not in ACTIVATIONS:
        choices = ", ".join(a.decode() for a in ACTIVATIONS)
        raise InvalidGraph(f"activation_type {attrs['activation_type']!r} is none of {choices}")
    if attrs["use_sparse_mixer"]:
        raise NotImplemented(
            "use_sparse_mixer is 1: sparse-mixer routing is not supported",
            hint="export the model with use_sparse_mixer=0",
        )
    if attrs["swiglu_fusion"] not in (0, 1, 2):
        raise InvalidGraph(f"swiglu_fusion is {attrs['swiglu_fusion']}, and must be 0, 1 or 2")
    _check_layers(x, attrs)


def _check_layers(x: QMoeInputs, attrs: dict[str, Any]) -> None:
    block = attrs["block_size"] or 0
    if block and (block < 16 or block & (block - 1)):
        raise ShapeError(f"block_size is {block}, and must be a power of two from 16 on")
    has_gate = x.layers[2].weights is not None
    if has_gate and is_fused(attrs):
        raise InvalidGraph("fc3 is present, and swiglu_fusion means that fc1 contains it")
    if attrs["activation_type"] == b"swiglu" and not is_fused(attrs) and not has_gate:
        raise InvalidGraph("swiglu needs fc3_experts_weights, or swiglu_fusion 1 or 2")
    for layer in x.layers:
        if layer.weights is not None and (layer.bits not in (2, 4, 8) or layer.scales is None):
            raise ShapeError(f"weights of {layer.bits} bits: 2, 4 or 8 and scales are needed")


def _check_shape(g: Scope, what: str, fact: Fact | None, shape: tuple[Size, ...]) -> None:
    if fact is None:
        return
    if fact.rank != len(shape):
        raise ShapeError(f"{what} must have shape {list(shape)}, and is {fact}")
    for have, size in zip(fact.dims, shape, strict=True):
        g.equal(have, size, f"{what} must have shape {list(shape)}, and is {fact}")


def _check_layer(
    g: Scope, name: str, layer: ExpertLayer, sizes: tuple[Size, Size, Size], block: int
) -> None:
    """Check the weights of all experts, [rows, columns] each, with their bias, scales and zeros."""
    experts, rows, columns = sizes
    g.divides(8 // layer.bits, columns, f"rows of {name} weights are not whole bytes")
    _check_shape(
        g, f"{name}_experts_weights", layer.weights, (experts, rows, columns * layer.bits // 8)
    )
    _check_shape(g, f"{name}_experts_bias", layer.bias, (experts, rows))
    per_byte = 8 // layer.bits
    if block:
        g.divides(block, columns, f"block_size does not divide the columns of {name}")
        n = columns // block
        scales: tuple[Size, ...] = (experts, rows, n)
        zeros: tuple[Size, ...] = (experts, rows, (n + (per_byte - 1)) // per_byte)
    else:
        scales, zeros = (experts, rows), (experts, (rows + (per_byte - 1)) // per_byte)
    _check_shape(g, f"{name}_scales", layer.scales, scales)
    _check_shape(g, f"{name}_zero_points", layer.zeros, zeros)


@qmoe.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> Fact:
    x = named_inputs(facts, attrs)
    _check(x, attrs, facts[15:])
    first, second, third = x.layers
    for name, fact, ranks in (
        ("input", x.x, (2, 3)), ("router_probs", x.router, (2,)),
        ("fc1_experts_weights", first.weights, (3,)), ("fc2_experts_weights", second.weights, (3,)),
    ):  # fmt: skip
        if fact.rank not in ranks:
            raise ShapeError(
                f"{name} has rank {fact.rank}, and must have {ranks[-1]}: it is {fact}"
            )
    width, experts = x.x.dims[-1], x.router.dims[1]
    tokens = x.x.dims[0] if x.x.rank == 2 else x.x.dims[0] * x.x.dims[1]
    g.equal(x.router.dims[0], tokens, "router_probs has another number of rows than the input")
    _check_shape(g, "router_weights", x.chosen, (x.router.dims[0], experts))
    g.at_least(experts, attrs["k"], "k is larger than the number of experts")
    if attrs["k"] < 1:
        raise ShapeError(f"k is {attrs['k']}, and must be 1 or more")
    block = attrs["block_size"] or 0
    inner = second.weights.dims[2] * (8 // second.bits)
    rows = inner * 2 if is_fused(attrs) else inner
    _check_layer(g, "fc1", first, (experts, rows, width), block)
    _check_layer(g, "fc2", second, (experts, width, inner), block)
    if third.weights is not None:
        _check_layer(g, "fc3", third, (experts, inner, width), block)
    y: Fact = x.x.plain()
    return y


def _matrix(layer: ExpertLayer, expert: int, block: int) -> Array:
    """Return the weights of one expert, dequantized to float32."""
    q = unpack_codes(layer.weights[expert], layer.bits).astype(np.float32)
    scales = wide(layer.scales[expert]).reshape(q.shape[0], -1)
    zeros: Any = np.float32(1 << layer.bits - 1)
    if layer.zeros is not None:
        zeros = unpack_codes(layer.zeros[expert], layer.bits).astype(np.float32)
        zeros = zeros[:, : scales.shape[1]] if block else zeros[: q.shape[0], None]
        zeros = np.repeat(zeros, block or q.shape[1], axis=1)
    weights: Array = (q - zeros) * np.repeat(scales, block or q.shape[1], axis=1)
    return weights


def _layer(x: Array, layer: ExpertLayer, expert: int, block: int) -> Any:
    y = x @ _matrix(layer, expert, block).T
    return y if layer.bias is None else y + wide(layer.bias[expert])


def _activated(h: Array, gate: Array | None, attrs: dict[str, Any]) -> Any:
    """Return the hidden state; `gate` is the output of fc3."""
    name = attrs["activation_type"]
    if name == b"swiglu":
        linear = gate
        if linear is None:
            interleaved = attrs["swiglu_fusion"] == 1
            h, linear = (h[:, ::2], h[:, 1::2]) if interleaved else np.split(h, 2, axis=1)
        if (limit := attrs["swiglu_limit"]) is not None:
            h, linear = np.minimum(h, np.float32(limit)), np.clip(linear, -limit, limit)
        alpha, beta = np.float32(attrs["activation_alpha"]), np.float32(attrs["activation_beta"])
        return h * sigmoid(alpha * h) * (linear + beta)
    if name == b"relu":
        h = np.maximum(h, 0)
    elif name == b"silu":
        h = h * sigmoid(h)
    elif name == b"gelu":
        root = np.float32(np.sqrt(2 / np.pi))
        h = h * np.float32(0.5) * (1 + np.tanh(root * (h + np.float32(0.044715) * h**3)))
    return h if gate is None else h * gate


def route(x: QMoeInputs, k: int, normalizes: object) -> tuple[Array, Array]:
    """Return each token's top-k experts (the lower index first among equals) and their weights."""
    router = wide(x.router)
    chosen = np.argsort(-router, axis=1, kind="stable")[:, :k]
    if x.chosen is None:
        return chosen, softmax(np.take_along_axis(router, chosen, 1), axis=1)
    shares = np.take_along_axis(wide(x.chosen), chosen, 1)
    if normalizes:
        total = shares.sum(axis=1, keepdims=True)
        shares = shares / np.where(total == 0, 1, total)
    return chosen, shares


@qmoe.reference
def _(*arrays: Any, **attrs: Any) -> Array:
    x = named_inputs(arrays, attrs)
    rows, block = wide(x.x).reshape(-1, x.x.shape[-1]), attrs["block_size"] or 0
    y = np.zeros_like(rows)
    first, second, third = x.layers
    with np.errstate(all="ignore"):
        chosen, shares = route(x, attrs["k"], attrs["normalize_routing_weights"])
        for expert in np.unique(chosen):
            token_rows, slot = np.nonzero(chosen == expert)
            inputs = rows[token_rows]
            gate = None if third.weights is None else _layer(inputs, third, expert, block)
            hidden = _activated(_layer(inputs, first, expert, block), gate, attrs)
            y[token_rows] += shares[token_rows, slot][:, None] * _layer(
                hidden, second, expert, block
            )
    return y.reshape(x.x.shape).astype(x.x.dtype, copy=False)


OPS: Final = (qmoe,)
