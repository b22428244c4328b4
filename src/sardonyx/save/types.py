"""Types of values as ONNX writes them."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.errors import InternalError
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.save.wire import Message

Dims = Sequence[int | str | None]  # as a model declares them: a size, a name, or nothing

# Field numbers of TypeProto, by the kind of value.
_TENSOR, _SEQUENCE, _MAP, _SPARSE, _OPTIONAL = 1, 4, 5, 8, 9


def value_info(name: str, fact: AnyFact | None, dims: Dims | None = None) -> Message:
    """A ValueInfoProto; without a fact it has no type, which bodies may leave open."""
    message = Message()
    message.text(1, name)
    if fact is not None and _is_whole(fact):
        message.message(2, type_message(fact, dims))
    return message


def type_message(fact: AnyFact, dims: Dims | None = None) -> Message:
    """A TypeProto; `dims` are those of the tensor at its core, where the model declares them."""
    message = Message()
    match fact:
        case Fact():
            message.message(_TENSOR, _tensor(fact, dims))
        case SparseFact():
            message.message(_SPARSE, _tensor(fact, dims))
        case SequenceFact():
            message.message(_SEQUENCE, _wrapped(fact.elem, dims))
        case OptionalFact():
            message.message(_OPTIONAL, _wrapped(fact.elem, dims))
        case MapFact():
            inner = Message()
            inner.number(1, fact.key.onnx)
            inner.message(2, type_message(_known(fact.value)))
            message.message(_MAP, inner)
    return message


def _wrapped(elem: AnyFact | None, dims: Dims | None) -> Message:
    message = Message()
    message.message(1, type_message(_known(elem), dims))
    return message


def _known(fact: AnyFact | None) -> AnyFact:
    if fact is None:
        raise InternalError("a type is written whose elements are not known")
    return fact


def _is_whole(fact: AnyFact) -> bool:
    """Whether the type is known down to its elements."""
    match fact:
        case SequenceFact() | OptionalFact():
            return fact.elem is not None and _is_whole(fact.elem)
        case MapFact():
            return fact.value is not None and _is_whole(fact.value)
    return True


def _tensor(fact: Fact | SparseFact, dims: Dims | None) -> Message:
    message = Message()
    message.number(1, fact.dtype.onnx)
    if dims is None and fact.shape is not None:
        # Sizes that inference named mean nothing outside; a dim without a name fits them all.
        dims = [d if isinstance(d, int) else None for d in fact.shape]
    if dims is not None:
        shape = Message()
        for dim in dims:
            shape.message(1, _dim(dim))
        message.message(2, shape)
    return message


def _dim(dim: int | str | None) -> Message:
    message = Message()
    if isinstance(dim, str):
        message.text(2, dim)
    elif dim is not None and dim >= 0:
        message.number(1, dim)
    return message
