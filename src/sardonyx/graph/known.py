"""Small values that follow from constants, computed while facts are inferred."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import FAULTS, SardonyxError
from sardonyx.graph.graph import Value
from sardonyx.ops.declare import INTERNAL, as_outputs
from sardonyx.ops.rules import Array

_MAX_ELEMENTS: Final = 8
_MAX_NODES: Final = 32


def known_number(value: Value | None) -> int | None:
    """A whole number or truth that a chain of nodes makes of constants alone, floats included."""
    if value is None:
        return None
    try:
        array = _computed(value, [_MAX_NODES])
    except (SardonyxError, *FAULTS):
        return None  # it says so when it runs
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        return None
    return int(array.reshape(-1)[0])


def _computed(value: Value, nodes_left: list[int]) -> Array | None:
    if value.const is not None:
        return value.const.read() if value.const.count <= _MAX_ELEMENTS else None
    node = value.node
    if node is None or not node.op.is_pure or node.op.has_bodies or node.op.domain == INTERNAL:
        return None
    nodes_left[0] -= 1
    rule = node.op.reference_rule
    if nodes_left[0] < 0 or rule is None or value.fact is None:
        return None
    arrays: list[Any] = []
    for given in node.inputs:
        array = None if given is None else _computed(given, nodes_left)
        if given is not None and array is None:
            return None
        arrays.append(array)
    absent = [None] * node.op.n_absent(len(arrays))
    made = as_outputs(rule(*arrays, *absent, **node.attrs))[value.index]
    return made if isinstance(made, np.ndarray) and made.size <= _MAX_ELEMENTS else None
