"""Sequence and optional ops: at run time a sequence is a list, and an empty optional is None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dim import Size, modulo
from sardonyx.graph.dtype import BOOL, COMPLEX, F32, I64, IEEE, INDEX, INTS, STRING, by_onnx
from sardonyx.graph.fact import AnyFact, Fact, NewDim, OptionalFact, SequenceFact
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional, required
from sardonyx.ops.arrays import Array, as_ints, one_int
from sardonyx.ops.inference import axis_of
from sardonyx.ops.move.standard import concat
from sardonyx.ops.sizes import DATA_INDEX, SIZES, copy_value, owned, same_value

ELEMENTS: Final = IEEE | INTS | COMPLEX | {BOOL, STRING}  # element types of sequences
_BOOL: Final = frozenset((BOOL,))
_MAX_ELEMENTS: Final = 256  # of a sequence whose elements inference tracks individually


def is_empty_typed(fact: AnyFact | None) -> bool:
    """Whether this is the element fact of an empty sequence: only a type."""
    return fact is None or (isinstance(fact, Fact) and fact.shape is None and fact.sym == ())


def join_facts(a: AnyFact | None, b: AnyFact | None, new_dim: NewDim) -> AnyFact | None:
    """Return the least fact that covers `a` and `b`; raise if their types differ."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Fact) and isinstance(b, Fact):
        if a.dtype is not b.dtype:
            raise ShapeError(f"a value is {a.dtype} in one case and {b.dtype} in another")
        if is_empty_typed(a) or is_empty_typed(b):
            return b if is_empty_typed(a) else a
        if a.shape is None or b.shape is None or a.rank != b.rank:
            return a.shaped(None)
        pairs = zip(a.shape, b.shape, strict=True)
        return a.shaped(tuple(x if x == y else new_dim("varied") for x, y in pairs))
    if isinstance(a, SequenceFact) and isinstance(b, SequenceFact):
        return SequenceFact(join_facts(a.elem, b.elem, new_dim))
    if isinstance(a, OptionalFact) and isinstance(b, OptionalFact):
        return OptionalFact(join_facts(a.elem, b.elem, new_dim))
    if type(a) is not type(b):
        raise ShapeError(f"a value is {a} in one case and {b} in another")
    return a


def element_fact(g: Scope, elem: AnyFact | None) -> AnyFact:
    """Return the fact of one element, with new dims: symbolic sizes differ between elements."""
    if elem is None:
        raise ShapeError("the type of the elements is not known", hint="declare the value's type")
    if not isinstance(elem, Fact):
        return elem
    if elem.shape is None:
        return Fact(elem.dtype, None)
    return elem.shaped(tuple(d if isinstance(d, int) else g.new_dim("element") for d in elem.shape))


def as_sequence(x: AnyFact, what: str) -> SequenceFact:
    """Return the fact of a sequence; raise for other values."""
    if not isinstance(x, SequenceFact):
        raise ShapeError(f"{what} needs a sequence, got {x}")
    return x


def _normalized_position(length: int, position: Array | None, last: int) -> int:
    """Return a non-negative position in a sequence; `last` is the largest allowed."""
    at = one_int(position, "the position")
    if not -length <= at <= last:
        raise InvalidArgument(f"position {at} is outside [{-length}, {last}] of {length} elements")
    return at + length if at < 0 else at


def static_position(length: int, position: Fact | None, last: int) -> int | None:
    """Return a static position as a non-negative number; None if unknown or out of range."""
    numbers = None if position is None else position.ints
    if numbers is None or len(numbers) != 1 or not -length <= numbers[0] <= last:
        return None
    return numbers[0] + (length if numbers[0] < 0 else 0)


sequence_at = Op(
    "SequenceAt", 11, "input_sequence position:I", "tensor", types={"I": INDEX}, unranked=True
)


@sequence_at.infer
def _(g: Scope, x: AnyFact, position: Fact) -> AnyFact:
    sequence = as_sequence(x, "SequenceAt")
    elem, parts = sequence.elem, sequence.parts
    where = None if parts is None else static_position(len(parts), position, len(parts) - 1)
    if parts is not None and where is not None:
        return parts[where]
    if elem is not None and _n_slices(g) is not None:
        return elem  # all slices have the same shape, also the same symbolic sizes
    return element_fact(g, elem)


