"""Gradients of RNN, GRU and LSTM by backpropagation through time, with a second forward pass."""

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
    activation,
    activation_specs,
    bias_sum,
    checked_lens,
    gru_biases,
    input_gates,
    layer_sizes,
    step_order,
)

# The derivative of each activation at x, with its alpha and beta.
_DERIVATIVES: Final[dict[str, Callable[[Array, float, float], Array]]] = {
    "relu": lambda x, a, b: (x > 0).astype(x.dtype),
    "tanh": lambda x, a, b: 1 - np.tanh(x) ** 2,
    "sigmoid": lambda x, a, b: sigmoid(x) * (1 - sigmoid(x)),
    "affine": lambda x, a, b: np.full_like(x, a),
    "leakyrelu": lambda x, a, b: np.where(x >= 0, 1, a),
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
class DifferentiableActivation:
    """An activation and its derivative."""

    at: Function
    derivative: Function


def _activations(
    attrs: Mapping[str, Any], count: int, directions: int
) -> list[list[DifferentiableActivation]]:
    specs = activation_specs(attrs, count, directions)
    pairs = [DifferentiableActivation(activation(*s), _derivative(*s)) for s in specs]
    return [pairs[i * count : (i + 1) * count] for i in range(directions)]


def _derivative(name: str, alpha: float, beta: float, clip: float) -> Function:
    def run(x: Array) -> Array:
        if clip <= 0:
            return _DERIVATIVES[name](x, alpha, beta).astype(x.dtype, copy=False)
        inner = _DERIVATIVES[name](np.clip(x, -clip, clip), alpha, beta)
        return np.where(np.abs(x) <= clip, inner, 0).astype(x.dtype, copy=False)

    return run


State = tuple[Array, ...]
# One time step: (input gates, previous state) -> (new state, backward function), where the backward
# function maps the gradient of the new state to those of the gates and of the previous state.
Back = Callable[[State], tuple[Array, State]]
Cell = Callable[[Array, State], tuple[State, Back]]


def _rnn_step(r: Array, activations: list[DifferentiableActivation], grads: Grads) -> Cell:
    (f,) = activations

    def step(gates: Array, state: State) -> tuple[State, Back]:
        (h,) = state
        z = gates + h @ r.T

        def back(after: State) -> tuple[Array, State]:
            dz = after[0] * f.derivative(z)
            grads["R"] += dz.T @ h
            return dz, (dz @ r,)

        return (f.at(z),), back

    return step


def _gru_step(
    r: Array, bias: Array, activations: list[DifferentiableActivation], grads: Grads, is_linear: int
) -> Cell:
    n = r.shape[1]
    f, g = activations
    outer, inner = r[: 2 * n], r[2 * n :]

    def step(gates: Array, state: State) -> tuple[State, Back]:
        (h,) = state
        z_gates = gates[:, : 2 * n] + h @ outer.T
        gate_values = f.at(z_gates)
        update, reset = gate_values[:, :n], gate_values[:, n:]
        read = h if is_linear else reset * h
        linear = read @ inner.T + bias
        pre = gates[:, 2 * n :] + (reset * linear if is_linear else linear)
        new = g.at(pre)

        def back(after: State) -> tuple[Array, State]:
            (dh,) = after
            # H_t = (1 - z) * new + z * H_(t-1), with new = g(pre).
            dpre = dh * (1 - update) * g.derivative(pre)
            dlinear = dpre * reset if is_linear else dpre
            dread = dlinear @ inner
            dreset = dpre * linear if is_linear else dread * h
            dz_gates = np.concatenate((dh * (h - new), dreset), axis=1) * f.derivative(z_gates)
            grads["R"][: 2 * n] += dz_gates.T @ h
            grads["R"][2 * n :] += dlinear.T @ read
            grads["hidden"] += dlinear.sum(axis=0)
            before = dh * update + dz_gates @ outer + (dread if is_linear else dread * reset)
            return np.concatenate((dz_gates, dpre), axis=1), (before,)

        return ((1 - update) * new + update * h,), back

    return step


def _lstm_step(
    r: Array, p: Array, activations: list[DifferentiableActivation], grads: Grads, is_coupled: int
) -> Cell:
    n = r.shape[1]
    f, g, h = activations
    p_in, p_out, p_forget = p[:n], p[n : 2 * n], p[2 * n :]  # peepholes

    def step(gates: Array, state: State) -> tuple[State, Back]:
        hidden, cell = state
        z_in, z_out, z_forget, z_cell = np.split(gates + hidden @ r.T, 4, axis=1)
        z_in, z_forget = z_in + p_in * cell, z_forget + p_forget * cell
        input_gate, new = f.at(z_in), g.at(z_cell)
        forget = 1 - input_gate if is_coupled else f.at(z_forget)
        after_cell = forget * cell + input_gate * new
        z_out = z_out + p_out * after_cell
        out, cell_out = f.at(z_out), h.at(after_cell)

        def back(after: State) -> tuple[Array, State]:
            dh, dc = after
            # H_t = o * h(C_t) and C_t = f * C_(t-1) + i * c; the peephole of o reads C_t.
            d_out = dh * cell_out * f.derivative(z_out)
            dc = dc + dh * out * h.derivative(after_cell) + d_out * p_out
            input_grad, forget_grad = dc * new, dc * cell
            if is_coupled:
                # f = 1 - i: the forget gate passes its gradient, negated, to the input gate.
                input_grad, d_forget = input_grad - forget_grad, np.zeros_like(dc)
            else:
                d_forget = forget_grad * f.derivative(z_forget)
            d_in, d_cell = input_grad * f.derivative(z_in), dc * input_gate * g.derivative(z_cell)
            dz = np.concatenate((d_in, d_out, d_forget, d_cell), axis=1)
            grads["R"] += dz.T @ hidden
            touched = (d_in * cell, d_out * after_cell, d_forget * cell)
            grads["P"] += np.concatenate([t.sum(axis=0) for t in touched])
            return dz, (dz @ r, dc * forget + d_in * p_in + d_forget * p_forget)

        return (out * cell_out, after_cell), back

    return step


def _backpropagate(
    gates: Array, state: State, step: Cell, lens: Array | None, ends: tuple[Array, State]
) -> tuple[Array, State]:
    """Run all steps forward, then backward: gradients of the gates and of the initial state."""
    length, batch = gates.shape[:2]
    lives = [None if lens is None else (t < lens)[:, None] for t in range(length)]
    backs: list[Back] = []
    for t, live in enumerate(lives):
        new, back = step(gates[t], state)
        state = new if live is None else _select(live, new, state)
        backs.append(back)
    dy, last = ends
    # The final state of an empty sequence is zeros and has no gradient.
    ran = np.full((batch, 1), length > 0) if lens is None else (lens > 0)[:, None]
    grad = tuple(np.where(ran, s, 0) for s in last)
    result = np.zeros_like(gates)
    # Backward through time: `grad` is the gradient of the state after step t.
    for t in reversed(range(length)):
        live = lives[t]
        # Sequences that have ended get zero gradients, which stay zero through a step.
        input_gate = (grad[0] + dy[t], *grad[1:])
        input_gate = input_gate if live is None else tuple(np.where(live, s, 0) for s in input_gate)
        result[t], before = backs[t](input_gate)
        grad = before if live is None else _select(live, before, grad)
    return result, grad


def _select(live: Array, new: State, old: State) -> State:
    return tuple(np.where(live, a, b) for a, b in zip(new, old, strict=True))


@frozen
class LayerCall:
    """A layer's inputs, time-major, and the gradients of its outputs (0 where absent)."""

    x: Array
    w: Array
    r: Array
    lens: Array | None
    initial: State  # [directions, batch, hidden], like the gradients of the final states
    dy: Array  # [length, directions, batch, hidden]
    last: State
    is_batch_first: bool
    directions: tuple[bool, ...]  # whether each runs in reverse


def _layer_call(
    inputs: tuple[Any, ...], grads: tuple[Any, ...], attrs: Mapping[str, Any]
) -> LayerCall:
    x, w, r, _, lens, *rest = inputs
    states = rest[: len(grads) - 1]  # an LSTM's peepholes follow them
    is_batch_first = bool(attrs["layout"])
    if is_batch_first:
        x = x.swapaxes(0, 1)
    length, batch = x.shape[:2]
    n, hidden = w.shape[0], r.shape[2]

    def state(operands: Array | None) -> Array:
        if operands is None:
            return np.zeros((n, batch, hidden), x.dtype)
        return operands.swapaxes(0, 1) if is_batch_first else operands

    dy = np.zeros((length, n, batch, hidden), x.dtype) if grads[0] is None else grads[0]
    if is_batch_first and grads[0] is not None:
        dy = dy.transpose(1, 2, 0, 3)
    return LayerCall(
        x, w, r, checked_lens(lens, length), tuple(map(state, states)), dy,
        tuple(map(state, grads[1:])), is_batch_first, DIRECTIONS[attrs["direction"]],
    )  # fmt: skip


# For a direction: the bias of its gates, and its step, which accumulates into the weight gradients.
MakeCell = Callable[[int, Grads], tuple[Array | None, Cell]]


def _run(layer: LayerCall, make: MakeCell) -> tuple[list[Grads], Array, State]:
    """Return the gradients of each direction's weights, of the input and of the initial states."""
    x = layer.x
    length, batch, _ = x.shape
    hidden = layer.r.shape[2]
    dx, weight_grads, firsts = np.zeros_like(x), [], []
    for i, is_reverse in enumerate(layer.directions):
        sizes = {"R": layer.r[i].shape, "hidden": (hidden,), "P": (3 * hidden,)}
        grads = {name: np.zeros(size, x.dtype) for name, size in sizes.items()}
        bias, step = make(i, grads)
        ends = np.full(batch, length) if layer.lens is None else layer.lens
        order = step_order(length, ends, is_reverse)
        gates = input_gates(np.take_along_axis(x, order, axis=0), layer.w[i], bias)
        dy = np.take_along_axis(layer.dy[:, i], order, axis=0)
        start, last = (tuple(s[i] for s in states) for states in (layer.initial, layer.last))
        dgates, first = _backpropagate(gates, start, step, layer.lens, (dy, last))
        # Back in the order of the inputs: one matmul each gives dX and dW of all steps.
        rows = np.take_along_axis(dgates, order, axis=0).reshape(length * batch, dgates.shape[-1])
        dx += (rows @ layer.w[i]).reshape(x.shape)
        grads["W"] = rows.T @ x.reshape(length * batch, x.shape[-1])
        grads["gates"] = rows.sum(axis=0)
        weight_grads.append(grads)
        firsts.append(first)
    return weight_grads, dx, tuple(np.stack(s) for s in zip(*firsts, strict=True))


def _outputs(
    layer: LayerCall,
    result: tuple[list[Grads], Array, State],
    hidden_bias: Callable[[Grads], Array],
) -> tuple[Array, ...]:
    """Return the gradients in the order and layout of the inputs."""
    weight_grads, dx, firsts = result
    if layer.is_batch_first:
        dx, firsts = dx.swapaxes(0, 1), tuple(s.swapaxes(0, 1) for s in firsts)
    bias = np.stack([np.concatenate((g["gates"], hidden_bias(g))) for g in weight_grads])
    weights = (np.stack([g[name] for g in weight_grads]) for name in ("W", "R"))
    return (np.ascontiguousarray(dx), *weights, bias, *map(np.ascontiguousarray, firsts))


_TYPES: Final = {"T": FLOATS, "I": frozenset((I32,))}
_INPUTS: Final = "X:T W:T R:T B:T? sequence_lens:I? initial_h:T?"

_GRADS: Final = "dX:T dW:T dR:T dB:T? dinitial_h:T?"


def _layer(name: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    all_attrs = {**ATTRS, "layout": 0, **attrs}
    return Op(name, 1, inputs, outputs, attrs=all_attrs, types=_TYPES, domain=GRADIENT)


rnn: Final = _layer(
    "RNNGradient", f"{_INPUTS} dY:T? dY_h:T?", _GRADS, activations=(b"Tanh", b"Tanh")
)
gru: Final = _layer("GRUGradient", f"{_INPUTS} dY:T? dY_h:T?", _GRADS, linear_before_reset=0)
lstm: Final = _layer(
    "LSTMGradient",
    f"{_INPUTS} initial_c:T? P:T? dY:T? dY_h:T? dY_c:T?",
    f"{_GRADS} dinitial_c:T? dP:T?",
    input_forget=0,
)


def _infer(g: Scope, x: Fact, w: Fact, r: Fact, *_: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    size = layer_sizes(g, x, r, 2, attrs)
    n, hidden = size.directions, size.hidden
    state, peepholes = x.shaped(size.state()), x.shaped((n, hidden * 3))
    bias = x.shaped((n, w.dims[1] * 2))
    return (
        x.without_contents(),
        w.without_contents(),
        r.without_contents(),
        bias,
        state,
        state,
        peepholes,
    )


for _op in (rnn, gru, lstm):
    _op.infer(_infer)


@rnn.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    operands, grads = inputs[:6], inputs[6:]
    layer = _layer_call(operands, grads, attrs)
    activations = _activations(attrs, 1, len(layer.directions))

    def make(i: int, weight_grads: Grads) -> tuple[Array | None, Cell]:
        return bias_sum(operands[3], i), _rnn_step(layer.r[i], activations[i], weight_grads)

    return _outputs(layer, _run(layer, make), lambda weight_grads: weight_grads["gates"])


@gru.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    operands, grads = inputs[:6], inputs[6:]
    layer = _layer_call(operands, grads, attrs)
    activations, n = _activations(attrs, 2, len(layer.directions)), layer.r.shape[2]

    def make(i: int, weight_grads: Grads) -> tuple[Array | None, Cell]:
        bias, hidden = gru_biases(operands[3], i, n, layer.x.dtype)
        is_linear = attrs["linear_before_reset"]
        return bias, _gru_step(layer.r[i], hidden, activations[i], weight_grads, is_linear)

    def hidden_bias(weight_grads: Grads) -> Array:
        return np.concatenate((weight_grads["gates"][: 2 * n], weight_grads["hidden"]))

    return _outputs(layer, _run(layer, make), hidden_bias)


@lstm.reference
@in_wide
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    operands, grads = inputs[:8], inputs[8:]
    layer = _layer_call(operands, grads, attrs)
    activations, n = _activations(attrs, 3, len(layer.directions)), layer.r.shape[2]

    def make(i: int, weight_grads: Grads) -> tuple[Array | None, Cell]:
        peepholes = np.zeros(3 * n, layer.x.dtype) if operands[7] is None else operands[7][i]
        step = _lstm_step(
            layer.r[i], peepholes, activations[i], weight_grads, attrs["input_forget"]
        )
        return bias_sum(operands[3], i), step

    result = _run(layer, make)
    peepholes = np.stack([weight_grads["P"] for weight_grads in result[0]])
    return *_outputs(layer, result, lambda weight_grads: weight_grads["gates"]), peepholes


OPS: Final = (rnn, gru, lstm)
