"""What values that come to be must look like: the types and shapes that compiled code rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from sardonyx.errors import InternalError
from sardonyx.frozen import frozen
from sardonyx.graph.dim import Size, evaluate, symbols
from sardonyx.graph.dtype import STRING, DType
from sardonyx.graph.fact import AnyFact, Fact


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

    def check(self, value: Any, dims: Mapping[str, int], node: object) -> None:
        """Raises an InternalError where a value is another than inference said."""
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

    def _fail(self, value: Any, node: object) -> NoReturn:
        got = f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"
        raise InternalError(
            f"value {self.position} came to be {got}, and inference says {self.fact}", node=node
        )


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