def _n_slices(g: Scope) -> Size | None:
    """Return the number of equal slices in the sequence that the current node reads.

    None unless a SplitToSequence without sizes produced it.
    """
    value = None if g.node is None else optional_input(g.node, 0)
    node = None if value is None else value.node
    if node is None or node.op is not split_to or optional_input(node, 1) is not None:
        return None
    whole = input_of(node, 0).tensor
    return None if whole.shape is None else whole.dims[axis_of(node.attrs["axis"], whole.rank)]


@sequence_at.reference
def _(x: list[Any], position: Array) -> Any:
    return copy_value(x[_normalized_position(len(x), position, len(x) - 1)])


def _sequence_fact(elem: AnyFact | None, parts: tuple[AnyFact, ...]) -> SequenceFact:
    return SequenceFact(elem, parts if len(parts) <= _MAX_ELEMENTS else None)


construct = Op(
    "SequenceConstruct", 11, "inputs:T*", "output_sequence", types={"T": ELEMENTS}, unranked=True
)


@construct.infer
def _(g: Scope, *xs: Fact) -> SequenceFact:
    elem: AnyFact | None = None
    for x in xs:
        elem = join_facts(elem, x.without_contents(), g.new_dim)
    if elem is None:
        raise InvalidGraph("SequenceConstruct has no inputs", hint="use SequenceEmpty")
    return _sequence_fact(elem, tuple(x.without_contents() for x in xs))


construct.reference(lambda *xs: [owned(x) for x in xs])

empty = Op("SequenceEmpty", 11, "", "output", attrs={"dtype": optional("int")})


@empty.infer
def _(g: Scope, *, dtype: int | None) -> SequenceFact:
    result = F32 if dtype is None else by_onnx(dtype)
    if result is None or result not in ELEMENTS:
        raise ShapeError(f"a sequence cannot hold elements of type {result or dtype}")
    return SequenceFact(Fact(result, None, None, ()), ())


empty.reference(lambda *, dtype: [])

erase = Op(
    "SequenceErase",
    11,
    "input_sequence position:I?",
    "output_sequence",
    types={"I": INDEX},
    unranked=True,
)


@erase.infer
def _(g: Scope, x: AnyFact, position: Fact | None) -> AnyFact:
    sequence = as_sequence(x, "SequenceErase")
    elem, parts = sequence.elem, sequence.parts
    if parts is None:
        return SequenceFact(elem)
    last = len(parts) - 1
    erased = last if position is None else static_position(len(parts), position, last)
    if erased is None or erased < 0:
        return SequenceFact(elem)
    return SequenceFact(elem, parts[:erased] + parts[erased + 1 :])


@erase.reference
def _(x: list[Any], position: Array | None) -> list[Any]:
    at = np.array(-1) if position is None else position
    erased = _normalized_position(len(x), at, len(x) - 1)
    return x[:erased] + x[erased + 1 :]


insert = Op(
    "SequenceInsert",
    11,
    "input_sequence tensor:T position:I?",
    "output_sequence",
    types={"T": ELEMENTS, "I": INDEX},
    unranked=True,
)


@insert.infer
def _(g: Scope, x: AnyFact, tensor: Fact, position: Fact | None) -> SequenceFact:
    sequence = as_sequence(x, "SequenceInsert")
    elem, parts = join_facts(sequence.elem, tensor.without_contents(), g.new_dim), sequence.parts
    if parts is None:
        return SequenceFact(elem)
    where = len(parts) if position is None else static_position(len(parts), position, len(parts))
    if where is None:
        return SequenceFact(elem)
    return _sequence_fact(elem, (*parts[:where], tensor.without_contents(), *parts[where:]))


@insert.reference
def _(x: list[Any], tensor: Array, position: Array | None) -> list[Any]:
    where = len(x) if position is None else _normalized_position(len(x), position, len(x))
    return [*x[:where], owned(tensor), *x[where:]]


length = Op("SequenceLength", 11, "input_sequence", "length:I", types={"I": SIZES})


