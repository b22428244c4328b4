"""Estimated bytes of values whose dims are symbolic until a run binds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Dim, evaluate, lone_name, symbol, symbols
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value

FIRST: Final = 1  # the estimate of an open first dim, which mostly is the batch
OTHER: Final = 64  # estimate of any other open dim: a short sequence
MAX_BYTES: Final = 1 << 44  # so that sums over 2**19 values fit into 64 bits
_POINTER: Final = 8  # bytes of a string element: a reference


class SizeEstimates:
    """Estimates the bytes of values from the user's hints (sardonyx.dim_hints) or defaults."""

    def __init__(self, graph: Graph, hints: Mapping[str, int]) -> None:
        # A hint names a dim as the model does; symbols may be spelled otherwise.
        self._hints = {n: s for name, s in hints.items() for n in (name, str(symbol(name)))}
        self._names: dict[str, int] = {}
        self._numbers: dict[Dim, int | None] = {}
        for each in graph.family():
            for value in each.inputs:
                shape = value.fact.shape if isinstance(value.fact, Fact) else None
                for axis, size in enumerate(shape or ()):
                    name = lone_name(size)
                    if name is not None:
                        self._names.setdefault(name, self._hint(name, OTHER if axis else FIRST))

    def _hint(self, name: str, guess: int) -> int:
        """The hint for a name; `name#2`, made to tell equal names apart, uses that of `name`."""
        return self._hints.get(name, self._hints.get(name.rpartition("#")[0], guess))

    def outputs_of(self, node: Node, known: Mapping[Value, int]) -> Iterator[tuple[Value, int]]:
        """Yield the outputs of a node with their bytes.

        An output whose size depends on data is taken to be as large as the largest input.
        """
        for value in node.outputs:
            size = self.bytes_of(value.fact)
            if size is None:
                size = max([known.get(v, 0) for v in node.inputs if v is not None], default=0)
            yield value, size

    def bytes_of(self, fact: AnyFact | None) -> int | None:
        """The bytes of a tensor; None for other values and for sizes that depend on data."""
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
        except SardonyxError:  # estimates may contradict each other: a negative size
            return None
