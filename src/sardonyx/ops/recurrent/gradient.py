"""Gradients of recurrent layers: one internal op each (backpropagation through time)."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.gradients import GradientBuilder, gradient


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
