"""Gradients of recurrent layers.

With the default activations, full sequences and the output of all steps, everything but the
recurrence itself is matmuls over all time steps; other layers have one op for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, in_training, need
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, saved
from sardonyx.ops.recurrent.standard import DIRECTIONS


@frozen
class TrainedLayer:
    """One direction of a layer after its forward pass; time-major, weights [gates * hidden, k]."""

    kind: str  # RNN, GRU (linear_before_reset) or LSTM
    x: Value
    y: Value  # [length, batch, hidden]
    saved: Value | None  # by LSTMTraining
    w: Value
    r: Value
    bias: Value | None
    state_bias: Value | None
    initial_h: Value  # [batch, hidden]
    initial_c: Value | None
    is_reverse: bool
    is_relu: bool = False  # of RNN; else tanh


@frozen
class LayerGradients:
    """The gradients of a direction's inputs, in their shapes."""

    x: Value
    w: Value
    r: Value
    bias: Value
    state_bias: Value
    initial_h: Value
    initial_c: Value | None


def layer_gradients(
    b: Builder, layer: TrainedLayer, dy: Value | None, dy_h: Value | None, dy_c: Value | None
) -> LayerGradients:
    """Return the gradients of one direction."""
    before = _states_before(b, layer)
    options: dict[str, Any] = {"domain": GRADIENT, "reverse": int(layer.is_reverse)}
    name = f"{layer.kind}RecurrenceGradient"
    first_c = None
    if layer.kind == "RNN":
        node = b.node(
            name, layer.y, layer.r, dy, dy_h, is_relu=int(layer.is_relu), outputs=2, **options
        )
        dgates, first_h = node.outputs
        dstate_gates = dgates
    elif layer.kind == "LSTM":
        node = b.node(
            name, layer.saved, layer.r, dy, dy_h, layer.initial_c, dy_c, outputs=3, **options
        )  # fmt: skip
        dgates, first_h, first_c = node.outputs
        dstate_gates = dgates
    else:
        gates = _projected(b, layer.x, layer.w, layer.bias)
        state_gates = _projected(b, before, layer.r, layer.state_bias)
        node = b.node(
            name, gates, layer.r, dy, dy_h, state_gates, before, outputs=3, **options
        )  # fmt: skip
        dgates, dstate_gates, first_h = node.outputs
    bias = b.ReduceSum(dgates, b.ints(0, 1), keepdims=0)
    return LayerGradients(
        b.MatMul(dgates, layer.w),
        _weight_gradient(b, dgates, layer.x),
        _weight_gradient(b, dstate_gates, before),
        bias,
        bias if dstate_gates is dgates else b.ReduceSum(dstate_gates, b.ints(0, 1), keepdims=0),
        first_h,
        first_c,
    )


def _states_before(b: Builder, layer: TrainedLayer) -> Value:
    """Return the state before each step: the outputs, shifted by one step."""
    first = b.Unsqueeze(layer.initial_h, b.ints(0))
    if layer.is_reverse:
        return b.Slice(b.Concat(layer.y, first, axis=0), b.ints(1), b.ints(2**62), b.ints(0))
    return b.Slice(b.Concat(first, layer.y, axis=0), b.ints(0), b.ints(-1), b.ints(0))


def _projected(b: Builder, x: Value, w: Value, bias: Value | None) -> Value:
    gates = b.MatMul(x, b.Transpose(w, perm=(1, 0)))
    return gates if bias is None else b.Add(gates, bias)


def _weight_gradient(b: Builder, dgates: Value, x: Value) -> Value:
    """Return the sum over steps and sequences of dgates^T x."""
    rows, inputs = (b.Reshape(v, b.Concat(b.ints(-1), _last(b, v), axis=0)) for v in (dgates, x))
    return b.MatMul(b.Transpose(rows, perm=(1, 0)), inputs)


def _last(b: Builder, x: Value) -> Value:
    """Return the size of the last axis, as a vector of one."""
    size = x.tensor.dims[-1]
    return b.ints(size) if isinstance(size, int) else b.Slice(b.Shape(x), b.ints(2), b.ints(3))


