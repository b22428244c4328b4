"""What stands for attention in models of linear cost: states that tokens write and read."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, required
from sardonyx.ops.attention.heads import same_dims
from sardonyx.ops.attention.linear import SHARED_OUT, check_rule, recurrence, recurrence_shapes
from sardonyx.ops.conv import causal
from sardonyx.ops.rules import Array, filled

_FLOATS: Final = frozenset((F32, F16, BF16))
MAX_WINDOW: Final = 8

linear: Final = Op(
    "LinearAttention",
    1,
    "query:T key:T value:T past_state:S? decay:T? beta:T?",
    "output:T present_state:S",
    domain=MICROSOFT,
    attrs={
        "chunk_size": 64,
        "kv_num_heads": required("int"),
        "q_num_heads": required("int"),
        "scale": 0.0,
        "state_window": 0,
        "update_rule": b"gated_delta",
    },
    types={"T": _FLOATS, "S": _FLOATS},
)


@linear.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"S": types.get("S", types["T"])}


def check_window(window: int) -> tuple[int, ...]:
    """The axis that a window puts before a state: none, or how many states there are."""
    if not 0 <= window <= MAX_WINDOW:
        raise InvalidGraph(f"state_window is {window}, and must lie within [0, {MAX_WINDOW}]")
    return (window,) if window else ()


@linear.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    query, state, decay, beta = inputs[0], *inputs[3:]
    assert query is not None
    check_rule(attrs["update_rule"], decay, beta)
    q_heads, kv_heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    if q_heads > 0 and kv_heads > 0:
        few, many = sorted((q_heads, kv_heads))
        g.divides(few, many, SHARED_OUT)
    y, one = recurrence_shapes(g, inputs, attrs)
    wanted = (*check_window(attrs["state_window"]), *one)
    if state is not None:
        same_dims(g, state.dims, wanted, "past_state")
    return query.shaped(y), Fact(query.dtype if state is None else state.dtype, wanted)


@linear.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, Array]:
    arrays: list[Any] = list(filled(inputs, 6))
    window, past = attrs["state_window"], arrays[3]
    if window and past is not None:
        arrays[3] = past[-1]
    y, states = recurrence(arrays, attrs, window or 1)
    kept = y.dtype if past is None else past.dtype
    return y, _windowed(states, window).astype(kept)


def _windowed(states: list[Array], window: int) -> Array:
    """States along a first axis, with zeros before those that there are; or the last alone."""
    if not window:
        return states[-1]
    empty = [np.zeros_like(states[0])] * (window - len(states))
    return np.stack((*empty, *states))


causal_conv: Final = Op(
    "CausalConvWithState",
    1,
    "input:T weight:T bias:T? past_state:T?",
    "output:T present_state:T",
    domain=MICROSOFT,
    attrs={
        "activation": b"none",
        "channels_last": 0,
        "dilation": 1,
        "ndim": 1,
        "state_window": 0,
    },
    types={"T": _FLOATS},
)


@causal_conv.infer
def _(
    g: Scope, x: Fact, w: Fact, b: Fact | None, past: Fact | None, **attrs: Any
) -> tuple[Fact, Fact]:
    if attrs["ndim"] != 1:
        raise InvalidGraph(f"ndim is {attrs['ndim']}: only sequences (1) have a state described")
    if attrs["dilation"] < 1:
        raise InvalidGraph(f"dilation is {attrs['dilation']}, and must be 1 or more")
    if x.rank < 3 or w.rank != 3:
        raise InvalidGraph(f"input and weight are sequences of channels, and are {x} and {w}")
    batch, *rest = x.dims
    length, channels = (rest[0], rest[1:]) if attrs["channels_last"] else (rest[-1], rest[:-1])
    count: Size = 1
    for size in channels:
        count = count * size
    rule = causal.infer_rule
    assert rule is not None
    rule(g, Fact(x.dtype, (batch, count, length)), w, b, None, activation=attrs["activation"])
    if not attrs["channels_last"] and x.rank != 3:
        raise InvalidGraph(f"input is [batch, channels, length], and is {x}")
    kept = (w.dims[2] - 1) * attrs["dilation"]
    one = (batch, kept, *channels) if attrs["channels_last"] else (batch, *channels, kept)
    state = (*check_window(attrs["state_window"]), *one)
    if past is not None:
        same_dims(g, past.dims, state, "past_state")
    return x.plain(), x.shaped(state)


@causal_conv.reference
def _(
    x: Array, w: Array, b: Array | None = None, past: Array | None = None, **attrs: Any
) -> tuple[Array, Array]:
    spread = np.zeros((*w.shape[:2], (w.shape[2] - 1) * attrs["dilation"] + 1), w.dtype)
    spread[..., :: attrs["dilation"]] = w
    kept, window = spread.shape[2] - 1, attrs["state_window"]
    before = None if past is None else past[-1] if window else past
    line = x if before is None else before
    channels = x.shape[2:] if attrs["channels_last"] else x.shape[1:2]
    if attrs["channels_last"]:
        flat = math.prod(channels)
        x, line = (v.reshape(*v.shape[:2], flat).swapaxes(1, 2) for v in (x, line))
    if before is None:
        line = np.zeros((*x.shape[:2], kept), x.dtype)
    rule = causal.reference_rule
    assert rule is not None
    y, _ = rule(x, spread, b, line, activation=attrs["activation"])
    line = np.concatenate((line, x), axis=2)
    length = x.shape[2]
    ends = range(max(length - (window or 1) + 1, min(length, 1)), length + 1)
    states = [line[:, :, end : end + kept] for end in ends]
    if attrs["channels_last"]:
        y = y.swapaxes(1, 2).reshape(y.shape[0], length, *channels)
        states = [s.swapaxes(1, 2).reshape(s.shape[0], kept, *channels) for s in states]
    return np.ascontiguousarray(y), np.ascontiguousarray(_windowed(states, window))


OPS: Final = (linear, causal_conv)
