"""Replaces the recurrent layers of onnxruntime-training, and their gradients."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import GRADIENT, MICROSOFT
from sardonyx.load.gradient_nodes import vector_jacobian
from sardonyx.load.upgrade import OldNode, Upgrades, number_like
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()
_LAST: Final = 2**63 - 1  # as the end of a Slice: to the end
_DIRECTIONS: Final = {b"forward": 0, b"reverse": 1}


def _is_reverse(node: OldNode) -> int:
    """Return the direction, after a check that the layer is one that kernels save the gates of."""
    direction = node.attr("direction", b"forward")
    names = tuple(name.lower() for name in node.attr("activations") or ())
    is_default = names in ((), (b"sigmoid", b"tanh"), (b"sigmoid", b"tanh", b"tanh"))
    if direction not in _DIRECTIONS or not is_default or node.attr("input_forget", 0):
        raise InvalidGraph(f"{node} has two directions, or other activations than the default ones")
    if node.attr("clip"):
        raise InvalidGraph(f"{node} has a clip, which is not supported")
    return _DIRECTIONS[direction]


@UPGRADES.rule("LSTMTraining", domain=MICROSOFT)
def lstm(b: Builder, node: OldNode) -> Any:
    """The layer, the cells of all steps, and the gates i, o, f and c after their activations."""
    x, w, r, bias, lengths, h, c, peepholes = (node.input(i) for i in range(8))
    if lengths is not None or peepholes is not None:
        raise InvalidGraph(f"{node} has lengths or peepholes, which are not supported")
    _is_reverse(node)
    attrs = {"direction": node.attr("direction", b"forward"), "domain": GRADIENT}
    made = b.node("LSTMTraining", x, w, r, bias, None, h, c, outputs=4, **attrs)
    y, y_h, y_c, saved = made.outputs
    hidden = b.Slice(b.Shape(r), b.ints(2), b.ints(3))
    sizes = b.Concat(b.Mul(hidden, b.ints(4)), hidden, axis=0)
    gates, cells = b.node("Split", saved, sizes, axis=2, outputs=2).outputs
    axis = b.ints(1)
    return y, y_h, y_c, b.Unsqueeze(cells, axis), b.Unsqueeze(gates, axis)


@UPGRADES.rule("LSTMGrad", domain=MICROSOFT)
def lstm_gradient(b: Builder, node: OldNode) -> Any:
    """Backpropagation through time for the gates; sums over all steps for the weights."""
    x, w, r, lengths, h, c, y, cells, gates, dy, dy_h, dy_c = (node.input(i) for i in range(12))
    if lengths is not None:
        raise InvalidGraph(f"{node} has lengths, which are not supported")
    reverse = _is_reverse(node)
    saved = b.Concat(_squeezed(b, gates, 1), _squeezed(b, cells, 1), axis=2)
    grads = (None if d is None else _squeezed(b, d, a) for d, a in ((dy, 1), (dy_h, 0), (dy_c, 0)))
    d_all, d_h, d_c = grads
    states = _squeezed(b, y, 1)
    shape = b.Slice(b.Shape(states), b.ints(1), b.ints(_LAST))
    zeros = b.Expand(number_like(b, 0, x), shape)
    first_h = zeros if h is None else _squeezed(b, h, 0)
    first_c = zeros if c is None else _squeezed(b, c, 0)
    weights = _squeezed(b, r, 0)
    dgates, dh, dc = b.node(
        "LSTMRecurrenceGradient", saved, weights, d_all, d_h, first_c, d_c, outputs=3,
        domain=GRADIENT, reverse=reverse,
    ).outputs  # fmt: skip
    bias = b.ReduceSum(dgates, b.ints(0, 1), keepdims=0)
    sums = (
        b.MatMul(dgates, _squeezed(b, w, 0)),
        _stacked(b, _product(b, dgates, x)),
        _stacked(b, _product(b, dgates, _before(b, states, first_h, reverse))),
        _stacked(b, b.Concat(bias, bias, axis=0)),
    )
    return *sums, _stacked(b, dh), _stacked(b, dc)


def _squeezed(b: Builder, x: Value | None, axis: int) -> Value:
    """Return a value without its axis of directions."""
    return b.Squeeze(x, b.ints(axis))


def _stacked(b: Builder, x: Value) -> Value:
    return b.Unsqueeze(x, b.ints(0))


def _product(b: Builder, dgates: Value, x: Value | None) -> Value:
    """Return the sum over steps and sequences of dgates^T x."""
    return b.Einsum(dgates, x, equation=b"tbg,tbi->gi")


def _before(b: Builder, states: Value, first: Value, reverse: int) -> Value:
    """Return the state before each step."""
    row = b.Unsqueeze(first, b.ints(0))
    if reverse:
        return b.Slice(b.Concat(states, row, axis=0), b.ints(1), b.ints(_LAST), b.ints(0))
    return b.Slice(b.Concat(row, states, axis=0), b.ints(0), b.ints(-1), b.ints(0))


@UPGRADES.rule("GRUTraining", domain=MICROSOFT)
def gru(b: Builder, node: OldNode) -> Any:
    """The layer, and its gates z, r and h after activations, of all steps."""
    y, y_h = b.node("GRU", *node.inputs, outputs=2, **node.attrs).outputs
    return (y, y_h) if node.n_outputs < 3 else (y, y_h, _gru_gates(b, node, y))


def _gru_gates(b: Builder, node: OldNode, y: Value) -> Value:
    """Return the gates, which follow from the states of all steps."""
    x, w, r, bias, lengths, h = (node.input(i) for i in range(6))
    reverse = _is_reverse(node)
    if lengths is not None or bias is None:
        raise InvalidGraph(f"{node} has lengths or no bias, which is not supported")
    states = _squeezed(b, y, 1)
    shape = b.Slice(b.Shape(states), b.ints(1), b.ints(_LAST))
    zeros = b.Expand(number_like(b, 0, x), shape)
    before = _before(b, states, zeros if h is None else _squeezed(b, h, 0), reverse)
    thirds: dict[str, Any] = {"num_outputs": 3, "outputs": 3}
    biases = b.node("Split", _squeezed(b, bias, 0), axis=0, num_outputs=6, outputs=6).outputs
    rows = [b.node("Split", _squeezed(b, v, 0), axis=0, **thirds).outputs for v in (w, r)]
    given = [_affine(b, x, rows[0][i], biases[i]) for i in range(3)]
    z, reset = (
        b.Sigmoid(b.Add(given[i], _affine(b, before, rows[1][i], biases[3 + i]))) for i in range(2)
    )
    if node.attr("linear_before_reset", 0):
        carried = b.Mul(reset, _affine(b, before, rows[1][2], biases[5]))
    else:
        carried = _affine(b, b.Mul(reset, before), rows[1][2], biases[5])
    gates = b.Concat(z, reset, b.Tanh(b.Add(given[2], carried)), axis=2)
    return b.Unsqueeze(gates, b.ints(1))


def _affine(b: Builder, x: Value | None, w: Value, bias: Value) -> Value:
    return b.Add(b.MatMul(x, b.Transpose(w, perm=(1, 0))), bias)


@UPGRADES.rule("GRUGrad", domain=MICROSOFT)
def gru_gradient(b: Builder, node: OldNode) -> Any:
    """The gradient of the layer, which recomputes the gates."""
    x, w, r, bias, lengths, h, _, _, dy, dy_h = (node.input(i) for i in range(10))
    states = b.node("GRU", x, w, r, bias, lengths, h, outputs=2, **node.attrs).outputs
    losses = [b.ReduceSum(b.Mul(s, d), keepdims=0)
              for s, d in zip(states, (dy, dy_h), strict=True) if d is not None]  # fmt: skip
    total = losses[0] if len(losses) == 1 else b.Add(*losses)
    given = [v for v in (x, w, r, bias, h) if v is not None]
    found = dict(
        zip(map(id, given), vector_jacobian(b, total, None, given, (dy, dy_h)), strict=True)
    )
    return tuple(None if v is None else found[id(v)] for v in (x, w, r, bias, h))
