"""Gradients of recurrent layers.

With the default activations, full sequences and the output of all steps, everything but the
recurrence itself is matmuls over all time steps; other layers have one op for all of it.
"""

from __future__ import annotations

from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.builder import Builder
from sardonyx.ops.gradients import GradientBuilder, gradient


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
        return b.Concat(b.Slice(layer.y, b.ints(1), b.ints(2**62), b.ints(0)), first, axis=0)
    return b.Concat(first, b.Slice(layer.y, b.ints(0), b.ints(-1), b.ints(0)), axis=0)


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


@gradient("RNN", "GRU", "LSTM")
def _(b: GradientBuilder, node: Node, *grads: Value | None) -> list[Value | None]:
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