@length.infer
def _(g: Scope, x: AnyFact) -> Fact:
    parts = as_sequence(x, "SequenceLength").parts
    count = _n_slices(g) if parts is None else len(parts)
    return Fact(I64, (), None, None if count is None else (count,))


length.reference(lambda x: np.array(len(x), np.int64))

split_to = Op(
    "SplitToSequence",
    24,
    "input:T split:I?",
    "output_sequence",
    attrs={"axis": 0, "keepdims": 1},
    types=DATA_INDEX,
    unranked=True,
)


@split_to.infer
def _(g: Scope, x: Fact, split: Fact | None, *, axis: int, keepdims: int) -> SequenceFact:
    if x.shape is None:
        return SequenceFact(Fact(x.dtype, None))
    axis = axis_of(axis, x.rank)
    rest = (x.dims[:axis], x.dims[axis + 1 :])
    equal: tuple[Size, ...] = (1,) if keepdims else ()
    part = equal if split is None else (_part(g, x.dims[axis], split),)
    elem = x.shaped((*rest[0], *part, *rest[1]))
    sizes = part_sizes(x.dims[axis], split)
    if sizes is None:
        return SequenceFact(elem)
    if split is None:
        return SequenceFact(elem, (elem,) * len(sizes))
    g.equal(sum(sizes), x.dims[axis], f"the parts do not add up to axis {axis}")
    return SequenceFact(elem, tuple(x.shaped((*rest[0], s, *rest[1])) for s in sizes))


def part_sizes(size: Size, split: Fact | None) -> Sequence[Size] | None:
    """Return the part sizes of SplitToSequence, or None if their number is unknown."""
    if split is not None and split.shape is not None and split.rank == 1:
        sizes = split.sym
        return sizes if sizes is not None and len(sizes) <= _MAX_ELEMENTS else None
    each = 1 if split is None else (split.ints or (0,))[0]
    if not isinstance(size, int) or each < 1 or size > each * _MAX_ELEMENTS:
        return None
    return [min(each, size - begin) for begin in range(0, size, each)]


def _part(g: Scope, size: Size, split: Fact) -> Size:
    """Return the size of every part if all are equal, else a new dim."""
    if split.sym is None or len(set(split.sym)) != 1 or split.shape is None:
        return g.new_dim("part")
    each = split.sym[0]
    if split.rank == 0 and (each == 0 or modulo(size, each) != 0):
        return g.new_dim("part")
    return each


