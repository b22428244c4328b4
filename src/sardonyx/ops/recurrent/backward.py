"""Gradients of recurrent layers: the steps once more, and then backwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import FLOATS, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.recurrent.standard import (
    ATTRS,
    DIRECTIONS,
    activations_of,
    checked_lens,
    filled,
    gates_by,
    layer_of,
    settings_of,
)

# The derivative of each activation at x, with its alpha and beta.
_SLOPES: Final[dict[str, Callable[[Array, float, float], Array]]] = {
    "relu": lambda x, a, b: (x > 0).astype(x.dtype),
    "tanh": lambda x, a, b: 1 - np.tanh(x) ** 2,
    "sigmoid": lambda x, a, b: sigmoid(x) * (1 - sigmoid(x)),
    "affine": lambda x, a, b: np.full_like(x, a),
    "leakyrelu": lambda x, a, b: np.where(x >= 0, 1, a).astype(x.dtype),
    "thresholdedrelu": lambda x, a, b: (x >= a).astype(x.dtype),
    "scaledtanh": lambda x, a, b: a * b * (1 - np.tanh(b * x) ** 2),
    "hardsigmoid": lambda x, a, b: np.where((a * x + b > 0) & (a * x + b < 1), a, 0),
    "elu": lambda x, a, b: np.where(x >= 0, 1, a * np.exp(np.minimum(x, 0))),
    "softsign": lambda x, a, b: 1 / (1 + np.abs(x)) ** 2,
    "softplus": lambda x, a, b: sigmoid(x),
}
Function = Callable[[Array], Array]
Grads = dict[str, Array]


@frozen
class Curve:
    """An activation and its derivative."""

    at: Function
    slope: Function


def _curves(attrs: Mapping[str, Any], count: int, directions: int) -> list[list[Curve]]:
    functions = activations_of(attrs, count, directions)
    settings = settings_of(attrs, count, directions)
    slopes = [_slope(*s) for s in settings]
    return [
        [Curve(f, slopes[i * count + j]) for j, f in enumerate(functions[i])]
        for i in range(directions)
    ]


def _slope(name: str, alpha: float, beta: float, clip: float) -> Function:
    def run(x: Array) -> Array:
        if clip <= 0:
            return _SLOPES[name](x, alpha, beta)
        inner = _SLOPES[name](np.clip(x, -clip, clip), alpha, beta)
        return np.where(np.abs(x) <= clip, inner, 0)

    return run


State = tuple[Array, ...]
# One step: the input's part of the gates and the state before -> the state after, and the way back,
# from the gradient of the state after to those of the gates and of the state before.
Back = Callable[[State], tuple[Array, State]]
Step = Callable[[Array, State], tuple[State, Back]]


def _rnn_step(r: Array, curves: list[Curve], grads: Grads) -> Step:
    (f,) = curves

    def step(gates: Array, state: State) -> tuple[State, Back]:
        (h,) = state
        z = gates + h @ r.T

        def back(after: State) -> tuple[Array, State]:
            dz = after[0] * f.slope(z)
            grads["R"] += dz.T @ h
            return dz, (dz @ r,)

        return (f.at(z),), back

    return step


def _gru_step(r: Array, bias: Array, curves: list[Curve], grads: Grads, is_linear: int) -> Step:
    n = r.shape[1]
    f, g = curves
    outer, inner = r[: 2 * n], r[2 * n :]

    def step(gates: Array, state: State) -> tuple[State, Back]:
        (h,) = state
        both = gates[:, : 2 * n] + h @ outer.T
        opened = f.at(both)
        update, reset = opened[:, :n], opened[:, n:]
        read = h if is_linear else reset * h
        linear = read @ inner.T + bias
        pre = gates[:, 2 * n :] + (reset * linear if is_linear else linear)
        new = g.at(pre)

        def back(after: State) -> tuple[Array, State]:
            (dh,) = after
            dpre = dh * (1 - update) * g.slope(pre)
            dlinear = dpre * reset if is_linear else dpre
            dread = dlinear @ inner
            dreset = dpre * linear if is_linear else dread * h
            dboth = np.concatenate((dh * (h - new), dreset), axis=1) * f.slope(both)
            grads["R"][: 2 * n] += dboth.T @ h
            grads["R"][2 * n :] += dlinear.T @ read
            grads["hidden"] += dlinear.sum(axis=0)
            before = dh * update + dboth @ outer + (dread if is_linear else dread * reset)
            return np.concatenate((dboth, dpre), axis=1), (before,)

        return ((1 - update) * new + update * h,), back

    return step


def _lstm_step(r: Array, peep: Array, curves: list[Curve], grads: Grads, is_coupled: int) -> Step:
    n = r.shape[1]
    f, g, h = curves
    p_in, p_out, p_forget = peep[:n], peep[n : 2 * n], peep[2 * n :]

    def step(gates: Array, state: State) -> tuple[State, Back]:
        hidden, cell = state
        z_in, z_out, z_forget, z_cell = np.split(gates + hidden @ r.T, 4, axis=1)
        z_in, z_forget = z_in + p_in * cell, z_forget + p_forget * cell
        into, new = f.at(z_in), g.at(z_cell)
        kept = 1 - into if is_coupled else f.at(z_forget)
        after_cell = kept * cell + into * new
        z_out = z_out + p_out * after_cell
        out, shown = f.at(z_out), h.at(after_cell)

        def back(after: State) -> tuple[Array, State]:
            dh, dc = after
            d_out = dh * shown * f.slope(z_out)
            dc = dc + dh * out * h.slope(after_cell) + d_out * p_out
            into_grad, kept_grad = dc * new, dc * cell
            if is_coupled:
                into_grad, d_forget = into_grad - kept_grad, np.zeros_like(dc)
            else:
                d_forget = kept_grad * f.slope(z_forget)
            d_in, d_cell = into_grad * f.slope(z_in), dc * into * g.slope(z_cell)
            dz = np.concatenate((d_in, d_out, d_forget, d_cell), axis=1)
            grads["R"] += dz.T @ hidden
            touched = (d_in * cell, d_out * after_cell, d_forget * cell)
            grads["P"] += np.concatenate([t.sum(axis=0) for t in touched])
            return dz, (dz @ r, dc * kept + d_in * p_in + d_forget * p_forget)

        return (out * shown, after_cell), back

    return step


def _walk(
    gates: Array, state: State, step: Step, lens: Array | None, ends: tuple[Array, State]
) -> tuple[Array, State]:
    """All steps there and back: gradients of the gates, and of the state before the first."""
    length, batch = gates.shape[:2]
    lives = [None if lens is None else (t < lens)[:, None] for t in range(length)]
    backs: list[Back] = []
    for t, live in enumerate(lives):
        new, back = step(gates[t], state)
        state = new if live is None else _chosen(live, new, state)
        backs.append(back)
    dy, last = ends
    # A sequence without steps has no last output.
    ran = np.full((batch, 1), length > 0) if lens is None else (lens > 0)[:, None]
    grad = tuple(np.where(ran, s, 0) for s in last)
    found = np.zeros_like(gates)
    for t in reversed(range(length)):
        live = lives[t]
        # Rows past their end take no part: zeros go through a step as zeros.
        into = (grad[0] + dy[t], *grad[1:])
        into = into if live is None else tuple(np.where(live, s, 0) for s in into)
        found[t], before = backs[t](into)
        grad = before if live is None else _chosen(live, before, grad)
    return found, grad


def _chosen(live: Array, new: State, old: State) -> State:
    return tuple(np.where(live, a, b) for a, b in zip(new, old, strict=True))


@frozen
class Layer:
    """A layer as it was called, time first, and the gradients of its outputs (0 where absent)."""

    x: Array
    w: Array
    r: Array
    lens: Array | None
    initial: State  # [directions, batch, hidden], like the gradients of the last states
    dy: Array  # [length, directions, batch, hidden]
    last: State
    is_batch_first: bool
    directions: tuple[bool, ...]  # whether it runs from the end


def _layer(inputs: tuple[Any, ...], grads: tuple[Any, ...], attrs: Mapping[str, Any]) -> Layer:
    x, w, r, _, lens, *rest = inputs
    states = rest[: len(grads) - 1]  # behind them an LSTM has its peepholes
    is_batch_first = bool(attrs["layout"])
    if is_batch_first:
        x = x.swapaxes(0, 1)
    length, batch = x.shape[:2]
    n, hidden = w.shape[0], r.shape[2]

    def state(given: Array | None) -> Array:
        if given is None:
            return np.zeros((n, batch, hidden), x.dtype)
        return given.swapaxes(0, 1) if is_batch_first else given

    dy = np.zeros((length, n, batch, hidden), x.dtype) if grads[0] is None else grads[0]
    if is_batch_first and grads[0] is not None:
        dy = dy.transpose(1, 2, 0, 3)
    return Layer(
        x, w, r, checked_lens(lens, length), tuple(map(state, states)), dy,
        tuple(map(state, grads[1:])), is_batch_first, DIRECTIONS[attrs["direction"]],
    )  # fmt: skip


# Of a direction: the bias of its gates, and its step, which adds to the gradients that it is given.
Make = Callable[[int, Grads], tuple[Array | None, Step]]


def _run(layer: Layer, make: Make) -> tuple[list[Grads], Array, State]:
    """Gradients of each direction's weights, of the input, and of the initial states."""
    x = layer.x
    length, batch, _ = x.shape
    hidden = layer.r.shape[2]
    dx, sums, firsts = np.zeros_like(x), [], []
    for i, is_reverse in enumerate(layer.directions):
        sizes = {"R": layer.r[i].shape, "hidden": (hidden,), "P": (3 * hidden,)}
        grads = {name: np.zeros(size, x.dtype) for name, size in sizes.items()}
        bias, step = make(i, grads)
        order = _order(length, batch, layer.lens, is_reverse)
        gates = gates_by(np.take_along_axis(x, order, axis=0), layer.w[i], bias)
        dy = np.take_along_axis(layer.dy[:, i], order, axis=0)
        start, last = (tuple(s[i] for s in states) for states in (layer.initial, layer.last))
        dgates, first = _walk(gates, start, step, layer.lens, (dy, last))
        rows = np.take_along_axis(dgates, order, axis=0).reshape(length * batch, dgates.shape[-1])
        dx += (rows @ layer.w[i]).reshape(x.shape)
        grads["W"] = rows.T @ x.reshape(length * batch, x.shape[-1])
        grads["gates"] = rows.sum(axis=0)
        sums.append(grads)
        firsts.append(first)
    return sums, dx, tuple(np.stack(s) for s in zip(*firsts, strict=True))


