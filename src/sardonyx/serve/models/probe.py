"""Trial runs at load time: warm-up, and a check that batching does not change results.

Declared shapes cannot tell whether rows of a batch are independent, or whether a mask hides what
padding adds. So small requests are run alone and joined; a model whose results differ by more than
rounding does not batch.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.serve.batching.cost import CostModel
from sardonyx.serve.batching.joining import BatchLayout, element_count
from sardonyx.serve.models.signature import Signature, TensorSpec
from sardonyx.serve.protocol.datatypes import Array
from sardonyx.session import InferenceSession

_OPEN: Final = 4  # the size of open dims other than those of batch and padding
_LENGTHS: Final = (8, 5)
_TOLERANCE: Final = 2e-3  # of an output's largest value; rounding depends on the shapes of a run
_MAX_ELEMENTS: Final = 1 << 24
_COST_ROWS: Final = (1, 8)
_LONG_RUN_S: Final = 0.25


class Prober:
    """Makes feeds of random small values for a signature, and runs them."""

    def __init__(self, session: InferenceSession, signature: Signature) -> None:
        self._session = session
        self._signature = signature
        self._random = np.random.default_rng(7)

    def feed(self, rows: int, length: int, padded: str | None) -> dict[str, Array]:
        """Return inputs of so many rows; `padded` names the dim that has the length."""
        required = self._signature.inputs[: self._signature.n_required]
        return {spec.name: self._tensor(spec, rows, length, padded) for spec in required}

    def _tensor(self, spec: TensorSpec, rows: int, length: int, padded: str | None) -> Array:
        shape = [
            dim
            if isinstance(dim, int)
            else rows
            if axis == 0
            else length
            if dim == padded
            else _OPEN
            for axis, dim in enumerate(spec.shape)
        ]
        if np.prod(shape, dtype=np.int64) > _MAX_ELEMENTS:
            raise MemoryError("the declared shapes are too large for a trial run")
        dtype = spec.datatype.dtype
        if dtype.kind == "O":
            return np.full(shape, "a", object)
        if dtype.kind in "iub":
            # Ids, of which every vocabulary has the first two; a mask that hides nothing.
            ones = "mask" in spec.name.lower()
            values = np.ones(shape) if ones else self._random.integers(0, 2, shape)
            return values.astype(dtype)
        return self._random.random(shape).astype(dtype)

    def run(self, feed: dict[str, Array]) -> list[Array]:
        """Return the outputs of a feed."""
        results: list[Array] = self._session.run(None, feed)
        return results

    def joins(self, layout: BatchLayout) -> bool:
        """Return whether batched requests get the same results as each request alone."""
        padded = None if layout.padding is None else layout.padding.dim
        lengths = _LENGTHS if padded is not None else (_LENGTHS[0],) * 2
        feeds = [
            self.feed(rows, length, padded) for rows, length in zip((1, 2), lengths, strict=True)
        ]
        try:
            alone = [self.run(feed) for feed in feeds]
            joined = self.run(layout.join(feeds, max(lengths)))
        except (SardonyxError, MemoryError, ValueError):
            return False
        if any(not output.shape or output.shape[0] != 3 for output in joined):
            return False
        parts = layout.split(joined, (1, 2), lengths)
        pairs = zip(alone, parts, strict=True)
        return all(_equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))

    def fit(self, cost: CostModel, layout: BatchLayout | None) -> None:
        """Warm up, and measure runs of few and of more rows to initialize the cost model."""
        padded = layout.padding.dim if layout is not None and layout.padding is not None else None
        for rows in _COST_ROWS if layout is not None else (1,):
            try:
                feed = self.feed(rows, 4 * _LENGTHS[0], padded)
                seconds = self._time(feed)
            except (SardonyxError, MemoryError, ValueError):
                return  # a model that rejects random inputs: the cost is fitted to real requests
            length = element_count(feed) if layout is None else layout.length(feed)
            cost.add(rows * length, seconds)
            if seconds > _LONG_RUN_S:
                return

    def _time(self, feed: dict[str, Array]) -> float:
        """Return the shortest of a few runs, after one that prepares for these sizes."""
        self.run(feed)
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            self.run(feed)
            best = min(best, time.perf_counter() - started)
            if best > _LONG_RUN_S:
                break
        return best


def _equal(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "OUSb":
        return bool((a == b).all())
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.abs(x[np.isfinite(x)]).max(initial=1e-6))
    return bool(np.allclose(x, y, rtol=0, atol=_TOLERANCE * scale, equal_nan=True))
