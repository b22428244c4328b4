"""Nodes as an older opset writes them, for models that are saved in a given opset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sardonyx.base.protobuf_wire import Message
from sardonyx.base.records import frozen
from sardonyx.graph.dim import least
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Attrs, Node, Value, optional_input
from sardonyx.graph.op import ONNX
from sardonyx.save.node import ints_attribute

_REDUCTIONS: Final = frozenset((
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSumSquare",
))  # fmt: skip
_CHANGED: Final = 18  # the opset in which these ops, and Split, changed; Reshape did before
_TYPES: Final = frozenset(("f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64"))


@frozen
class OlderForm:
    """Inputs and attributes of a node as they are written; before `_CHANGED`, opset 13 has them."""

    inputs: Sequence[Value | None]
    attrs: Attrs
    extra: Sequence[Message] = ()  # attributes that the newest version does not have


def older_form(node: Node, attrs: Attrs, opset: int) -> OlderForm | None:
    """Return the form of a node in an opset that is too old for its own; None if it has none.

    `attrs` are the attributes that differ from their defaults. No opset is 0.
    """
    if not 0 < opset < _CHANGED or node.op.domain != ONNX:
        return None
    if node.op.name in _REDUCTIONS:
        return _reduction(node, attrs)
    if node.op.name == "Reshape":
        return _reshape(node, attrs)
    return _equal_split(node, attrs) if node.op.name == "Split" else None


def _reduction(node: Node, attrs: Attrs) -> OlderForm | None:
    """Axes are an attribute."""
    x, axes = node.inputs[0], optional_input(node, 1)
    is_typed = x is not None and isinstance(x.fact, Fact) and x.fact.dtype.name in _TYPES
    if not is_typed or "noop_with_empty_axes" in attrs:
        return None
    if axes is None:
        return OlderForm([x], attrs)
    if axes.const is None:
        return None
    chosen = np.asarray(axes.const.read()).reshape(-1).tolist()
    return OlderForm([x], attrs, [ints_attribute("axes", chosen)] if chosen else [])


def _equal_split(node: Node, attrs: Attrs) -> OlderForm | None:
    """Equal parts are as many as there are outputs."""
    x = node.inputs[0]
    shape = x.fact.shape if x is not None and isinstance(x.fact, Fact) else None
    count = attrs.get("num_outputs")
    if count is None or shape is None or count != len(node.outputs):
        return None
    size = shape[node.attrs["axis"]]
    if not isinstance(size, int) or size % count:
        return None
    return OlderForm(node.inputs, {k: v for k, v in attrs.items() if k != "num_outputs"})


def _reshape(node: Node, attrs: Attrs) -> OlderForm | None:
    """Without zeros in the shape, what they mean does not matter."""
    shape = node.inputs[1]
    sizes = shape.fact.sym if shape is not None and isinstance(shape.fact, Fact) else None
    if "allowzero" not in attrs or sizes is None:
        return None
    if any(size != -1 and least(size) <= 0 for size in sizes):
        return None
    return OlderForm(node.inputs, {k: v for k, v in attrs.items() if k != "allowzero"})
