"""Recurrent layers in training, in one direction, time-major, with the default activations.

Backpropagation through time runs step by step: the gradient ops are that loop alone. From the
gradients of the gates, matmuls over all time steps give those of inputs and weights.

LSTMTraining saves the gates for it. GRU and RNN save nothing but their outputs: with all states
known, matmuls over all time steps recompute the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import FLOATS, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.attention.heads import expect_dims, same_rank
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.recurrent import standard
from sardonyx.ops.recurrent.standard import DIRECTIONS, bias_sum

_GIVEN: Final = "R:T dY:T? dY_h:T?"


def _op(kind: str, inputs: str, outputs: str, **attrs: int) -> Op:
    name = f"{kind}RecurrenceGradient"
    types = {"T": FLOATS}
    return Op(name, 1, inputs, outputs, attrs={"reverse": 0, **attrs}, types=types, domain=GRADIENT)


training: Final = Op(
    "LSTMTraining",
    1,
    "X:T W:T R:T B:T? sequence_lens:I? initial_h:T? initial_c:T?",
    "Y:T Y_h:T Y_c:T saved:T",
    attrs=standard.lstm.attrs,
    types={"T": FLOATS, "I": frozenset((I32,))},
    domain=GRADIENT,
)

# saved: [length, batch, 5 * hidden], the gates i, o, f, c after activations, and the cell.
lstm: Final = _op(
    "LSTM", f"saved:T {_GIVEN} initial_c:T? dY_c:T?", "dgates:T dinitial_h:T dinitial_c:T"
)
# The gates from the input and from the state (linear_before_reset = 1): [length, batch, 3 * hidden]
# before activations, biases included; and the state before each step.
gru: Final = _op(
    "GRU", f"gates:T {_GIVEN} state_gates:T states:T", "dgates:T dstate_gates:T dinitial_h:T"
)
# The derivatives of tanh and relu are functions of the layer's output.
rnn: Final = _op("RNN", f"Y:T {_GIVEN}", "dgates:T dinitial_h:T", is_relu=0)


def _infer(
    n_saved: int, n_gates: int, outputs: tuple[int, int], **widths: int | None
) -> Callable[..., tuple[Fact, ...]]:
    """Return the inference of an op: how many outputs are gates and how many states.

    `widths` are the further inputs: [length, batch, width * hidden], or a state if it is None.
    """

    def rule(g: Scope, saved: Fact, r: Fact, *facts: Fact | None, **_: Any) -> tuple[Fact, ...]:
        same_rank(3, saved=saved)
        same_rank(2, R=r)
        length, batch, _width = saved.dims
        hidden = r.dims[1]
        expect_dims(g, (hidden * n_gates, hidden), R=r)
        expect_dims(g, (length, batch, hidden * n_saved), saved=saved)
        expect_dims(g, (length, batch, hidden), dY=facts[0])
        expect_dims(g, (batch, hidden), dY_h=facts[1])
        for (name, width), fact in zip(widths.items(), facts[2:], strict=True):
            per_step = None if width is None else (length, batch, hidden * width)
            expect_dims(g, per_step or (batch, hidden), **{name: fact})
        dense = saved.shaped((length, batch, hidden * n_gates))
        state = saved.shaped((batch, hidden))
        n_dense, n_states = outputs
        return *(dense,) * n_dense, *(state,) * n_states

    return rule


lstm.infer(_infer(5, 4, (1, 2), initial_c=None, dY_c=None))
gru.infer(_infer(3, 3, (2, 1), state_gates=3, states=1))
rnn.infer(_infer(1, 1, (1, 1)))


@training.infer
def _(g: Scope, x: Fact, w: Fact, r: Fact, *facts: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    rule = standard.lstm.infer_rule
    assert rule is not None
    results = rule(g, x, w, r, *facts, None, **attrs)
    if len(DIRECTIONS[attrs["direction"]]) != 1 or attrs["layout"]:
        raise InvalidGraph("LSTMTraining runs in one direction, over inputs of the layout 0")
    return *results, x.shaped((*x.dims[:2], r.dims[2] * 5))


def _steps(length: int, reverse: int | bool) -> list[int]:
    """Return the time steps in the order in which the layer ran them."""
    return list(range(length))[:: -1 if reverse else 1]


def _or_zeros(x: Array | None, like: Array) -> Array:
    return np.zeros_like(like) if x is None else x


@training.reference
@in_wide
def _(x: Array, w: Array, r: Array, b: Any, *operands: Any, **attrs: Any) -> tuple[Array, ...]:
    _, hidden, cell = (None if v is None else v[0] for v in operands)
    (is_reverse,) = DIRECTIONS[attrs["direction"]]
    zero = np.zeros((x.shape[1], r.shape[2]), x.dtype)
    hidden, cell = _or_zeros(hidden, zero), _or_zeros(cell, zero)
    bias = bias_sum(b, 0)
    y, saved = [zero] * len(x), [zero] * len(x)
    for t in _steps(len(x), is_reverse):
        gates = x[t] @ w[0].T + hidden @ r[0].T + (0 if bias is None else bias)
        *sigmoids, c = np.split(gates, 4, axis=-1)
        i, o, f = map(sigmoid, sigmoids)
        c = np.tanh(c)
        cell = f * cell + i * c
        hidden = y[t] = o * np.tanh(cell)
        saved[t] = np.concatenate((i, o, f, c, cell), axis=-1)
    return np.stack(y)[:, None], hidden[None], cell[None], np.stack(saved)


@lstm.reference
@in_wide
def _(saved: Array, r: Array, *operands: Any, reverse: int) -> tuple[Array, ...]:
    dy, dh, initial, dc = operands
    zero = np.zeros((saved.shape[1], r.shape[1]), saved.dtype)
    steps = _steps(len(saved), reverse)
    dgates = np.empty((*saved.shape[:2], len(r)), saved.dtype)
    dh, dc = _or_zeros(dh, zero), _or_zeros(dc, zero)
    for n, t in reversed(list(enumerate(steps))):
        i, o, f, c, cell = np.split(saved[t], 5, axis=-1)
        before = saved[steps[n - 1], :, -r.shape[1] :] if n else _or_zeros(initial, zero)
        out = np.tanh(cell)
        dh = dh if dy is None else dh + dy[t]
        dc = dc + dh * o * (1 - out * out)
        parts = (
            dc * c * i * (1 - i), dh * out * o * (1 - o), dc * before * f * (1 - f),
            dc * i * (1 - c * c),
        )  # fmt: skip
        dgates[t] = np.concatenate(parts, axis=-1)
        dh, dc = dgates[t] @ r, dc * f
    return dgates, dh, dc


@gru.reference
@in_wide
def _(gates: Array, r: Array, *operands: Any, reverse: int) -> tuple[Array, ...]:
    dy, dh, state_gates, states = operands
    dgates, dstate_gates = np.empty_like(gates), np.empty_like(gates)
    dh = _or_zeros(dh, np.zeros((gates.shape[1], r.shape[1]), gates.dtype))
    for t in reversed(_steps(len(gates), reverse)):
        dh = dh if dy is None else dh + dy[t]
        xz, xr, xn = np.split(gates[t], 3, axis=-1)
        hz, hr, hn = np.split(state_gates[t], 3, axis=-1)
        update, reset = sigmoid(xz + hz), sigmoid(xr + hr)
        new = np.tanh(xn + reset * hn)
        dnew = dh * (1 - update) * (1 - new * new)
        dupdate = dh * (states[t] - new) * update * (1 - update)
        dreset = dnew * hn * reset * (1 - reset)
        dgates[t] = np.concatenate((dupdate, dreset, dnew), axis=-1)
        dstate_gates[t] = np.concatenate((dupdate, dreset, dnew * reset), axis=-1)
        dh = dh * update + dstate_gates[t] @ r
    return dgates, dstate_gates, dh


@rnn.reference
@in_wide
def _(
    y: Array, r: Array, dy: Array | None, dh: Any, *, reverse: int, is_relu: int
) -> tuple[Array, ...]:
    dgates = np.empty_like(y)
    dh = _or_zeros(dh, np.zeros(y.shape[1:], y.dtype))
    for t in reversed(_steps(len(y), reverse)):
        dh = dh if dy is None else dh + dy[t]
        dgates[t] = dh * (y[t] > 0 if is_relu else 1 - y[t] * y[t])
        dh = dgates[t] @ r
    return dgates, dh


OPS: Final = (training, rnn, gru, lstm)
