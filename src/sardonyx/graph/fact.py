"""Facts: what is known of a value before the model runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sardonyx.base.records import frozen, replace
from sardonyx.graph.dim import Dim, Shape, Size, same, symbols
from sardonyx.graph.dtype import DType

if TYPE_CHECKING:
    from sardonyx.graph.const import Const

_MAX_ELEMENTS: Final = 2**48


@frozen
class Fact:
    """A tensor: element type, symbolic shape, and its contents where they are known.

    `shape` is None while not even the rank is known. `const` refers to the bytes of a constant;
    `sym` holds the elements of a small integer tensor in row-major order, each a number or a
    symbolic size.
    """

    dtype: DType
    shape: Shape | None
    const: Const | None = None
    sym: Shape | None = None

    @property
    def rank(self) -> int:
        """The number of dims; ask only where the rank is known."""
        assert self.shape is not None
        return len(self.shape)

    @property
    def dims(self) -> Shape:
        """The shape, where it is known to have a rank."""
        assert self.shape is not None
        return self.shape

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def static(self) -> tuple[int, ...] | None:
        """The shape as numbers, or None if any of it is open."""
        if self.shape is None or not all(isinstance(d, int) for d in self.shape):
            return None
        return self.shape  # type: ignore[return-value]  # checked just above

    @property
    def ints(self) -> tuple[int, ...] | None:
        """The elements as numbers, or None if any of them is open."""
        if self.sym is None or not all(isinstance(d, int) for d in self.sym):
            return None
        return self.sym  # type: ignore[return-value]  # checked just above

    def plain(self) -> Fact:
        """The fact without its contents: what another value of the same type and shape has."""
        if self.const is None and self.sym is None:
            return self
        return Fact(self.dtype, self.shape)

    def of(self, dtype: DType) -> Fact:
        """The same shape with another element type."""
        return Fact(dtype, self.shape)

    def shaped(self, shape: Shape | None) -> Fact:
        """The same element type with another shape."""
        return Fact(self.dtype, shape)

    def known(self, sym: Shape | None) -> Fact:
        """The same tensor with these elements."""
        return replace(self, sym=sym)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[?]"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@frozen
class SequenceFact:
    """A list of values that are alike; `parts` has each of them, where their number is known."""

    elem: AnyFact | None  # None while nothing is known of the elements
    parts: tuple[AnyFact, ...] | None = None

    def plain(self) -> SequenceFact:
        """The fact without its elements: what another sequence of the same type has."""
        return self if self.parts is None else SequenceFact(self.elem)

    def __str__(self) -> str:
        return f"seq({self.elem if self.elem is not None else '?'})"


@frozen
class OptionalFact:
    """A value that may be absent."""

    elem: AnyFact | None

    def __str__(self) -> str:
        return f"optional({self.elem if self.elem is not None else '?'})"


@frozen
class MapFact:
    """A dict from keys to values."""

    key: DType
    value: AnyFact | None

    def __str__(self) -> str:
        return f"map({self.key}, {self.value if self.value is not None else '?'})"


@frozen
class SparseFact:
    """A sparse tensor."""

    dtype: DType
    shape: Shape | None

    def __str__(self) -> str:
        return f"sparse({Fact(self.dtype, self.shape)})"


FreshDim = Callable[[str], Dim]
AnyFact = Fact | SequenceFact | OptionalFact | MapFact | SparseFact


def refines(new: AnyFact, old: AnyFact) -> bool:
    """Whether a value may have fact `new` instead of `old`: same type, no dim known to differ."""
    if isinstance(new, Fact) and isinstance(old, Fact):
        if new.dtype is not old.dtype:
            return False
        if new.shape is None or old.shape is None:
            return True
        return len(new.shape) == len(old.shape) and all(
            same(a, b) is not False for a, b in zip(new.shape, old.shape, strict=True)
        )
    return type(new) is type(old)


def filled(fact: AnyFact | None, declared: Shape | None) -> AnyFact | None:
    """The fact with declared sizes for those, or for the rank, that it leaves open.

    A shape of another rank, or of more elements than a tensor can have, tells nothing.
    """
    if not isinstance(fact, Fact) or declared is None:
        return fact
    known = declared if fact.shape is None else fact.shape
    if len(known) != len(declared):
        return fact
    pairs = zip(known, declared, strict=True)
    shape = tuple(b if isinstance(a, Dim) and isinstance(b, int) else a for a, b in pairs)
    if math.prod(d for d in shape if isinstance(d, int) and d) > _MAX_ELEMENTS:
        return fact
    return replace(fact, shape=shape)


def elements(fact: Fact) -> Size | None:
    """The number of elements, or None if the rank is unknown."""
    if fact.shape is None:
        return None
    count: Size = 1
    for d in fact.shape:
        count = count * d
    return count


def names_in(fact: AnyFact | None) -> Iterator[str]:
    """The names of sizes in what is known of a value."""
    if isinstance(fact, Fact):
        for d in (*(fact.shape or ()), *(fact.sym or ())):
            yield from symbols(d)
    elif isinstance(fact, SequenceFact):
        for part in (fact.elem, *(fact.parts or ())):
            yield from names_in(part)
    elif isinstance(fact, OptionalFact):
        yield from names_in(fact.elem)
