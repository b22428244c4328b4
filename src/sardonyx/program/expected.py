"""Checks values that Python code produces against inference, before compiled code reads them."""

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
    """The type, rank and sizes that inference has for a tensor.

    Kernels do not check their operands: they rely on inference. So values that come from Python (a
    reference, a custom op, a region of another library, the inputs of a body) are checked once.
    """

    position: int  # among the outputs of the step, or the inputs of the body
    dtype: DType
    rank: int
    sizes: tuple[tuple[int, Size], ...]  # (axis, size) of those that are known by then
    fact: Fact  # for messages

    def check(self, value: Any, dims: Mapping[str, int], node: Node | None) -> None:
        """Raise if a value that a node produced differs from what was inferred."""
        shape = getattr(value, "shape", None)
        # Strings may be any object array, and tensors of devices have types of their library.
        is_array = isinstance(value, np.ndarray) and self.dtype is not STRING
        if is_array and value.dtype != self.dtype.np:
            self._fail(value, node)
        if shape is None or len(shape) != self.rank:
            self._fail(value, node)
        for axis, size in self.sizes:
            if shape[axis] != (size if isinstance(size, int) else evaluate(size, dims)):
                self._fail(value, node)

    def _fail(self, value: Any, node: Node | None) -> NoReturn:
        """Raise: a custom op broke its declaration, or a reference of ours is wrong."""
        dtype = getattr(value, "dtype", type(value).__name__)
        got = f"{dtype}{list(getattr(value, 'shape', ()))}"
        what = f"value {self.position} is {got}, and {self.fact} was inferred"
        if node is not None and node.op.is_custom:
            raise RuntimeException(
                f"the function of {node.op} returned something else than declared: {what}",
                node=node,
                hint="correct the op's shape rule or types, or what its function returns",
            )
        raise InternalError(what, node=node or "the body of a node")


def expected(
    facts: Sequence[AnyFact | None], bound: Iterable[str], binds: Iterable[tuple[int, int, str]]
) -> tuple[Expected, ...]:
    """Return the checks of values with these facts, where the dims named in `bound` have sizes.

    Dims that get their sizes from these very values (`binds`) may have any.
    """
    known, resolved = set(bound), {(position, axis) for position, axis, _ in binds}
    checks = []
    for position, fact in enumerate(facts):
        if not isinstance(fact, Fact) or fact.shape is None:
            continue
        sizes = tuple(
            (axis, size)
            for axis, size in enumerate(fact.shape)
            if (position, axis) not in resolved and symbols(size) <= known
        )
        checks.append(Expected(position, fact.dtype, len(fact.shape), sizes, fact))
    return tuple(checks)
