"""Writes types of values as TypeProto and ValueInfoProto."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import InternalError
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact

Dims = Sequence[int | str | None]  # as declared: a size, a name, or None

# Field numbers of TypeProto, by the kind of value.
_TENSOR, _SEQUENCE, _MAP, _SPARSE, _OPTIONAL = 1, 4, 5, 8, 9


def value_info(name: str, fact: AnyFact | None, dims: Dims | None = None) -> Message:
    """Return a ValueInfoProto, without a type if the fact is None or incomplete."""
    message = Message().text(1, name)
    if fact is not None and _is_complete(fact):
        message.message(2, type_message(fact, dims))
    return message


def type_message(fact: AnyFact, dims: Dims | None = None) -> Message:
    """Return a TypeProto; `dims` are the declared dims of the innermost tensor, if any."""
    match fact:
        case Fact():
            return Message().message(_TENSOR, _tensor(fact, dims))
        case SparseFact():
            return Message().message(_SPARSE, _tensor(fact, dims))
        case SequenceFact() | OptionalFact():
            elem = Message().message(1, type_message(_known(fact.elem), dims))
            return Message().message(
                _SEQUENCE if isinstance(fact, SequenceFact) else _OPTIONAL, elem
            )
        case MapFact():
            key = Message().number(1, fact.key.onnx)
            return Message().message(_MAP, key.message(2, type_message(_known(fact.value))))


def _known(fact: AnyFact | None) -> AnyFact:
    if fact is None:
        raise InternalError("a type is written whose elements are not known")
    return fact


def _is_complete(fact: AnyFact) -> bool:
    """Return whether the type is known down to its elements."""
    match fact:
        case SequenceFact() | OptionalFact():
            return fact.elem is not None and _is_complete(fact.elem)
        case MapFact():
            return fact.value is not None and _is_complete(fact.value)
    return True


def _tensor(fact: Fact | SparseFact, dims: Dims | None) -> Message:
    message = Message().number(1, fact.dtype.onnx)
    if dims is None and fact.shape is not None:
        # Symbols from inference have no meaning in a file; a dim without a name matches any size.
        dims = [d if isinstance(d, int) else None for d in fact.shape]
    if dims is not None:
        shape = Message()
        for dim in dims:
            shape.message(1, _dim(dim))
        message.message(2, shape)
    return message


def _dim(dim: int | str | None) -> Message:
    if isinstance(dim, str):
        return Message().text(2, dim)
    return Message() if dim is None or dim < 0 else Message().number(1, dim)
