"""RNN, GRU and LSTM: forward, reverse and bidirectional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import FLOATS, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.attention.heads import expect_dims
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.inference import check_choice

Activation = Callable[[Array], Array]
State = tuple[Array, ...]
Cell = Callable[[Array, State], State]  # one time step: gates of the input, state -> new state
Matmul = Callable[[Array], Array]

DIRECTIONS: Final = {b"forward": (False,), b"reverse": (True,), b"bidirectional": (False, True)}

# Activation -> function of x (and alpha, beta), and the defaults of alpha and beta (None: unused).
_ACTIVATIONS: Final[dict[str, tuple[Callable[..., Array], float | None, float | None]]] = {
    "relu": (lambda x: np.maximum(x, 0), None, None),
    "tanh": (np.tanh, None, None),
    "sigmoid": (sigmoid, None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a: np.where(x >= 0, x, a * x), 0.01, None),
    "thresholdedrelu": (lambda x, a: np.where(x >= a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 1.0, None),
    "softsign": (lambda x: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x: np.logaddexp(x, 0), None, None),
}

_TYPES: Final = {"T": FLOATS, "T1": frozenset((I32,))}
ATTRS: Final[Mapping[str, Any]] = {
    "activation_alpha": optional("floats"),
    "activation_beta": optional("floats"),
    "activations": optional("strings"),
    "clip": optional("float"),
    "direction": b"forward",
    "hidden_size": optional("int"),
}
_INPUTS: Final = "X:T W:T R:T B:T? sequence_lens:T1? initial_h:T?"

_LSTM_INPUTS: Final = f"{_INPUTS} initial_c:T? P:T?"


def _layer(name: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    return Op(name, 22, inputs, outputs, attrs={**ATTRS, "layout": 0, **attrs}, types=_TYPES)


rnn: Final = _layer("RNN", _INPUTS, "Y:T? Y_h:T?", activations=(b"Tanh", b"Tanh"))
gru: Final = _layer("GRU", _INPUTS, "Y:T? Y_h:T?", linear_before_reset=0)
lstm: Final = _layer("LSTM", _LSTM_INPUTS, "Y:T? Y_h:T? Y_c:T?", input_forget=0)


@frozen
class LayerSizes:
    """The sizes of a recurrent layer."""

    length: Size
    batch: Size
    inputs: Size
    hidden: Size
    directions: int
    is_batch_first: bool

    def state(self) -> Shape:
        """The shape of an initial or final state."""
        if self.is_batch_first:
            return self.batch, self.directions, self.hidden
        return self.directions, self.batch, self.hidden

    def output(self) -> Shape:
        """The shape of the outputs of all steps."""
        if self.is_batch_first:
            return self.batch, self.length, self.directions, self.hidden
        return self.length, self.directions, self.batch, self.hidden


def layer_sizes(
    g: Scope, x: Fact, r: Fact, hidden_axis: int, attrs: Mapping[str, Any]
) -> LayerSizes:
    """Check the attributes, and return a layer's sizes from its input and recurrent weights."""
    if x.rank != 3 or r.rank != 3:
        raise InvalidGraph(f"X and R must have rank 3, got {x} and {r}")
    direction, layout = attrs["direction"], attrs.get("layout", 0)
    check_choice("direction", direction, DIRECTIONS, InvalidGraph)
    if layout not in (0, 1):
        raise InvalidGraph(f"layout must be 0 or 1, got {layout}")
    hidden = r.dims[hidden_axis]
    if attrs["hidden_size"] is not None:
        hidden = g.equal(attrs["hidden_size"], hidden, "hidden_size is not that of R")
    length, batch, inputs = x.dims
    if layout:
        length, batch = batch, length
    return LayerSizes(length, batch, inputs, hidden, len(DIRECTIONS[direction]), bool(layout))


