"""Attributes: from records to Python values of the kind that an op declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx._native import AttributeRecord, GraphRecord
from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Attrs, Graph
from sardonyx.graph.op import Attr, Op, kind_of
from sardonyx.load.types import fact_of
from sardonyx.load.upgrade import kind_before

if TYPE_CHECKING:
    from sardonyx.load.tensor import Tensors

# AttributeProto.AttributeType by number, with the kind that declarations call it.
_KINDS: Final = {
    1: "float", 2: "int", 3: "bytes", 4: "tensor", 5: "graph", 6: "floats", 7: "ints", 8: "strings",
    9: "tensors", 10: "graphs", 11: "sparse", 12: "sparses", 13: "type", 14: "types",
}  # fmt: skip


_CLASSES: Final[dict[str, Any]] = {
    "int": int, "float": (int, float), "bytes": bytes, "ints": int, "floats": (int, float),
    "strings": bytes, "tensor": Const, "graph": Graph,
}  # fmt: skip


def fits(spec: Any, value: Any) -> bool:
    """Whether a value that an upgrade gives to an attribute is of its kind."""
    kind = kind_of(spec)
    if value is None:
        return isinstance(spec, Attr) and not spec.required
    wanted = _CLASSES.get(kind)
    if wanted is None:
        return True
    if isinstance(value, np.ndarray):
        return kind in ("ints", "floats")
    if kind in ("ints", "floats", "strings"):
        return isinstance(value, (tuple, list)) and all(isinstance(v, wanted) for v in value)
    return isinstance(value, wanted)


class Attributes:
    """Reads attributes; bodies are built by the function that builds graphs."""

    def __init__(self, tensors: Tensors, body: Callable[[GraphRecord], Graph]) -> None:
        self._tensors = tensors
        self._body = body

    def raw(self, record: AttributeRecord) -> Any:
        """The value as the file has it: numbers, bytes, tuples, constants, graphs."""
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
        raise InvalidGraph(
            f"the attribute {record.name} has a type ({record.type}) that no op takes"
        )

    def before(
        self, op: Op | None, op_type: str, version: int, records: Mapping[str, AttributeRecord]
    ) -> Attrs:
        """The attributes of a node of an older opset, as they stand there."""
        for name, record in records.items():
            wanted, given = kind_before(op, op_type, version, name), _KINDS.get(record.type)
            if wanted not in (None, given) and (given, wanted) != ("sparse", "tensor"):
                raise InvalidGraph(
                    f"attribute {name} of {op_type} of opset {version} is of type {wanted}, and "
                    f"the node gives {given}"
                )
        return {name: self.raw(record) for name, record in records.items()}

    def of(self, op: Op, records: Mapping[str, AttributeRecord]) -> Attrs:
        """All attributes of a node, checked against the op, defaults filled in."""
        attrs: Attrs = dict(op.defaults)
        for name, record in records.items():
            wanted, given = op.attr_kinds.get(name), _KINDS.get(record.type)
            if wanted != given and not (given == "sparse" and wanted == "tensor"):
                raise _misfit(op, name, given)
            if name in op.flags:
                attrs[name] = int(self.raw(record) != 0)
            else:
                attrs[name] = record.value if name in op.array_attrs else self.raw(record)
        for name in op.required_attrs:
            if name not in attrs:
                raise InvalidGraph(f"{op} needs the attribute {name}")
        return attrs


def _misfit(op: Op, name: str, given: str | None) -> InvalidGraph:
    if name not in op.attrs:
        known = ", ".join(op.attrs) or "none"
        return InvalidGraph(f"{op} has no attribute {name}; it has {known}")
    return InvalidGraph(
        f"attribute {name} of {op} is of type {op.attr_kinds[name]}, and the node gives {given}"
    )
