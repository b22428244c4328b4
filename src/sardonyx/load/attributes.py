"""Reads node attributes, Constant nodes and annotations in metadata from protobuf records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx._native import AttributeRecord, GraphRecord, NodeRecord
from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.graph.graph import MAX_PRIORITY, Attrs, Graph
from sardonyx.graph.op import Attr, Op, kind_of
from sardonyx.load.tolerated import is_ignored
from sardonyx.load.types import fact_of
from sardonyx.load.upgrade import kind_before

if TYPE_CHECKING:
    from sardonyx.load.tensor import Tensors

# Metadata keys of node annotations.
PRIORITY: Final = "sardonyx.priority"
BACKWARD: Final = "sardonyx.backward"

# AttributeProto.AttributeType by number, with the kind in op declarations.
_KINDS: Final = {
    1: "float", 2: "int", 3: "bytes", 4: "tensor", 5: "graph", 6: "floats", 7: "ints", 8: "strings",
    9: "tensors", 10: "graphs", 11: "sparse", 12: "sparses", 13: "type", 14: "types",
}  # fmt: skip
# The kind of each attribute of Constant.
_CONSTANT_KINDS: Final = {
    "value": "tensor", "sparse_value": "sparse", "value_float": "float", "value_floats": "floats",
    "value_int": "int", "value_ints": "ints", "value_string": "bytes", "value_strings": "strings",
}  # fmt: skip
_CLASSES: Final[dict[str, Any]] = {
    "int": int, "float": (int, float), "bytes": bytes, "ints": int, "floats": (int, float),
    "strings": bytes, "tensor": Const, "graph": Graph,
}  # fmt: skip


def fits(spec: Any, value: Any) -> bool:
    """Return whether the value of an attribute after an upgrade is of its declared kind."""
    kind = kind_of(spec)
    if value is None:
        return isinstance(spec, Attr) and not spec.required
    expected = _CLASSES.get(kind)
    if expected is None:
        return True
    if isinstance(value, np.ndarray):
        return kind in ("ints", "floats")
    if kind in ("ints", "floats", "strings"):
        return isinstance(value, (tuple, list)) and all(isinstance(v, expected) for v in value)
    return isinstance(value, expected)


class Attributes:
    """Reads attributes; `body` builds the graph of a graph attribute."""

    def __init__(self, tensors: Tensors, body: Callable[[GraphRecord], Graph]) -> None:
        self._tensors = tensors
        self._body = body

    def raw(self, record: AttributeRecord) -> Any:
        """Return the value as in the file: numbers, bytes, tuples, constants, graphs."""
        kind, value = _KINDS.get(record.type), record.value
        if kind in ("int", "float", "bytes"):
            return value if value is not None else {"int": 0, "float": 0.0, "bytes": b""}[kind]
        if kind in ("ints", "floats"):
            return tuple(value.tolist())  # type: ignore[union-attr]  # an array, by its kind
        if kind == "strings":
            return tuple(value)  # type: ignore[arg-type]  # a list, by its kind
        return self._structured(record, kind, value)

    def _structured(self, record: AttributeRecord, kind: str | None, value: Any) -> Any:
        if value is None:
            raise InvalidGraph(f"the attribute {record.name} has no value")
        if kind == "tensor":
            return self._tensors.const(value)
        if kind == "tensors":
            return tuple(self._tensors.const(t) for t in value)
        if kind == "graph":
            return self._body(value)
        if kind == "sparse":
            return self._tensors.dense(value)
        if kind == "type":
            return fact_of(value)
        what = f"the attribute {record.name} has a type ({record.type}) that no op takes"
        raise InvalidGraph(what)

    def before(
        self, op: Op | None, op_type: str, version: int, records: Mapping[str, AttributeRecord]
    ) -> Attrs:
        """Return the attributes of a node of an older opset, without defaults."""
        for name, record in records.items():
            expected, kind = kind_before(op, op_type, version, name), _KINDS.get(record.type)
            if expected not in (None, kind) and (kind, expected) != ("sparse", "tensor"):
                raise InvalidGraph(
                    f"attribute {name} of {op_type} of opset {version} is of type {expected}, and "
                    f"the node gives {kind}"
                )
        return {n: self.raw(record) for n, record in records.items() if not is_ignored(op, n)}

    def of(self, op: Op, records: Mapping[str, AttributeRecord]) -> Attrs:
        """Return all attributes of a node, checked against the op, with defaults filled in."""
        attrs: Attrs = dict(op.defaults)
        for name, record in records.items():
            expected, kind = op.attr_kinds.get(name), _KINDS.get(record.type)
            if expected is None and is_ignored(op, name):
                continue
            # Sparse tensors are expanded to dense ones.
            if expected != kind and not (kind == "sparse" and expected == "tensor"):
                raise _wrong_kind(op, name, kind)
            if name in op.flags:
                attrs[name] = int(self.raw(record) != 0)
            else:
                attrs[name] = record.value if name in op.array_attrs else self.raw(record)
        for name in op.required_attrs:
            if name not in attrs:
                raise InvalidGraph(f"{op} needs the attribute {name}")
        return attrs


def _wrong_kind(op: Op, name: str, kind: str | None) -> InvalidGraph:
    if name not in op.attrs:
        known = ", ".join(op.attrs) or "none"
        return InvalidGraph(f"{op} has no attribute {name}; it has {known}")
    return InvalidGraph(
        f"attribute {name} of {op} is of type {op.attr_kinds[name]}, and the node gives {kind}"
    )


def constant_node(attributes: Attributes, records: dict[str, AttributeRecord]) -> Const:
    """Return the constant of a Constant node."""
    # Other tools add attributes of their own next to the value; onnxruntime ignores them as well.
    present = [name for name in records if name in _CONSTANT_KINDS]
    if len(present) != 1:
        names = ", ".join(_CONSTANT_KINDS)
        raise InvalidGraph(f"a Constant must have exactly one of {names}, got {list(records)}")
    name, record = present[0], records[present[0]]
    kind = _KINDS.get(record.type)
    # Before ONNX had sparse_value, sparse tensors were stored as value.
    if kind != _CONSTANT_KINDS[name] and (name, kind) != ("value", "sparse"):
        raise InvalidGraph(f"the attribute {name} of Constant has the wrong type")
    value: Any = attributes.raw(record)
    if isinstance(value, Const):
        return value
    if name.startswith("value_string"):
        texts = value if isinstance(value, tuple) else (value,)
        cells = np.empty(len(texts), object)
        cells[:] = [t.decode("utf-8", "replace") for t in texts]
        return ArrayConst(cells.reshape(() if name == "value_string" else (-1,)))
    return ArrayConst(np.array(value, np.float32 if "float" in name else np.int64))


def annotations_of(record: NodeRecord, outer: tuple[int, bool]) -> tuple[int, bool]:
    """Return the priority of a node and whether it is backward; by default as `outer`."""
    metadata = record.metadata
    if not metadata:
        return outer
    priority, is_backward = outer
    for key, text in metadata:
        if key == PRIORITY:
            priority = _number(key, text, MAX_PRIORITY)
        elif key == BACKWARD:
            is_backward = bool(_number(key, text, 1))
    return priority, is_backward


def _number(key: str, text: str, most: int) -> int:
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else most + 1
    if abs(number) > most:
        what = "0 or 1" if most == 1 else "a whole number of 32 bits"
        raise InvalidGraph(f"the metadata {key} of a node must be {what}, got {text!r:.40}")
    return number
