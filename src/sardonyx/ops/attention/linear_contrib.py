"""LinearAttention of com.microsoft."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import BF16, F16, F32, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, required
from sardonyx.ops.arrays import Array, filled
from sardonyx.ops.attention.heads import same_dims
from sardonyx.ops.attention.linear import (
    UNGROUPED,
    check_update_rule,
    recurrence,
    recurrence_shapes,
)

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


def window_axis(window: int) -> tuple[int, ...]:
    """Return the leading axis of a state: (window,), or () without a window."""
    if not 0 <= window <= MAX_WINDOW:
        raise InvalidGraph(f"state_window is {window}, and must be within [0, {MAX_WINDOW}]")
    return (window,) if window else ()


@linear.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    query, state, decay, beta = inputs[0], *inputs[3:]
    assert query is not None
    check_update_rule(attrs["update_rule"], decay, beta)
    q_heads, kv_heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    if q_heads > 0 and kv_heads > 0:
        fewer, more = sorted((q_heads, kv_heads))
        g.divides(fewer, more, UNGROUPED)
    y, state_dims = recurrence_shapes(g, inputs, attrs)
    state_shape = (*window_axis(attrs["state_window"]), *state_dims)
    if state is not None:
        same_dims(g, state.dims, state_shape, "past_state")
    return query.shaped(y), Fact(query.dtype if state is None else state.dtype, state_shape)


@linear.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, Array]:
    arrays: list[Any] = list(filled(inputs, 6))
    window, past = attrs["state_window"], arrays[3]
    if window and past is not None:
        arrays[3] = past[-1]
    y, states = recurrence(arrays, attrs, window or 1)
    state_dtype = y.dtype if past is None else past.dtype
    return y, stack_states(states, window).astype(state_dtype)


def stack_states(states: list[Array], window: int) -> Array:
    """Stack states along a first axis, zero-padded at the front; without a window, the last one."""
    if not window:
        return states[-1]
    empty = [np.zeros_like(states[0])] * (window - len(states))
    return np.stack((*empty, *states))


OPS: Final = (linear,)