def _order(length: int, batch: int, lens: Array | None, is_reverse: bool) -> Array:
    """Which input each step reads; taken twice, it is the order of the inputs again."""
    steps = np.broadcast_to(np.arange(length)[:, None], (length, batch))
    if is_reverse:
        ends = np.full(batch, length) if lens is None else lens
        steps = np.where(steps < ends, ends - 1 - steps, steps)
    return steps[..., None]


def _outputs(
    layer: Layer, found: tuple[list[Grads], Array, State], hidden_bias: Callable[[Grads], Array]
) -> tuple[Array, ...]:
    """Gradients in the order and layout of the inputs."""
    sums, dx, firsts = found
    if layer.is_batch_first:
        dx, firsts = dx.swapaxes(0, 1), tuple(s.swapaxes(0, 1) for s in firsts)
    bias = np.stack([np.concatenate((g["gates"], hidden_bias(g))) for g in sums])
    weights = (np.stack([g[name] for g in sums]) for name in ("W", "R"))
    return (np.ascontiguousarray(dx), *weights, bias, *map(np.ascontiguousarray, firsts))


def _bias_sum(b: Array | None, i: int) -> Array | None:
    """The bias of the input and that of the state, which always add up."""
    return None if b is None else b[i].reshape(2, -1).sum(axis=0, dtype=b.dtype)


