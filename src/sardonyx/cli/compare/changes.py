"""How a node of B differs from its counterpart in A: op, attributes, operands, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.passes.rule import COMMUTATIVE

_CHUNK: Final = 1 << 24  # bytes of two weights that are compared at a time
_TYPE_ATTRIBUTES: Final = ("to", "dtype", "output_dtype")

Counterparts = Mapping[Value, Value]  # from values of A to values of B


@frozen
class NodeDifference:
    """One difference between a node and its counterpart."""

    kind: str  # op, attribute, type, operands, weights, inputs
    text: str


def same_const(a: Const, b: Const) -> bool:
    """Return whether two constants have equal types, shapes and bytes."""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a is b or (a.content_id is not None and a.content_id == b.content_id):
        return True
    return _first_difference(a, b) is None


def _first_difference(a: Const, b: Const) -> int | None:
    """Return the flat index of the first element whose bytes differ."""
    left, right = (np.ascontiguousarray(c.view()).reshape(-1) for c in (a, b))
    if left.dtype.hasobject:
        unequal = left != right
        return int(unequal.argmax()) if unequal.any() else None
    step = _CHUNK // left.dtype.itemsize
    for i in range(0, left.size, step):
        x, y = (side[i : i + step].view(np.uint8) for side in (left, right))
        if not np.array_equal(x, y):
            return i + int((x != y).argmax()) // left.dtype.itemsize
    return None


def same_input(a: Value | None, b: Value | None, counterparts: Counterparts) -> bool:
    """Return whether two inputs are counterparts, or constants of equal contents."""
    if a is None or b is None:
        return a is b
    if a.const is not None and b.const is not None and a.node is None and b.node is None:
        return same_const(a.const, b.const)
    return counterparts.get(a) is b


def same_attributes(a: Node, b: Node) -> bool:
    """Return whether the attributes are equal; bodies, which are compared apart, count as such."""
    return not any(changed_attributes(a, b))


def changed_attributes(a: Node, b: Node) -> Iterator[NodeDifference]:
    """Yield the attributes that differ, bodies excepted."""
    for name in sorted({*a.attrs, *b.attrs}):
        x, y = a.attrs.get(name), b.attrs.get(name)
        if not _same_attribute(x, y):
            kind = "type" if name in _TYPE_ATTRIBUTES else "attribute"
            yield NodeDifference(kind, f"attribute {name} is {_shown(x)} in A, {_shown(y)} in B")


def _same_attribute(a: Any, b: Any) -> bool:
    match a, b:
        case Graph(), Graph():
            return True
        case Const(), Const():
            return same_const(a, b)
        case np.ndarray(), np.ndarray():
            return np.array_equal(a, b)
        case ((tuple() | list()), (tuple() | list())):
            return len(a) == len(b) and all(map(_same_attribute, a, b))
    is_nan = a != a and b != b
    return type(a) is type(b) and bool(a == b or is_nan)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Const):
        return f"{value.dtype}{list(value.shape)} {value.read().reshape(-1)[:4].tolist()}"
    text = "absent" if value is None else str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def node_changes(a: Node, b: Node, counterparts: Counterparts) -> list[NodeDifference]:
    """Return how B's node differs from A's, apart from the bodies."""
    if a.op is not b.op:
        return [NodeDifference("op", f"the op is {a.op.name} in A, {b.op.name} in B")]
    found = list(changed_attributes(a, b))
    if len(a.inputs) != len(b.inputs):
        found.append(NodeDifference("inputs", f"{len(a.inputs)} inputs in A, {len(b.inputs)} in B"))
        return found
    pairs = list(zip(a.inputs, b.inputs, strict=True))
    if is_swapped(a, b, counterparts):
        if a.op.name not in COMMUTATIVE:
            found.append(NodeDifference("operands", "the operands are swapped"))
        return found
    changed = [(i, *pair) for i, pair in enumerate(pairs) if not same_input(*pair, counterparts)]
    matched = set(counterparts.values()) if changed else set()
    found += [
        _changed_input(slot, x, y, counterparts)
        for slot, x, y in changed
        if not _is_follow_up(x, y, counterparts, matched)
    ]
    return found


def is_swapped(a: Node, b: Node, counterparts: Counterparts) -> bool:
    """Return whether B's node has the inputs of A's in another order."""
    if len(a.inputs) != len(b.inputs) or len(a.inputs) < 2:
        return False
    if all(same_input(x, y, counterparts) for x, y in zip(a.inputs, b.inputs, strict=True)):
        return False
    left = list(b.inputs)
    for x in a.inputs:
        at = next((i for i, y in enumerate(left) if same_input(x, y, counterparts)), None)
        if at is None:
            return False
        del left[at]
    return True


def _is_follow_up(
    x: Value | None, y: Value | None, counterparts: Counterparts, matched: set[Value]
) -> bool:
    """Return whether inputs differ only as neither's node has a counterpart: no change here."""
    if x is None or y is None or x.node is None or y.node is None:
        return False
    return x not in counterparts and y not in matched


def _changed_input(
    slot: int, x: Value | None, y: Value | None, counterparts: Counterparts
) -> NodeDifference:
    a, b = (None if v is None else v.const for v in (x, y))
    if x is None or y is None or a is None or b is None:
        expected = None if x is None else counterparts.get(x, x)
        names = [("absent" if v is None else v.name or str(v)) for v in (expected, y)]
        return NodeDifference("inputs", f"input {slot} is {names[0]} in A, {names[1]} in B")
    name = x.name or f"input {slot}"
    if a.dtype is not b.dtype or a.shape != b.shape:
        kinds = [f"{c.dtype}{list(c.shape)}" for c in (a, b)]
        return NodeDifference("weights", f"weight {name} is {kinds[0]} in A, {kinds[1]} in B")
    first = _first_difference(a, b)
    assert first is not None
    index = list(map(int, np.unravel_index(first, a.shape)))
    values = [c.view().reshape(-1)[first] for c in (a, b)]
    return NodeDifference(
        "weights", f"weight {name} differs first at {index}: {values[0]} in A, {values[1]} in B"
    )
