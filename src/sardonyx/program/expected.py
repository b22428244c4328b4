"""What values that come to be must look like: the types and shapes that compiled code rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError, RuntimeException
from sardonyx.graph.dim import Size, evaluate, symbols
from sardonyx.graph.dtype import STRING, DType
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Node


@frozen
class Expected:
    """The type, rank and sizes of a tensor, as inference has them.

    Kernels trust inference. Whatever Python makes (a reference, a custom op, a region of another
    library, what a body is called with) is compared with it once, before anything reads it.
    """

    position: int  # among the values that come at once
    dtype: DType
    rank: int
    sizes: tuple[tuple[int, Size], ...]  # (axis, size) of those that are known when it comes
    fact: Fact  # for messages

    def check(self, value: Any, dims: Mapping[str, int], node: Node | None) -> None:
        """Raises an error where a value that a node made is another than inference said."""
        shape = getattr(value, "shape", None)
        is_array = isinstance(value, np.ndarray) and self.dtype is not STRING
        if is_array and value.dtype != self.dtype.np:
            self._fail(value, node)
        if shape is None or len(shape) != self.rank:
            self._fail(value, node)
        for axis, size in self.sizes:
            wanted = size if isinstance(size, int) else evaluate(size, dims)
            if shape[axis] != wanted:
                self._fail(value, node)

    def _fail(self, value: Any, node: Node | None) -> NoReturn:
        """A user's own function broke its word, or inference and a reference of ours disagree."""
        dtype = getattr(value, "dtype", type(value).__name__)
        got = f"{dtype}{list(getattr(value, 'shape', ()))}"
        what = f"value {self.position} came to be {got}, and {self.fact} was promised"
        if node is not None and node.op.is_custom:
            raise RuntimeException(
                f"the function of {node.op} returned something else than declared: {what}",
                node=node,
                hint="mend the op's shape rule or types, or what its function returns",
            )
        raise InternalError(what, node=node or "the body of a node")


def expected(
    facts: Sequence[AnyFact | None], bound: Iterable[str], binds: Iterable[tuple[int, int, str]]
) -> tuple[Expected, ...]:
    """What to expect of values with these facts, where the names in `bound` are known before.

    Sizes that the values themselves settle (`binds`) may be any.
    """
    known, settled = set(bound), {(position, axis) for position, axis, _ in binds}
    made = []
    for position, fact in enumerate(facts):
        if not isinstance(fact, Fact) or fact.shape is None:
            continue
        sizes = tuple(
            (axis, size)
            for axis, size in enumerate(fact.shape)
            if (position, axis) not in settled and symbols(size) <= known
        )
        made.append(Expected(position, fact.dtype, len(fact.shape), sizes, fact))
    return tuple(made)