_TYPES: Final = {"T": FLOATS, "I": frozenset((I32,))}
_INPUTS: Final = "X:T W:T R:T B:T? sequence_lens:I? initial_h:T?"
_ATTRS: Final[Mapping[str, Any]] = {**ATTRS, "layout": 0}

rnn: Final = Op(
    "RNNGradient",
    1,
    f"{_INPUTS} dY:T? dY_h:T?",
    "dX:T dW:T dR:T dB:T? dinitial_h:T?",
    attrs={**_ATTRS, "activations": (b"Tanh", b"Tanh")},
    types=_TYPES,
    domain=GRADIENT,
)
gru: Final = Op(
    "GRUGradient",
    1,
    f"{_INPUTS} dY:T? dY_h:T?",
    "dX:T dW:T dR:T dB:T? dinitial_h:T?",
    attrs={**_ATTRS, "linear_before_reset": 0},
    types=_TYPES,
    domain=GRADIENT,
)
lstm: Final = Op(
    "LSTMGradient",
    1,
    f"{_INPUTS} initial_c:T? P:T? dY:T? dY_h:T? dY_c:T?",
    "dX:T dW:T dR:T dB:T? dinitial_h:T? dinitial_c:T? dP:T?",
    attrs={**_ATTRS, "input_forget": 0},
    types=_TYPES,
    domain=GRADIENT,
)


