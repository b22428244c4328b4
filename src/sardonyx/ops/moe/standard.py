"""MoE of com.microsoft: a mixture of experts with top-k routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size, product
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import expect_dims, same_rank
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.inference import check_choice
from sardonyx.ops.softmax.standard import softmax


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: Final[dict[bytes, Callable[[Array], Array]]] = {
    b"relu": lambda x: np.maximum(x, 0),
    b"gelu": lambda x: _gelu(x.astype(np.float64)).astype(x.dtype),
    b"silu": lambda x: np.asarray(x * sigmoid(x)),
    b"identity": lambda x: x,
}
SWIGLU: Final = b"swiglu"

moe: Final = contrib_op(
    "MoE",
    "input:T router_probs:T fc1_experts_weights:T fc1_experts_bias:T? fc2_experts_weights:T "
    "fc2_experts_bias:T? fc3_experts_weights:T? fc3_experts_bias:T?",
    "output:T",
    attrs={
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "activation_type": b"relu",
        "k": 1,
        "normalize_routing_weights": 0,
        "swiglu_fusion": 0,
        "swiglu_limit": optional("float"),
        "use_sparse_mixer": 0,
    },
    types={"T": frozenset((F32, F16, BF16))},
)


@frozen
class MoeInputs:
    """The inputs of a MoE by name: facts or arrays."""

    x: Any
    router: Any
    first: Any
    first_bias: Any
    second: Any
    second_bias: Any
    third: Any
    third_bias: Any


def check_router(g: Scope, x: Fact, router: Fact, attrs: dict[str, Any]) -> Size:
    """Check input, router and attributes; return the number of experts."""
    if x.rank not in (2, 3):
        raise InvalidGraph(f"input must be [tokens, hidden] or [batch, tokens, hidden], got {x}")
    same_rank(2, router_probs=router)
    tokens, experts = product(x.dims[:-1]), router.dims[1]
    g.equal(router.dims[0], tokens, "router_probs has another number of rows than tokens")
    if attrs["k"] < 1:
        raise InvalidGraph(f"k must be at least 1, got {attrs['k']}")
    g.at_least(experts, attrs["k"], "k is larger than the number of experts")
    activations = (*ACTIVATIONS, SWIGLU)
    check_choice("activation_type", attrs["activation_type"], activations, InvalidGraph)
    if attrs["swiglu_fusion"] not in (0, 1, 2):
        raise InvalidGraph(f"swiglu_fusion must be one of 0, 1, 2, got {attrs['swiglu_fusion']}")
    return experts


def is_fused(attrs: dict[str, Any]) -> bool:
    """Whether fc1 computes both operands of a SwiGLU."""
    return attrs["activation_type"] == SWIGLU and bool(attrs["swiglu_fusion"])


@moe.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> Any:
    x = MoeInputs(*inputs)
    experts, hidden = check_router(g, x.x, x.router, attrs), x.x.dims[-1]
    same_rank(3, fc1_experts_weights=x.first, fc2_experts_weights=x.second)
    inner = x.second.dims[2]
    rows = 2 * inner if is_fused(attrs) else inner
    if attrs["activation_type"] == SWIGLU and not is_fused(attrs) and x.third is None:
        raise InvalidGraph("swiglu that is not fused (swiglu_fusion 0) needs fc3_experts_weights")
    expect_dims(g, (experts, rows, hidden), fc1_experts_weights=x.first)
    expect_dims(g, (experts, hidden, inner), fc2_experts_weights=x.second)
    expect_dims(g, (experts, inner, hidden), fc3_experts_weights=x.third)
    expect_dims(g, (experts, rows), fc1_experts_bias=x.first_bias)
    expect_dims(g, (experts, hidden), fc2_experts_bias=x.second_bias)
    expect_dims(g, (experts, inner), fc3_experts_bias=x.third_bias)
    return x.x.without_contents()


@moe.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> Array:
    x = MoeInputs(*inputs)
    tokens = wide(x.x).reshape(-1, x.x.shape[-1])

    def expert(rows: Array, e: int) -> Array:
        h = _linear(rows, x.first, x.first_bias, e)
        gate = None if x.third is None else _linear(rows, x.third, x.third_bias, e)
        return _linear(activated(h, gate, attrs), x.second, x.second_bias, e)

    chosen, shares = _routed(wide(x.router), attrs)
    return mix_experts(tokens, chosen, shares, expert).reshape(x.x.shape).astype(x.x.dtype)


def _linear(rows: Array, weights: Array, bias: Array | None, e: int) -> Array:
    y = np.matmul(rows, wide(weights[e]).T)
    return np.asarray(y if bias is None else y + wide(bias[e]))


def top_experts(router: Array, k: int) -> Array:
    """Return each token's top-k experts; the lower index first among equals."""
    return np.argsort(-router, axis=1, kind="stable")[:, :k]


def _routed(router: Array, attrs: dict[str, Any]) -> tuple[Array, Array]:
    """Return each token's top-k experts, and their shares of the softmax over all experts."""
    chosen = top_experts(router, attrs["k"])
    shares = np.take_along_axis(softmax(router, axis=1), chosen, axis=1)
    if attrs["normalize_routing_weights"]:
        shares = shares / shares.sum(axis=1, keepdims=True)
    return chosen, shares


def mix_experts(
    tokens: Array, chosen: Array, shares: Array, expert: Callable[[Array, int], Array]
) -> Array:
    """Mix the outputs of each token's chosen experts, weighted by their shares."""
    y = np.zeros(tokens.shape, np.float32)
    # Tokens are grouped by expert: one matmul per expert and layer.
    for e in np.unique(chosen):
        token_rows, slot = np.nonzero(chosen == e)
        y[token_rows] += shares[token_rows, slot, None] * expert(tokens[token_rows], int(e))
    return y


def activated(h: Array, gate: Array | None, attrs: dict[str, Any]) -> Array:
    """Return the hidden state: gated by half of fc1 (fused SwiGLU), by fc3, or not at all."""
    name = attrs["activation_type"]
    if name != SWIGLU:
        y = ACTIVATIONS[name](h)
        return y if gate is None else y * gate
    # 1: gate and linear columns are interleaved; 2: they are the two halves.
    if attrs["swiglu_fusion"] == 1:
        h, gate = h[:, ::2], h[:, 1::2]
    elif attrs["swiglu_fusion"] == 2:
        h, gate = np.split(h, 2, axis=1)
    assert gate is not None
    # The operand of the sigmoid is clamped from above only, as in gpt-oss.
    limit = attrs["swiglu_limit"]
    if limit is not None:
        h, gate = np.minimum(h, np.float32(limit)), np.clip(gate, -limit, limit)
    alpha, beta = (np.float32(attrs[f"activation_{k}"]) for k in ("alpha", "beta"))
    return np.asarray(h * sigmoid(alpha * h) * (gate + beta), np.float32)


OPS: Final = (moe,)
