"""Facts: the type, shape and contents of a value as far as they are known at compile time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sardonyx.base.records import frozen, replace
from sardonyx.graph.dim import Dim, Shape, Size, product, same, symbols
from sardonyx.graph.dtype import DType

if TYPE_CHECKING:
    from sardonyx.graph.const import Const

_MAX_ELEMENTS: Final = 2**48


@frozen
class Fact:
    """A tensor: element type, symbolic shape, and its contents where they are known.

    `shape` is None if the rank is unknown. `const` refers to the bytes of a constant; `sym` has the
    elements of a small integer tensor in row-major order, each a number or a symbolic size.
    """

    dtype: DType
    shape: Shape | None
    const: Const | None = None
    sym: Shape | None = None

    @property
    def rank(self) -> int:
        """The number of dims of a tensor of known rank."""
        return len(self.dims)

    @property
    def dims(self) -> Shape:
        """The shape of a tensor of known rank."""
        assert self.shape is not None
        return self.shape

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def static(self) -> tuple[int, ...] | None:
        """The shape if all dims are numbers, else None."""
        if self.shape is None:
            return None
        for d in self.shape:  # a generator is slower, and this is hot
            if not isinstance(d, int):
                return None
        return self.shape  # type: ignore[return-value]  # checked just above

    @property
    def ints(self) -> tuple[int, ...] | None:
        """The elements if all are numbers, else None."""
        if self.sym is None or not all(isinstance(d, int) for d in self.sym):
            return None
        return self.sym  # type: ignore[return-value]  # checked just above

    def without_contents(self) -> Fact:
        """Return the fact without contents: type and shape alone."""
        if self.const is None and self.sym is None:
            return self
        return Fact(self.dtype, self.shape)

    def with_dtype(self, dtype: DType) -> Fact:
        """Return the fact of a tensor of this shape and another element type."""
        return Fact(dtype, self.shape)

    def shaped(self, shape: Shape | None) -> Fact:
        """Return the fact of a tensor of this element type and another shape."""
        return Fact(self.dtype, shape)

    def with_elements(self, sym: Shape | None) -> Fact:
        """Return the fact with known elements."""
        return replace(self, sym=sym)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[?]"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@frozen
class SequenceFact:
    """A sequence of values; `parts` has the fact of each, if the length is known."""

    elem: AnyFact | None  # None if unknown
    parts: tuple[AnyFact, ...] | None = None

    def without_contents(self) -> SequenceFact:
        """Return the fact without those of the single elements."""
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


NewDim = Callable[[str], Dim]
AnyFact = Fact | SequenceFact | OptionalFact | MapFact | SparseFact


def refines(new: AnyFact, old: AnyFact) -> bool:
    """Return whether `new` may replace `old`: same type, no dim known to differ."""
    if isinstance(new, Fact) and isinstance(old, Fact):
        if new.dtype is not old.dtype:
            return False
        if new.shape is None or old.shape is None or new.shape == old.shape:
            return True
        return len(new.shape) == len(old.shape) and all(
            same(a, b) is not False for a, b in zip(new.shape, old.shape, strict=True)
        )
    return type(new) is type(old)


def filled(fact: AnyFact | None, declared: Shape | None) -> AnyFact | None:
    """Return the fact with declared sizes in place of unknown ones, or of an unknown rank.

    A declared shape of another rank, or of too many elements, is ignored.
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
    """Return the number of elements, or None if the rank is unknown."""
    return None if fact.shape is None else product(fact.shape)


def names_in(fact: AnyFact | None) -> Iterator[str]:
    """Return the names of the symbolic sizes in a fact."""
    if isinstance(fact, Fact):
        for d in (*(fact.shape or ()), *(fact.sym or ())):
            yield from symbols(d)
    elif isinstance(fact, SequenceFact):
        for part in (fact.elem, *(fact.parts or ())):
            yield from names_in(part)
    elif isinstance(fact, OptionalFact):
        yield from names_in(fact.elem)
