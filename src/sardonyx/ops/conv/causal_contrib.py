"""CausalConvWithState of com.microsoft: dilations, channels-last, and a window of states."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import product
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import same_dims
from sardonyx.ops.attention.linear import stack_states, window_axis
from sardonyx.ops.conv.standard import causal, decompose_causal, infer_causal

causal_conv: Final = Op(
    "CausalConvWithState",
    1,
    "input:T weight:T bias:T? past_state:T?",
    "output:T present_state:T",
    domain=MICROSOFT,
    attrs={"activation": b"none", "channels_last": 0, "dilation": 1, "ndim": 1, "state_window": 0},
    types=causal.types,
)


@causal_conv.infer
def _(
    g: Scope, x: Fact, w: Fact, b: Fact | None, past: Fact | None, **attrs: Any
) -> tuple[Fact, Fact]:
    if attrs["ndim"] != 1:
        raise InvalidGraph(f"ndim is {attrs['ndim']}, and only 1 is supported")
    if attrs["dilation"] < 1:
        raise InvalidGraph(f"dilation must be at least 1, got {attrs['dilation']}")
    if x.rank < 3 or w.rank != 3:
        raise InvalidGraph(f"input and weight must be sequences of channels, got {x} and {w}")
    batch, *rest = x.dims
    length, channels = (rest[0], rest[1:]) if attrs["channels_last"] else (rest[-1], rest[:-1])
    infer_causal(
        g,
        Fact(x.dtype, (batch, product(channels), length)),
        w,
        b,
        None,
        activation=attrs["activation"],
    )
    if not attrs["channels_last"] and x.rank != 3:
        raise InvalidGraph(f"input must be [batch, channels, length], got {x}")
    state_length = (w.dims[2] - 1) * attrs["dilation"]
    dims = (state_length, *channels) if attrs["channels_last"] else (*channels, state_length)
    state = (*window_axis(attrs["state_window"]), batch, *dims)
    if past is not None:
        same_dims(g, past.dims, state, "past_state")
    return x.without_contents(), x.shaped(state)


@causal_conv.reference
def _(
    x: Array, w: Array, b: Array | None = None, past: Array | None = None, **attrs: Any
) -> tuple[Array, Array]:
    # A dilated kernel is one with zeros between its taps.
    dilated = np.zeros((*w.shape[:2], (w.shape[2] - 1) * attrs["dilation"] + 1), w.dtype)
    dilated[..., :: attrs["dilation"]] = w
    state_length, window = dilated.shape[2] - 1, attrs["state_window"]
    last_state = None if past is None else past[-1] if window else past
    state = x if last_state is None else last_state
    channels = x.shape[2:] if attrs["channels_last"] else x.shape[1:2]
    if attrs["channels_last"]:
        flat = math.prod(channels)
        x, state = (v.reshape(*v.shape[:2], flat).swapaxes(1, 2) for v in (x, state))
    if last_state is None:
        state = np.zeros((*x.shape[:2], state_length), x.dtype)
    y, _ = causal.run((x, dilated, b, state), {"activation": attrs["activation"]})
    state = np.concatenate((state, x), axis=2)
    length = x.shape[2]
    # The states after the last `state_window` inputs; without a window, only the last.
    ends = range(max(length - (window or 1) + 1, min(length, 1)), length + 1)
    states = [state[:, :, end : end + state_length] for end in ends]
    if attrs["channels_last"]:
        y = y.swapaxes(1, 2).reshape(y.shape[0], length, *channels)
        states = [s.swapaxes(1, 2).reshape(s.shape[0], state_length, *channels) for s in states]
    return np.ascontiguousarray(y), np.ascontiguousarray(stack_states(states, window))


causal_conv.decompose(decompose_causal)


OPS: Final = (causal_conv,)
