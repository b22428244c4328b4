"""How large values probably are: bytes for sizes that are open until a run binds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Dim, evaluate, lone_name, symbol, symbols
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value

FIRST: Final = 1  # what the first size of an input is taken for, mostly a batch, where it is open
OTHER: Final = 64
MAX_BYTES: Final = 1 << 44  # sums over any number of nodes stay below 64 bits
_POINTER: Final = 8  # bytes of an element that lies elsewhere


class Sizes:
    """The bytes of a model's values, by hints for the names of sizes and by guesses."""

    def __init__(self, graph: Graph, hints: Mapping[str, int]) -> None:
        # As the model calls dims, and as their sizes are called.
        self._hints = {n: s for name, s in hints.items() for n in (name, str(symbol(name)))}
        self._names: dict[str, int] = {}
        self._numbers: dict[Dim, int | None] = {}
        for part in graph.family():
            for value in part.inputs:
                shape = value.fact.shape if isinstance(value.fact, Fact) else None
                for axis, size in enumerate(shape or ()):
                    name = lone_name(size)
                    if name is not None:
                        self._names.setdefault(name, self._hint(name, OTHER if axis else FIRST))

    def _hint(self, name: str, guess: int) -> int:
        """A name that was split to tell dims apart goes by what the model calls it."""
        return self._hints.get(name, self._hints.get(name.rpartition("#")[0], guess))

    def made(self, node: Node, known: Mapping[Value, int]) -> Iterator[tuple[Value, int]]:
        """What a node makes, with its bytes: where they depend on data, as of its largest input."""
        for value in node.outputs:
            size = self.bytes_of(value.fact)
            if size is None:
                size = max([known.get(v, 0) for v in node.inputs if v is not None], default=0)
            yield value, size

    def bytes_of(self, fact: AnyFact | None) -> int | None:
        """The bytes of a tensor; None where its size depends on data, or it is no tensor."""
        if not isinstance(fact, Fact) or fact.shape is None:
            return None
        count = fact.dtype.itemsize or _POINTER
        for size in fact.shape:
            if isinstance(size, int):
                count *= size
                continue
            if size not in self._numbers:
                self._numbers[size] = self._evaluated(size)
            number = self._numbers[size]
            if number is None:
                return None
            count *= number
        return min(count, MAX_BYTES)

    def _evaluated(self, size: Dim) -> int | None:
        if not symbols(size) <= self._names.keys():
            return None
        try:
            return min(max(0, evaluate(size, self._names)), MAX_BYTES)
        except SardonyxError:  # guesses need not fit together
            return None