@split_to.reference
def _(x: Array, split: Array | None, *, axis: int, keepdims: int) -> list[Array]:
    axis = axis_of(axis, x.ndim)
    size = x.shape[axis]
    if split is None:
        return _equal_parts(x, axis, 1, bool(keepdims))
    sizes: Sequence[int] = as_ints(split)
    if split.ndim == 0:
        each = sizes[0]
        if each < 1:
            raise InvalidArgument(f"a tensor cannot be split into parts of {each}")
        sizes = [min(each, size - begin) for begin in range(0, size, each)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise InvalidArgument(f"the parts {tuple(sizes)} do not add up to {size} of axis {axis}")
    if not sizes:
        return []
    if len(set(sizes)) == 1 and sizes[0]:
        return _equal_parts(x, axis, sizes[0], True)
    return [owned(p) for p in np.split(x, np.cumsum(sizes[:-1], dtype=np.int64), axis)]


def _equal_parts(x: Array, axis: int, each: int, keepdims: bool) -> list[Array]:
    """Return copies of parts of one size: of one array, since a copy of each takes much longer."""
    before, after, count = x.shape[:axis], x.shape[axis + 1 :], x.shape[axis] // each
    blocks = np.moveaxis(x.reshape(*before, count, each, *after), axis, 0)
    parts = np.array(blocks, order="C").reshape(
        count, *before, *((each,) if keepdims else ()), *after
    )
    return [parts[i, ...] for i in range(count)]


concat_from = Op(
    "ConcatFromSequence",
    11,
    "input_sequence",
    "concat_result",
    attrs={"axis": required("int"), "new_axis": 0},
)


@concat_from.infer
def _(g: Scope, x: AnyFact, *, axis: int, new_axis: int) -> Fact:
    sequence = as_sequence(x, "ConcatFromSequence")
    if sequence.parts and (result := _joined(g, sequence.parts, axis, new_axis)):
        return result
    elem = element_fact(g, sequence.elem)
    if not isinstance(elem, Fact):
        raise ShapeError(f"ConcatFromSequence joins tensors, got {elem}")
    if elem.shape is None:
        return elem
    axis = axis_of(axis, elem.rank + (1 if new_axis else 0))
    after = elem.dims[axis:] if new_axis else elem.dims[axis + 1 :]
    return elem.shaped((*elem.dims[:axis], g.new_dim("joined"), *after))


def _joined(g: Scope, parts: tuple[AnyFact, ...], axis: int, new_axis: int) -> Fact | None:
    """Return the fact of known elements concatenated; None where a rank is unknown."""
    tensors = [p for p in parts if isinstance(p, Fact) and p.shape is not None]
    if len(tensors) < len(parts):
        return None
    if new_axis:
        axis = axis_of(axis, tensors[0].rank + 1)
        tensors = [t.shaped((*t.dims[:axis], 1, *t.dims[axis:])) for t in tensors]
    assert concat.infer_rule is not None
    result = concat.infer_rule(g, *tensors, axis=axis)
    assert isinstance(result, Fact)
    return result


@concat_from.reference
def _(x: list[Array], *, axis: int, new_axis: int) -> Array:
    if not x:
        raise InvalidArgument("ConcatFromSequence has no elements to join")
    axis = axis_of(axis, x[0].ndim + (1 if new_axis else 0))
    after = axis if new_axis else axis + 1
    fixed = [(part.ndim, part.shape[:axis], part.shape[after:]) for part in x]
    if odd := [i for i, sizes in enumerate(fixed) if sizes != fixed[0]]:
        what = f"element {odd[0]}, {x[odd[0]].shape}, does not join {x[0].shape}"
        raise InvalidArgument(f"{what} on axis {axis}")
    return np.stack(x, axis) if new_axis else np.concatenate(x, axis)


optional_ = Op("Optional", 28, "input?", "output", attrs={"type": optional("type")}, unranked=True)


@optional_.infer
def _(g: Scope, x: AnyFact | None, *, type: AnyFact | None) -> OptionalFact:
    if x is None and type is None:
        raise InvalidGraph("Optional has neither an input nor a type")
    if isinstance(x, (Fact, SequenceFact)):
        return OptionalFact(x.without_contents())
    return OptionalFact(type if x is None else x)


optional_.reference(lambda x, *, type: copy_value(x))


get_element = Op("OptionalGetElement", 28, "input", "output", unranked=True)


@get_element.infer
def _(g: Scope, x: AnyFact) -> AnyFact:
    if not isinstance(x, OptionalFact):
        return same_value(x)
    producer = _optional_node(g)
    inner = None if producer is None else optional_input(producer, 0)
    if inner is None or inner.fact is None:
        return element_fact(g, x.elem)
    return same_value(inner.fact)


def _optional_node(g: Scope) -> Node | None:
    """Return the Optional node that produces the current node's input, if there is one."""
    value = None if g.node is None else optional_input(g.node, 0)
    return value.node if value is not None and value.op == "Optional" else None


@get_element.reference
def _(x: Any) -> Any:
    if x is None:
        raise InvalidArgument("the optional is empty and has no element to get")
    return copy_value(x)


has_element = Op("OptionalHasElement", 28, "input?", "output:B", types={"B": _BOOL}, unranked=True)


@has_element.infer
def _(g: Scope, x: AnyFact | None) -> Fact:
    has_value = None if isinstance(x, OptionalFact) else (0,) if x is None else (1,)
    if has_value is None and (producer := _optional_node(g)) is not None:
        has_value = (int(optional_input(producer, 0) is not None),)
    return Fact(BOOL, (), None, has_value)


has_element.reference(lambda x: np.array(x is not None))

OPS: Final = (
    sequence_at, construct, empty, erase, insert, length, split_to, concat_from, optional_,
    get_element, has_element,
)  # fmt: skip
