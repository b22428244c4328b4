"""MoE: each token goes through the few experts, of many, that its router prefers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape, product
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, filled, wide
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.elementwise.arithmetic import sigmoid


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: Final[dict[bytes, Callable[[Array], Array]]] = {
    b"relu": lambda x: np.maximum(x, 0),
    b"gelu": lambda x: _gelu(x.astype(np.float64)).astype(x.dtype),
    b"silu": lambda x: np.asarray(x * sigmoid(x)),
    b"identity": lambda x: x,
}
SWIGLU: Final = b"swiglu"

moe: Final = Op(
    "MoE",
    1,
    "input:T router_probs:T fc1_experts_weights:T fc1_experts_bias:T? fc2_experts_weights:T "
    "fc2_experts_bias:T? fc3_experts_weights:T? fc3_experts_bias:T?",
    "output:T",
    domain=MICROSOFT,
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
class Inputs:
    """The inputs of a node by name: facts or arrays."""

    x: Any
    router: Any
    first: Any
    first_bias: Any
    second: Any
    second_bias: Any
    third: Any
    third_bias: Any


def check_routes(g: Scope, x: Fact, router: Fact, attrs: dict[str, Any]) -> Shape:
    """Tokens in one or two axes, with one row of the router each; the number of both."""
    if x.rank not in (2, 3):
        raise InvalidGraph(f"input is [tokens, hidden] or [batch, tokens, hidden], and is {x}")
    same_rank(2, router_probs=router)
    tokens, experts = product(x.dims[:-1]), router.dims[1]
    g.equal(router.dims[0], tokens, "router_probs has another number of rows than tokens")
    if attrs["k"] < 1:
        raise InvalidGraph(f"k is {attrs['k']}, and must be 1 or more")
    g.at_least(experts, attrs["k"], "k is larger than the number of experts")
    if attrs["activation_type"] not in (*ACTIVATIONS, SWIGLU):
        known = ", ".join(n.decode() for n in (*ACTIVATIONS, SWIGLU))
        raise InvalidGraph(f"activation_type {attrs['activation_type']!r} is none of {known}")
    return tokens, experts


@moe.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> Fact:
    x = Inputs(*inputs)
    _, experts = check_routes(g, x.x, x.router, attrs)
    hidden = x.x.dims[-1]
    same_rank(3, fc1_experts_weights=x.first, fc2_experts_weights=x.second)
    inner = x.second.dims[2]
    is_fused = attrs["activation_type"] == SWIGLU and attrs["swiglu_fusion"]
    rows = 2 * inner if is_fused else inner
    if attrs["swiglu_fusion"] not in (0, 1, 2):
        raise InvalidGraph(f"swiglu_fusion {attrs['swiglu_fusion']} is none of 0, 1, 2")
    if attrs["activation_type"] == SWIGLU and not is_fused and x.third is None:
        raise InvalidGraph("swiglu that is not fused (swiglu_fusion 0) needs fc3_experts_weights")
    same_dims(g, x.first.dims, (experts, rows, hidden), "fc1_experts_weights")
    same_dims(g, x.second.dims, (experts, hidden, inner), "fc2_experts_weights")
    if x.third is not None:
        same_dims(g, x.third.dims, (experts, inner, hidden), "fc3_experts_weights")
    biases = (x.first_bias, rows), (x.second_bias, hidden), (x.third_bias, inner)
    for i, (bias, size) in enumerate(biases, 1):
        if bias is not None:
            same_dims(g, bias.dims, (experts, size), f"fc{i}_experts_bias")
    y: Fact = x.x.plain()
    return y


@moe.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> Array:
    x = Inputs(*filled(inputs, 8))
    tokens = wide(x.x).reshape(-1, x.x.shape[-1])

    def expert(rows: Array, e: int) -> Array:
        h = _linear(rows, x.first, x.first_bias, e)
        side = None if x.third is None else _linear(rows, x.third, x.third_bias, e)
        return _linear(activated(h, side, attrs), x.second, x.second_bias, e)

    y = mixed(tokens, wide(x.router), expert, attrs)
    return y.reshape(x.x.shape).astype(x.x.dtype)


def _linear(rows: Array, weights: Array, bias: Array | None, e: int) -> Array:
    y = np.matmul(rows, wide(weights[e]).T)
    return np.asarray(y if bias is None else y + wide(bias[e]))


def mixed(
    tokens: Array, router: Array, expert: Callable[[Array, int], Array], attrs: dict[str, Any]
) -> Array:
    """The outputs of each token's k experts, weighed by the softmax of what its router says."""
    count = attrs["k"]
    weights = np.exp(router - router.max(axis=1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=1, keepdims=True)
    chosen = np.argsort(-router, axis=1, kind="stable")[:, :count]
    shares = np.take_along_axis(weights, chosen, axis=1)
    if attrs["normalize_routing_weights"]:
        shares = shares / shares.sum(axis=1, keepdims=True)
    y = np.zeros(tokens.shape, np.float32)
    for e in np.unique(chosen):
        which, slot = np.nonzero(chosen == e)
        y[which] += shares[which, slot, None] * expert(tokens[which], int(e))
    return y


def activated(h: Array, side: Array | None, attrs: dict[str, Any]) -> Array:
    """What the second layer reads: gated by a part of the first, by the third, or by nothing."""
    name = attrs["activation_type"]
    if name != SWIGLU:
        y = ACTIVATIONS[name](h)
        return y if side is None else y * side
    if attrs["swiglu_fusion"] == 1:
        h, side = h[:, ::2], h[:, 1::2]
    elif attrs["swiglu_fusion"] == 2:
        h, side = np.split(h, 2, axis=1)
    assert side is not None
    limit = attrs["swiglu_limit"]
    if limit is not None:
        h, side = np.minimum(h, np.float32(limit)), np.clip(side, -limit, limit)
    alpha, beta = (np.float32(attrs[f"activation_{k}"]) for k in ("alpha", "beta"))
    return np.asarray(h * sigmoid(alpha * h) * (side + beta), np.float32)


OPS: Final = (moe,)