def _infer(gates: int, functions: int) -> Callable[..., tuple[Fact, ...]]:
    """Return the inference rule of a layer with so many gates, and activations per direction."""

    def rule(g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
        x, w, r, b, lens, initial_h, *more = facts
        size = layer_sizes(g, x, r, 2, attrs)
        n, hidden = size.directions, size.hidden
        activations_of(attrs, functions, n)
        expect_dims(g, (n, hidden * gates, size.inputs), W=w)
        expect_dims(g, (n, hidden * gates, hidden), R=r)
        expect_dims(g, (n, hidden * gates * 2), B=b)
        expect_dims(g, (size.batch,), sequence_lens=lens)
        initial_c, peepholes = more or (None, None)  # of an LSTM
        expect_dims(g, size.state(), initial_h=initial_h, initial_c=initial_c)
        expect_dims(g, (n, hidden * 3), P=peepholes)
        last = x.shaped(size.state())
        return x.shaped(size.output()), last, last

    return rule


rnn.infer(_infer(1, 1))
gru.infer(_infer(3, 2))
lstm.infer(_infer(4, 3))


def activations_of(
    attrs: Mapping[str, Any], count: int, directions: int
) -> list[tuple[Activation, ...]]:
    """Return the activation functions of each direction."""
    activations = [activation(*f) for f in activation_specs(attrs, count, directions)]
    return [tuple(activations[i * count : (i + 1) * count]) for i in range(directions)]


def activation_specs(
    attrs: Mapping[str, Any], count: int, directions: int
) -> list[tuple[str, float, float, float]]:
    """Return (name, alpha, beta, clip) of each activation.

    Values of activation_alpha and activation_beta go, in order, to the activations that use them;
    the others get 0. A clip of 0 means none.
    """
    names = attrs["activations"] or (b"Sigmoid", b"Tanh", b"Tanh")[:count] * directions
    if len(names) < count * directions:
        raise InvalidGraph(
            f"activations names {len(names)} functions, and the layer needs {count * directions}: "
            f"{count} for each of {directions} directions"
        )
    # Shared queues: each activation that has a parameter takes the next value.
    alphas, betas = list(attrs["activation_alpha"] or ()), list(attrs["activation_beta"] or ())
    activations = []
    for i, name in enumerate(names[: count * directions]):
        # The inputs of gate activations are clipped; that of the cell state (the third) is not.
        clip = (attrs["clip"] or 0.0) if i % count < 2 else 0.0
        key = name.decode("utf-8", "replace").lower()
        if key not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise InvalidGraph(f"an activation must be one of {known}, got {key}")
        alpha, beta = (
            0.0 if default is None else values.pop(0) if values else default
            for default, values in zip(_ACTIVATIONS[key][1:], (alphas, betas), strict=True)
        )
        activations.append((key, alpha, beta, max(clip, 0.0)))
    return activations


def activation(name: str, alpha: float, beta: float, clip: float) -> Activation:
    """Return an activation function of an array."""
    function, *defaults = _ACTIVATIONS[name]
    values = zip((alpha, beta), defaults, strict=True)
    parameters = [v for v, default in values if default is not None]

    def run(x: Array) -> Array:
        if clip > 0:
            x = np.clip(x, -clip, clip)
        return function(x, *parameters).astype(x.dtype, copy=False)

    return run


def projection(weights: Array) -> Matmul:
    """Return the function x -> x weights^T."""
    return lambda x: np.matmul(x, weights.T)


def input_gates(x: Array, weights: Array, bias: Array | None) -> Array:
    """Return the input's contribution to the gates of all steps, in one matrix product."""
    length, batch, inputs = x.shape
    gates: Array = np.matmul(x.reshape(length * batch, inputs), weights.T)
    if bias is not None:
        gates = gates + bias
    return gates.reshape(length, batch, weights.shape[0])


def rnn_step(project: Matmul, f: Activation) -> Cell:
    """H_t = f(X_t + H_(t-1) R^T), where X_t is the input's contribution, biases included."""
    return lambda gates, state: (f(gates + project(state[0])),)


def gru_step(
    r: Array, hidden_bias: Array, functions: tuple[Activation, ...], *, is_linear: int
) -> Cell:
    """Gates z, r, h; `is_linear` (linear_before_reset) applies r after the recurrent matmul."""
    n = r.shape[1]
    f, g = functions
    gates_project, hidden_project = projection(r[: 2 * n]), projection(r[2 * n :])
    project = projection(r)

    def step(gates: Array, state: State) -> State:
        (h,) = state
        recurrent = project(h) if is_linear else gates_project(h)
        update_reset = f(gates[..., : 2 * n] + recurrent[..., : 2 * n])
        update, reset = update_reset[..., :n], update_reset[..., n:]
        # The reset gate is applied after (linear_before_reset) or before the recurrent product.
        if is_linear:
            new = reset * (recurrent[..., 2 * n :] + hidden_bias)
        else:
            new = hidden_project(reset * h) + hidden_bias
        new = g(gates[..., 2 * n :] + new)
        return ((1 - update) * new + update * h,)

    return step


def lstm_step(
    project: Matmul, peepholes: Array | None, functions: tuple[Activation, ...], *, is_coupled: int
) -> Cell:
    """Gates i, o, f, c; `is_coupled` (input_forget) sets f = 1 - i."""
    f, g, h = functions

    def step(gates: Array, state: State) -> State:
        hidden, cell = state
        n = cell.shape[-1]
        i, o, forget, c = np.split(gates + project(hidden), 4, axis=-1)
        if peepholes is not None:
            i = i + peepholes[:n] * cell
            forget = forget + peepholes[2 * n :] * cell
        i = f(i)
        forget = 1 - i if is_coupled else f(forget)
        cell = forget * cell + i * g(c)
        if peepholes is not None:
            o = o + peepholes[n : 2 * n] * cell
        return f(o) * h(cell), cell

    return step


def run_direction(
    gates: Array, state: State, step: Cell, lens: Array | None, *, is_reverse: bool
) -> tuple[Array, State]:
    """Run all steps of one direction: outputs [length, batch, hidden], and the final states."""
    length, batch = gates.shape[:2]
    ends = np.full(batch, length) if lens is None else lens
    # A permutation of the inputs makes every direction a forward loop over t.
    order = step_order(length, ends, is_reverse)
    gates = np.take_along_axis(gates, order, axis=0)
    out = np.zeros((length, batch, state[0].shape[-1]), gates.dtype)
    for t in range(int(ends.max(initial=0))):
        is_live = (t < ends)[:, None]
        new = step(gates[t], state)
        state = tuple(np.where(is_live, a, b) for a, b in zip(new, state, strict=True))
        out[t] = np.where(is_live, state[0], 0)
    # The final state of an empty sequence is zeros, as in onnxruntime.
    ran = (ends > 0)[:, None]
    final = tuple(np.where(ran, s, 0).astype(s.dtype) for s in state)
    return np.take_along_axis(out, order, axis=0), final


def step_order(length: int, ends: Array, is_reverse: bool) -> Array:
    """Return which input each step reads: a permutation that is its own inverse.

    In reverse, each sequence is reversed within its own length.
    """
    steps = np.broadcast_to(np.arange(length)[:, None], (length, len(ends)))
    return (np.where(steps < ends, ends - 1 - steps, steps) if is_reverse else steps)[..., None]


def checked_lens(lens: Array | None, length: int) -> Array | None:
    """Return checked sequence lengths, or None where all sequences have the full length."""
    if lens is None or bool(np.all(lens == length)):
        return None
    wrong = lens[(lens < 0) | (lens > length)]
    if wrong.size:
        raise InvalidArgument(f"sequence_lens holds {int(wrong[0])}, outside [0, {length}]")
    return lens.astype(np.int64)


@frozen
class LayerInputs:
    """A layer's inputs except weights; states are [directions, batch, hidden] or None."""

    x: Array
    lens: Array | None
    initial: tuple[Array | None, ...]
    hidden: int


def run_layer(
    feed: LayerInputs, make: Callable[[int, Array], tuple[Array, Cell]], attrs: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Run every direction. `make` returns the input gates of a direction, and its step."""
    x, initial = feed.x, feed.initial
    is_batch_first = attrs.get("layout", 0)
    if is_batch_first:
        x = x.swapaxes(0, 1)
        initial = tuple(None if s is None else s.swapaxes(0, 1) for s in initial)
    lens = checked_lens(feed.lens, x.shape[0])
    outs, ends = [], []
    for i, is_reverse in enumerate(DIRECTIONS[attrs["direction"]]):
        gates, step = make(i, x)
        zero = np.zeros((x.shape[1], feed.hidden), gates.dtype)
        state = tuple(zero if s is None else s[i] for s in initial)
        out, end = run_direction(gates, state, step, lens, is_reverse=is_reverse)
        outs.append(out)
        ends.append(end)
    y = np.stack(outs, axis=1)
    # layout 1 puts the batch first: [batch, directions, hidden].
    last = tuple(np.stack(s, axis=1 if is_batch_first else 0) for s in zip(*ends, strict=True))
    return y.transpose(2, 0, 1, 3) if is_batch_first else y, *last


def bias_sum(b: Array | None, i: int) -> Array | None:
    """Return the sum of a direction's input bias and recurrent bias."""
    return None if b is None else b[i].reshape(2, -1).sum(axis=0, dtype=b.dtype)


def gru_biases(b: Array | None, i: int, n: int, dtype: Any) -> tuple[Array, Array]:
    """Return a direction's bias of the gates, and the recurrent bias of the hidden gate.

    The latter is separate, since linear_before_reset multiplies it by the reset gate.
    """
    both = np.zeros(6 * n, dtype) if b is None else b[i]
    gates = both[: 3 * n] + np.concatenate((both[3 * n : 5 * n], np.zeros(n, dtype)))
    return gates, both[5 * n :]


@rnn.reference
@in_wide
def _(*inputs: Array, **attrs: Any) -> tuple[Array, ...]:
    x, w, r, b, lens, initial_h = inputs
    functions = activations_of(attrs, 1, w.shape[0])

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        return input_gates(x, w[i], bias_sum(b, i)), rnn_step(projection(r[i]), *functions[i])

    return run_layer(LayerInputs(x, lens, (initial_h,), r.shape[2]), make, attrs)


@gru.reference
@in_wide
def _(*inputs: Array, **attrs: Any) -> tuple[Array, ...]:
    x, w, r, b, lens, initial_h = inputs
    functions = activations_of(attrs, 2, w.shape[0])
    n = r.shape[2]

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        bias, hidden_bias = gru_biases(b, i, n, x.dtype)
        step = gru_step(r[i], hidden_bias, functions[i], is_linear=attrs["linear_before_reset"])
        return input_gates(x, w[i], bias), step

    return run_layer(LayerInputs(x, lens, (initial_h,), n), make, attrs)


@lstm.reference
@in_wide
def _(*inputs: Array, **attrs: Any) -> tuple[Array, ...]:
    x, w, r, b, lens, initial_h, initial_c, p = inputs
    functions = activations_of(attrs, 3, w.shape[0])

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        peepholes = None if p is None else p[i]
        step = lstm_step(
            projection(r[i]), peepholes, functions[i], is_coupled=attrs["input_forget"]
        )
        return input_gates(x, w[i], bias_sum(b, i)), step

    return run_layer(LayerInputs(x, lens, (initial_h, initial_c), r.shape[2]), make, attrs)


OPS: Final = (rnn, gru, lstm)