def _is_dense(node: Node) -> bool:
    """Whether full sequences pass a layer of the default activations, as `TrainedLayer` has it."""
    attrs, kind = node.attrs, node.op.name
    x, r = input_of(node, 0).tensor, input_of(node, 2).tensor
    if attrs["layout"] or attrs["clip"] is not None or x.dtype is not F32:
        return False
    if optional_input(node, 4) is not None or optional_input(node, 7) is not None or not r.static:
        return False
    names = tuple(name.lower() for name in attrs["activations"] or ())
    if kind == "RNN":
        return len(set(names)) == 1 and names[0] in (b"tanh", b"relu")
    if kind == "GRU" and not attrs["linear_before_reset"]:
        return False
    if kind == "LSTM" and attrs["input_forget"]:
        return False
    defaults = (b"sigmoid", b"tanh", b"tanh")[: 2 if kind == "GRU" else 3]
    return not names or names == defaults * (len(names) // len(defaults))


def _squeezed(b: Builder, x: Value, direction: int, axis: int) -> Value:
    """Return one direction of a value, without its axis of directions."""
    if x.tensor.dims[axis] != 1:
        x = b.Slice(x, b.ints(direction), b.ints(direction + 1), b.ints(axis))
    return b.Squeeze(x, b.ints(axis))


@decompose("LSTM", when=in_training)
def _(b: Builder, node: Node) -> Outputs:
    """A layer per direction, which saves the gates for its gradient."""
    need(_is_dense(node), "sequences of several lengths, or other activations")
    x, *weights = (optional_input(node, i) for i in range(7))
    made, axes = [], b.ints(0)
    directions = DIRECTIONS[node.attrs["direction"]]
    for i, is_reverse in enumerate(directions):
        own = [
            v if v is None or len(directions) == 1 else b.Slice(v, b.ints(i), b.ints(i + 1), axes)
            for v in weights
        ]
        attrs = {**node.attrs, "direction": b"reverse" if is_reverse else b"forward"}
        made.append(b.node("LSTMTraining", x, *own, outputs=4, domain=GRADIENT, **attrs))
    if len(made) == 1:
        return made[0].outputs[:3]
    columns = zip(*(m.outputs[:3] for m in made), strict=True)
    return tuple(b.Concat(*v, axis=a) for v, a in zip(columns, (1, 0, 0), strict=True))


@gradient("LSTMTraining", domain=GRADIENT)
def _(b: GradientBuilder, node: Node, *grads: Value | None) -> list[Value | None]:
    return _dense_gradients(b, node, "LSTM", grads[:3])


def _dense_gradients(
    b: GradientBuilder, node: Node, kind: str, grads: Sequence[Value | None]
) -> list[Value | None]:
    """Return the gradients of a layer's inputs: by direction, those of X added."""
    found = []
    dy, *last = (*grads, None, None)[:3]
    for i, is_reverse in enumerate(DIRECTIONS[node.attrs["direction"]]):
        layer = _trained(b, node, kind, i, is_reverse)
        own = [None if d is None else _squeezed(b, d, i, int(d is dy)) for d in (dy, *last)]
        found.append(layer_gradients(b, layer, *own))
    dx = found[0].x if len(found) == 1 else b.Add(found[0].x, found[1].x)
    bias = [b.Concat(g.bias, g.state_bias, axis=0) for g in found]
    cells = [g.initial_c for g in found if g.initial_c is not None]
    stacked = ([g.w for g in found], [g.r for g in found], bias, [g.initial_h for g in found])
    dw, dr, db, dh = (_stacked(b, values) for values in stacked)
    return [dx, dw, dr, db, None, dh, _stacked(b, cells) if cells else None, None]


def _stacked(b: Builder, values: Sequence[Value]) -> Value:
    rows = [b.Unsqueeze(v, b.ints(0)) for v in values]
    return rows[0] if len(rows) == 1 else b.Concat(*rows, axis=0)


def _trained(
    b: GradientBuilder, node: Node, kind: str, direction: int, is_reverse: bool
) -> TrainedLayer:
    """Return one direction of a node."""
    x, bias, h, c = (optional_input(node, i) for i in (0, 3, 5, 6))
    w, r = (_squeezed(b, input_of(node, i), direction, 0) for i in (1, 2))
    y, y_h = (_squeezed(b, saved(b, node, i), direction, 1 - i) for i in range(2))
    assert x is not None
    n_rows = r.tensor.static[0] if r.tensor.static else 0
    parts: list[Value | None] = [None, None]
    if bias is not None:
        both = _squeezed(b, bias, direction, 0)
        bounds = ((0, n_rows), (n_rows, 2 * n_rows))
        parts = [b.Slice(both, b.ints(begin), b.ints(end)) for begin, end in bounds]
    initial_h, initial_c = (
        b.zeros(y_h) if v is None else _squeezed(b, v, direction, 0) for v in (h, c)
    )
    is_lstm = kind == "LSTM"
    return TrainedLayer(
        kind=kind, x=x, y=y, saved=node.outputs[3] if is_lstm else None, w=w, r=r, bias=parts[0],
        state_bias=parts[1], initial_h=initial_h, initial_c=initial_c if is_lstm else None,
        is_reverse=is_reverse,
        is_relu=kind == "RNN" and node.attrs["activations"][0].lower() == b"relu",
    )  # fmt: skip


@gradient("RNN", "GRU", "LSTM")
def _(b: GradientBuilder, node: Node, *grads: Value | None) -> list[Value | None]:
    if node.op.name != "LSTM" and _is_dense(node):
        return _dense_gradients(b, node, node.op.name, grads)
    n_inputs, n_outputs = len(node.op.inputs), len(node.op.outputs)
    inputs = (*node.inputs, *(None,) * (n_inputs - len(node.inputs)))
    output_grads = (*grads, *(None,) * (n_outputs - len(grads)))
    grad_node = b.node(
        f"{node.op.name}Gradient",
        *inputs,
        *output_grads,
        outputs=n_inputs - 1,
        domain=GRADIENT,
        **node.attrs,
    )
    # sequence_lens has no gradient.
    x, w, r, bias, *states = grad_node.outputs
    return [x, w, r, bias, None, *states]
