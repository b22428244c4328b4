"""LinearAttention of ONNX and com.microsoft: a state matrix per head, updated token by token.

S_t = exp(g_t) S_(t-1) + k_t (b_t (v_t - k_t^T S_(t-1)))^T, o_t = scale * q_t S_t: the gated delta
rule; without decay the delta rule, without beta (gated) linear attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BF16, F16, F32, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, contrib_op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import expect_dims, heads_of, same_dims, same_rank
from sardonyx.ops.inference import check_choice

_TYPES: Final = frozenset((F16, BF16, F32))
MAX_WINDOW: Final = 8  # onnxruntime's limit
# update rule -> (needs decay, needs beta)
_RULES: Final = {
    b"linear": (False, False),
    b"gated": (True, False),
    b"delta": (False, True),
    b"gated_delta": (True, True),
}

_ATTRS: Final[dict[str, Any]] = {
    "chunk_size": 64,
    "kv_num_heads": required("int"),
    "q_num_heads": required("int"),
    "scale": 0.0,
    "update_rule": b"gated_delta",
}
_INPUTS: Final = "query:T key:T value:T past_state:S? decay:T? beta:T?"
_OUTPUTS: Final = "output:T present_state:S"

linear: Final = Op(
    "LinearAttention",
    27,
    _INPUTS,
    _OUTPUTS,
    attrs=_ATTRS,
    types={"T": _TYPES, "S": _TYPES},
    unranked=True,
)
contrib_linear: Final = contrib_op(
    "LinearAttention",
    _INPUTS,
    _OUTPUTS,
    attrs={**_ATTRS, "state_window": 0},  # states after the last tokens, for speculative decoding
    types={"T": _TYPES, "S": _TYPES},
)


@contrib_linear.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"S": types.get("S", types["T"])}


def window_axis(window: int) -> tuple[int, ...]:
    """Return the leading axis of a state: (window,), or () without a window."""
    if not 0 <= window <= MAX_WINDOW:
        raise InvalidGraph(f"state_window must be within [0, {MAX_WINDOW}], got {window}")
    return (window,) if window else ()


@linear.infer
@contrib_linear.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> tuple[Fact, ...]:
    query, _, _, state, decay, beta = inputs
    check_update_rule(attrs["update_rule"], decay, beta)
    state_dtype = query.dtype if state is None else state.dtype
    if any(f is not None and f.shape is None for f in inputs):
        return Fact(query.dtype, None), Fact(state_dtype, None)
    q_heads, kv_heads, window = (
        attrs["q_num_heads"],
        attrs["kv_num_heads"],
        attrs.get("state_window"),
    )
    if q_heads > 0 and kv_heads > 0:
        # Only com.microsoft allows more key-value heads than query heads.
        fewer, more = (kv_heads, q_heads) if window is None else sorted((q_heads, kv_heads))
        g.divides(fewer, more, "kv_num_heads does not divide q_num_heads")
    y, state_dims = recurrence_shapes(g, inputs, attrs)
    state_shape = (*window_axis(window or 0), *state_dims)
    expect_dims(g, state_shape, past_state=state)
    return Fact(query.dtype, y), Fact(state_dtype, state_shape)


def recurrence_shapes(
    g: Scope, inputs: Sequence[Any], attrs: dict[str, Any]
) -> tuple[Shape, Shape]:
    """Return the shapes of the output and of a state."""
    query, key, value, _, decay, beta = inputs
    same_rank(3, query=query, key=key, value=value)
    batch, length, _ = query.dims
    q_heads, d_k = heads_of(g, attrs["q_num_heads"], query.dims[2], "q_num_heads")
    kv_heads, k_size = heads_of(g, attrs["kv_num_heads"], key.dims[2], "kv_num_heads")
    _, d_v = heads_of(g, attrs["kv_num_heads"], value.dims[2], "kv_num_heads")
    d_k = g.equal(d_k, k_size, "heads of query and key have different sizes")
    for name, fact in (("key", key), ("value", value), ("decay", decay), ("beta", beta)):
        if fact is not None:
            same_rank(3, **{name: fact})
            same_dims(g, fact.dims, (batch, length, fact.dims[-1]), name)
    if beta is not None:
        g.equal_or_one(beta.dims[2], kv_heads, "beta has another number of heads")
    if decay is not None:
        g.divides(kv_heads, decay.dims[2], "decay has another number of heads")
    return (batch, length, d_v * max(q_heads, kv_heads)), (batch, kv_heads, d_k, d_v)


def check_update_rule(rule: bytes, decay: Fact | None, beta: Fact | None) -> None:
    check_choice("update_rule", rule, _RULES, InvalidGraph)
    for name, fact, is_required in zip(("decay", "beta"), (decay, beta), _RULES[rule], strict=True):
        if is_required != (fact is not None):
            verb = "needs" if is_required else "has no input"
            raise InvalidGraph(f"update_rule {rule.decode()} {verb} {name}")


@linear.reference
@contrib_linear.reference
@np.errstate(all="ignore")
def _(*inputs: Any, **attrs: Any) -> tuple[Array, Array]:
    query, key, value, past, decay, beta = inputs
    window = attrs.get("state_window", 0)
    newest = past[-1] if window and past is not None else past
    y, states = recurrence((query, key, value, newest, decay, beta), attrs, window or 1)
    return y, stack_states(states, window).astype(y.dtype if past is None else past.dtype)


def stack_states(states: list[Array], window: int) -> Array:
    """Stack states along a first axis, zero-padded at the front; without a window, the last one."""
    if not window:
        return states[-1]
    empty = [np.zeros_like(states[0])] * (window - len(states))
    return np.stack((*empty, *states))


def recurrence(
    inputs: Sequence[Any], attrs: dict[str, Any], window: int
) -> tuple[Array, list[Array]]:
    """Return the output, and the states after each of the last `window` tokens, oldest first.

    Query heads may be a multiple of the key-value heads (grouped-query), or the other way round.
    """
    query, key, value, past, decay, beta = inputs
    heads = attrs["kv_num_heads"]
    groups = max(attrs["q_num_heads"] // heads, 1)
    k, v = _by_token(key, heads), _by_token(value, heads)
    # Inverse grouping: several key-value heads per query head.
    q = np.repeat(_by_token(query, attrs["q_num_heads"]), heads // attrs["q_num_heads"] or 1, 2)
    length, batch, _, d_k = q.shape
    q = q.reshape(length, batch, heads, groups, d_k)
    gate = None if decay is None else np.exp(_decay(decay, heads, d_k))[..., None]
    rate = None if beta is None else _by_token(beta, beta.shape[2])
    if past is None:
        state = np.zeros((batch, heads, d_k, v.shape[3]), np.float32)
    else:
        state = past.astype(np.float32)
    out = np.empty((length, batch, heads, groups, v.shape[3]), np.float32)
    # Without tokens the state stays as it is.
    states = [state] if not length else []
    for t in range(length):
        if gate is not None:
            state = state * gate[t]
        write = v[t]
        if rate is not None:  # delta rule: write the error of the state's prediction for this key
            predicted = np.matmul(k[t][:, :, None, :], state)[:, :, 0]
            write = rate[t] * (write - predicted)
        state = state + k[t][..., None] * write[:, :, None, :]
        out[t] = np.matmul(q[t], state)
        states = [*states, state][-window:]
    out *= np.float32(attrs["scale"] or 1 / math.sqrt(d_k or 1))
    y = out.transpose(1, 0, 2, 3, 4).reshape(batch, length, heads * groups * v.shape[3])
    return y.astype(query.dtype), states


def _by_token(x: Array, heads: int) -> Array:
    """[batch, length, heads * size] as float32 [length, batch, heads, size]."""
    batch, length, hidden = x.shape
    split = x.reshape(batch, length, heads, hidden // heads)
    return split.transpose(1, 0, 2, 3).astype(np.float32)


def _decay(decay: Array, heads: int, d_k: int) -> Array:
    """Return the log decay, per key feature or per head."""
    if decay.shape[2] not in (heads, heads * d_k):
        raise InvalidArgument(
            f"decay has {decay.shape[2]} numbers per token: one for each of {heads} heads, "
            f"or {heads * d_k} for each of their features"
        )
    return _by_token(decay, heads)


OPS: Final = (linear, contrib_linear)
