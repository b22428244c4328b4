"""Evaluates small tensors that depend on constants alone, during shape inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import UNEXPECTED_ERRORS, SardonyxError
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT

MAX_KNOWN: Final = 64  # elements of a tensor; larger ones are not evaluated
_MAX_NODES: Final = 32  # nodes that one call of `constant_number` evaluates at most


def constant_number(value: Value | None) -> int | None:
    """Return an integer or bool scalar that depends on constants alone; None for other values."""
    if value is None:
        return None
    try:
        array = _computed(value, [_MAX_NODES])
    except (SardonyxError, *UNEXPECTED_ERRORS):
        return None  # the node reports the error when it runs
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        return None
    return int(array.reshape(-1)[0])


def constant_elements(node: Node, fact: Fact) -> tuple[int, ...] | None:
    """Return the elements of a node's only output if they depend on constants alone.

    `fact` is the inferred fact of the output, a small integer tensor.
    """
    if len(node.outputs) != 1:
        return None
    try:
        outputs = _run(node, [_MAX_NODES])
    except (SardonyxError, *UNEXPECTED_ERRORS):
        return None
    array = None if outputs is None else outputs[0]
    if array is None or array.shape != fact.static or array.dtype != fact.dtype.np:
        return None
    return tuple(map(int, array.reshape(-1).tolist()))


def _computed(value: Value, nodes_left: list[int]) -> Array | None:
    if value.const is not None:
        return value.const.read() if value.const.count <= MAX_KNOWN else None
    fact, node = value.fact, value.node
    if isinstance(fact, Fact) and fact.ints is not None and fact.static is not None:
        return np.array(fact.ints, fact.dtype.np).reshape(fact.static)
    if node is None or not _may_be_known(node.outputs):
        return None
    outputs = _run(node, nodes_left)
    return None if outputs is None else outputs[value.index]


def _run(node: Node, nodes_left: list[int]) -> Sequence[Array] | None:
    """Return a node's outputs by its op's reference; None if an input is not a constant.

    `nodes_left` is a budget shared by the recursion.
    """
    op = node.op
    nodes_left[0] -= 1
    if nodes_left[0] < 0 or not op.is_pure or op.has_bodies:
        return None
    # At ties, numpy may round a quantized value in another direction than the kernels: a result
    # must not depend on whether an input is constant.
    if op.domain in (INTERNAL, MICROSOFT) or op.name == "QuantizeLinear":
        return None
    if op.reference_rule is None or not _may_be_known(node.inputs):
        return None
    arrays: list[Any] = []
    for value in node.inputs:
        array = None if value is None else _computed(value, nodes_left)
        if value is not None and array is None:
            return None
        arrays.append(array)
    return op.run(arrays, node.attrs)


def _may_be_known(values: Sequence[Value | None]) -> bool:
    """Return whether all values are small, and none is an input of the graph."""
    for value in values:
        if value is None:
            continue
        fact = value.fact
        if not isinstance(fact, Fact) or fact.static is None or math.prod(fact.static) > MAX_KNOWN:
            return False
        if fact.ints is None and fact.const is None and value.node is None:
            return False
    return True
