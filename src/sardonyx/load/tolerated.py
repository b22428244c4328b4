"""What nodes may have although it is of no effect: unknown attributes, inputs not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx._native import AttributeRecord
from sardonyx.base.log import logger
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.op import MICROSOFT, ONNX, Op

# Ops whose unknown attributes onnxruntime ignores. Exporters write misspelt ones, and the version
# of LayerNormalization that onnxruntime had before ONNX has no attributes of later versions.
UNCHECKED: Final = frozenset((
    (ONNX, "LayerNormalization"), (ONNX, "SimplifiedLayerNormalization"),
    (MICROSOFT, "BiasDropout"), (MICROSOFT, "BitmaskBiasDropout"), (MICROSOFT, "BitmaskDropout"),
    (MICROSOFT, "QOrderedLayerNormalization"), (MICROSOFT, "ShrunkenGather"),
))  # fmt: skip
# Inputs that are not read if another one is absent: by op, the position of that one, and theirs.
_READ_WITH: Final = {
    (MICROSOFT, "MultiHeadAttention"): (6, (8, 9)),  # past_key: its length and cache_indirection
}
# Inputs that LinearAttention of com.microsoft does not read, by its update rule.
_UNREAD_BY_RULE: Final = {b"linear": (4, 5), b"gated": (5,), b"delta": (4,)}  # decay, beta
_MASK: Final = 3  # the input mask_index of Attention


def give_latest(graph: Graph, values: dict[str, Value], name: str, latest: Value) -> None:
    """Let readers of a constant read the latest Constant node of that name, which is defined next.

    Tools that edit models have given numbers as names twice. onnxruntime runs such models so.
    """
    earlier = values.get(name)
    if earlier is None or earlier.const is None or earlier.node is not None:
        return
    for node, slot in tuple(earlier.uses):
        graph.set_input(node, slot, latest)
    del values[name]
    logger.warning("%r is made twice: the latest Constant node is its value", name)


def _at(inputs: list[Value | None], position: int) -> Value | None:
    return inputs[position] if position < len(inputs) else None


def _is_dummy(mask: Value | None) -> bool:
    """Return whether a mask stands for none: exporters of GPT-2 gave it the shape [batch, 1]."""
    fact = None if mask is None else mask.fact
    return isinstance(fact, Fact) and fact.shape is not None and fact.shape[1:] == (1,)


def is_ignored(op: Op | None, attribute: str) -> bool:
    """Return whether an attribute that an op does not have is ignored, with a warning."""
    if op is None or op.key not in UNCHECKED or attribute in op.attrs:
        return False
    logger.warning("%s has no attribute %s: it is ignored", op, attribute)
    return True


def read_inputs(
    domain: str,
    op_type: str,
    inputs: list[Value | None],
    attributes: Mapping[str, AttributeRecord],
) -> list[Value | None]:
    """Return the inputs of a node without those that it does not read; a warning names them."""
    key = domain, op_type
    if key in _READ_WITH:
        needed, dependent = _READ_WITH[key]
        unread = [i for i in dependent if _at(inputs, i) is not None]
        if not unread or _at(inputs, needed) is not None:
            return inputs
        logger.warning("%s does not read its inputs %s without input %d", op_type, unread, needed)
    elif key == (MICROSOFT, "Attention") and _is_dummy(_at(inputs, _MASK)):
        unread = [_MASK]
        logger.warning("%s does not read a mask of one column", op_type)
    elif key == (MICROSOFT, "LinearAttention") and "update_rule" in attributes:
        rule: Any = attributes["update_rule"].value
        unread = [i for i in _UNREAD_BY_RULE.get(rule, ()) if _at(inputs, i) is not None]
        if not unread:
            return inputs
        logger.warning("%s does not read its inputs %s with this rule", op_type, unread)
    else:
        return inputs
    kept = [None if i in unread else value for i, value in enumerate(inputs)]
    while kept and kept[-1] is None:
        kept.pop()
    return kept