def _infer(g: Scope, x: Fact, w: Fact, r: Fact, *_: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    size = layer_of(g, x, r, 2, attrs)
    n, hidden = size.directions, size.hidden
    state, peepholes = x.shaped(size.state()), x.shaped((n, hidden * 3))
    bias = x.shaped((n, w.dims[1] * 2))
    return x.plain(), w.plain(), r.plain(), bias, state, state, peepholes


for _op in (rnn, gru, lstm):
    _op.infer(_infer)


@rnn.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    given, grads = filled(inputs, 8)[:6], filled(inputs, 8)[6:]
    layer = _layer(given, grads, attrs)
    curves = _curves(attrs, 1, len(layer.directions))

    def make(i: int, sums: Grads) -> tuple[Array | None, Step]:
        return _bias_sum(given[3], i), _rnn_step(layer.r[i], curves[i], sums)

    return _outputs(layer, _run(layer, make), lambda sums: sums["gates"])


@gru.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    given, grads = filled(inputs, 8)[:6], filled(inputs, 8)[6:]
    layer = _layer(given, grads, attrs)
    curves, n = _curves(attrs, 2, len(layer.directions)), layer.r.shape[2]

    def make(i: int, sums: Grads) -> tuple[Array | None, Step]:
        own = np.zeros(6 * n, layer.x.dtype) if given[3] is None else given[3][i]
        # The state's bias of the hidden gate may be reset, so it stays apart.
        bias = own[: 3 * n] + np.concatenate((own[3 * n : 5 * n], np.zeros(n, own.dtype)))
        step = _gru_step(layer.r[i], own[5 * n :], curves[i], sums, attrs["linear_before_reset"])
        return bias, step

    def hidden_bias(sums: Grads) -> Array:
        return np.concatenate((sums["gates"][: 2 * n], sums["hidden"]))

    return _outputs(layer, _run(layer, make), hidden_bias)


@lstm.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    given, grads = filled(inputs, 11)[:8], filled(inputs, 11)[8:]
    layer = _layer(given, grads, attrs)
    curves, n = _curves(attrs, 3, len(layer.directions)), layer.r.shape[2]

    def make(i: int, sums: Grads) -> tuple[Array | None, Step]:
        peepholes = np.zeros(3 * n, layer.x.dtype) if given[7] is None else given[7][i]
        step = _lstm_step(layer.r[i], peepholes, curves[i], sums, attrs["input_forget"])
        return _bias_sum(given[3], i), step

    found = _run(layer, make)
    peepholes = np.stack([sums["P"] for sums in found[0]])
    return *_outputs(layer, found, lambda sums: sums["gates"]), peepholes


OPS: Final = (rnn, gru, lstm)
