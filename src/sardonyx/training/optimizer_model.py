"""Reads an optimizer model: which algorithm it is, and its numbers.

onnxruntime accepts models with one optimizer node and these inputs only. Usually there is no other
node, or one that clips the gradients; then one native pass is the whole model.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx._native import GraphRecord, NodeRecord
from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.graph.op import MICROSOFT
from sardonyx.load import read_record
from sardonyx.load.source import read_model
from sardonyx.ops.optimizer.native_step import NO_CLIPPING

ADAMW: Final = "AdamWOptimizer"
SGD: Final = "SGDOptimizerV2"
CLIP: Final = "InplaceClipGradNorm"

_INPUTS: Final = ("learning_rate", "step", "params", "gradients")
_MOMENTS: Final = {
    ADAMW: ("first_order_moments", "second_order_moments"),
    SGD: ("first_order_moments",),
}
# What the nodes read; G is the gradients, clipped or not.
_OPERANDS: Final = {
    ADAMW: ["learning_rate", "step", "params", "G", *_MOMENTS[ADAMW]],
    SGD: ["learning_rate", "params", "G"],
}
_DEFAULTS: Final = {
    ADAMW: {
        "alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 1e-2, "adam_mode": 0,
        "correct_bias": 1,
    },
    SGD: {},
}  # fmt: skip


@frozen
class OptimizerModel:
    """The optimizer of a model: its op, attributes, and the norm that clips gradients."""

    op: str
    attributes: dict[str, float]
    max_norm: float = NO_CLIPPING
    is_plain: bool = True  # there are no nodes but the optimizer and one that clips gradients

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs: rate, step, parameters, gradients, then moments."""
        return (*_INPUTS, *_MOMENTS[self.op])

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the moments of each parameter, as checkpoints have them."""
        return tuple(f"momentum{i}" for i in range(len(_MOMENTS[self.op])))


def read_optimizer_model(source: Any) -> OptimizerModel:
    """Return the optimizer of a model; an error for models that are none."""
    data = read_model(source)
    name = data.source.name
    graph = read_record(data).graph
    assert graph is not None
    nodes = graph.nodes
    optimizers = [n for n in nodes if n.domain == MICROSOFT and n.op_type in _OPERANDS]
    if len(optimizers) != 1:
        raise InvalidArgument(
            f"{name} is not an optimizer model: it has {len(optimizers)} nodes of "
            f"{ADAMW} or {SGD}, not one"
        )
    node = optimizers[0]
    _check_inputs(graph, node, name)
    attributes = {**_DEFAULTS[node.op_type], **_attributes(node)}
    if attributes.get("adam_mode", 0) not in (0, 1):
        raise InvalidArgument(f"adam_mode of {name} is {attributes['adam_mode']}, not 0 or 1")
    if len(node.outputs) > 1:
        raise NotImplemented(
            f"{node.op_type} of {name} has outputs with the updated tensors",
            hint="leave them out: parameters and moments are updated in place",
        )
    others = [n for n in nodes if n is not node]
    max_norm, gradients = NO_CLIPPING, "gradients"
    if len(others) == 1 and _clips(others[0]):
        max_norm, gradients = float(_attributes(others[0])["max_norm"]), others[0].outputs[0]
    expected = [gradients if operand == "G" else operand for operand in _OPERANDS[node.op_type]]
    is_plain = len(others) == (gradients != "gradients") and list(node.inputs) == expected
    return OptimizerModel(node.op_type, attributes, max_norm, is_plain)


def _clips(node: NodeRecord) -> bool:
    """Return whether a node clips the gradients that are fed by their norm."""
    is_clip = node.domain == MICROSOFT and node.op_type == CLIP
    has_attributes = {a.name for a in node.attributes} == {"max_norm"}
    return is_clip and has_attributes and list(node.inputs) == ["gradients"]


def _check_inputs(graph: GraphRecord, node: NodeRecord, name: str) -> None:
    expected = [*_INPUTS, *_MOMENTS[node.op_type]]
    actual = [info.name for info in graph.inputs]
    if actual != expected:
        raise InvalidArgument(
            f"{name} is not a model of {node.op_type}: its inputs are {', '.join(actual)}, "
            f"and should be {', '.join(expected)}"
        )


def _attributes(node: NodeRecord) -> dict[str, Any]:
    return {a.name: a.value for a in node.attributes if isinstance(a.value, int | float)}
