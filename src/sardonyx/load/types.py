"""Converts declared types of values to facts."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from sardonyx._native import TypeRecord
from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape, Size, symbol
from sardonyx.graph.dtype import by_onnx
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.guard import Scope


class Dims:
    """Converts declared dims to sizes: equal names are equal, unnamed dims are new symbols."""

    def __init__(
        self,
        by_name: dict[str, int] | None = None,
        by_denotation: dict[str, int] | None = None,
        split: bool = False,
    ) -> None:
        self._by_name = by_name or {}
        self._by_denotation = by_denotation or {}
        self._split = split  # dims of equal names may differ
        self._scope = Scope()

    def shape(self, record: TypeRecord) -> Shape | None:
        """Return the symbolic shape of a declared tensor."""
        if record.shape is None:
            return None
        pairs = zip_longest(record.shape, record.denotations[: len(record.shape)], fillvalue="")
        return tuple(self._size(dim, denotation) for dim, denotation in pairs)

    def _size(self, dim: int | str | None, denotation: str) -> Size:
        if denotation and denotation in self._by_denotation:
            return self._by_denotation[denotation]
        if isinstance(dim, int):
            if dim < -1 or dim > 2**62:
                raise InvalidGraph(f"a declared dim is {dim}")
            return dim if dim >= 0 else self._scope.new_dim("in")
        if dim is None or dim == "?":  # some exporters call every unknown dim "?"
            return self._scope.new_dim("in")
        if dim in self._by_name:
            return self._by_name[dim]
        return self._scope.new_dim(dim) if self._split else symbol(dim)


def fact_of(record: TypeRecord | None, dims: Dims | None = None) -> AnyFact | None:
    """Return the fact of a declared type; None if none is declared."""
    if record is None or record.kind == "none":
        return None
    if record.kind in ("tensor", "sparse"):
        dtype = by_onnx(record.elem_type)
        if dtype is None:
            if record.elem_type == 0:
                return None
            raise InvalidGraph(f"{record.elem_type} is not an element type of ONNX")
        shape = (dims or Dims()).shape(record)
        return Fact(dtype, shape) if record.kind == "tensor" else SparseFact(dtype, shape)
    if record.kind == "sequence":
        return SequenceFact(fact_of(record.elem, dims))
    if record.kind == "optional":
        return OptionalFact(fact_of(record.elem, dims))
    if record.kind == "map":
        key = by_onnx(record.key_type)
        if key is None:
            raise InvalidGraph(f"{record.key_type} is not a key type of a map")
        return MapFact(key, fact_of(record.elem, dims))
    raise InvalidGraph(f"values of kind {record.kind} are not supported")


def shape_of(record: TypeRecord | None, dims: Dims) -> Shape | None:
    """Return the declared shape of a tensor; None if it has none, and for other values."""
    return None if record is None or record.kind != "tensor" else dims.shape(record)


def declared_dims(record: TypeRecord | None) -> Any:
    """Return the dims as the model writes them, for messages and NodeArg."""
    while record is not None and record.kind in ("sequence", "optional"):
        record = record.elem
    return None if record is None else record.shape
