"""Histograms of tensors over calibration data, and the ranges that follow from them.

A histogram is made in two passes over the batches of one call, first for the range and then for the
counts, so that only one batch must be in memory; the counts are those of all data at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import mutable, replace
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.quantization.tensors_data import TensorData

Batches = Callable[[], Iterable[Mapping[str, Array]]]
METHODS: Final = ("distribution", "entropy", "percentile")
_EPSILON: Final = 0.0001  # probability that empty bins get in `smooth_distribution`
_MIN_BINS: Final = 512  # for mean and deviation


@mutable
class Histogram:
    """Counts of values between edges, and the range of the values."""

    counts: Array
    edges: Array
    lowest: Any
    highest: Any
    threshold: Any = None  # the largest absolute value; None for a histogram of absolute values


@mutable
class _Range:
    """The range of the values of a tensor, and of their absolute values."""

    lowest: Any
    highest: Any
    smallest: Any
    largest: Any

    @classmethod
    def of(cls, array: Array) -> _Range:
        if not array.size:
            zero = np.array(0, array.dtype)
            return cls(zero, zero, zero, zero)
        size = np.abs(array)
        return cls(np.nanmin(array), np.nanmax(array), size.min(), np.nanmax(size))

    def joined(self, other: _Range) -> _Range:
        low, high = min(self.lowest, other.lowest), max(self.highest, other.highest)
        small, large = min(self.smallest, other.smallest), max(self.largest, other.largest)
        return _Range(low, high, small, large)


class HistogramCollector:
    """Collects a histogram per tensor."""

    def __init__(
        self,
        method: str,
        symmetric: bool,
        num_bins: int,
        num_quantized_bins: int,
        percentile: float,
        scenario: str,
    ) -> None:
        if method not in METHODS:
            raise ValueError("Only 'entropy', 'percentile' or 'distribution' methods are supported")
        self.histogram_dict: dict[str, Histogram] = {}
        self.method = method
        self.symmetric = symmetric
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario

    def get_histogram_dict(self) -> dict[str, Histogram]:
        """Return the histograms by tensor."""
        return self.histogram_dict

    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Add arrays, or lists of arrays, by tensor."""
        lists = {n: v if isinstance(v, list) else [v] for n, v in name_to_arr.items()}
        longest = max(map(len, lists.values()), default=0)
        batches = [{n: v[i] for n, v in lists.items() if i < len(v)} for i in range(longest)]
        self.collect_batches(lambda: batches)

    def collect_batches(self, batches: Batches) -> None:
        """Add the tensors of batches, which are computed twice."""
        ranges: dict[str, _Range] = {}
        for batch in batches():
            for name, array in batch.items():
                new = _Range.of(np.asarray(array))
                ranges[name] = ranges[name].joined(new) if name in ranges else new
        is_absolute = self.method == "percentile" and self.symmetric
        widened = _widened_absolute if is_absolute else _widened
        for name, span in ranges.items():
            old = self.histogram_dict.get(name)
            self.histogram_dict[name] = widened(old, span, self.num_bins)
        for batch in batches():
            for name, array in batch.items():
                flat = np.asarray(array).reshape(-1)
                self._count(self.histogram_dict[name], np.abs(flat) if is_absolute else flat)

    def _count(self, histogram: Histogram, values: Array) -> None:
        if histogram.threshold is None:
            counts, _ = np.histogram(values, bins=histogram.edges)
        else:
            limit, bins = histogram.threshold, len(histogram.counts)
            counts, _ = np.histogram(values, bins, range=(-limit, limit))
        histogram.counts = histogram.counts + counts

    def compute_collection_result(self) -> dict[str, Any]:
        """Return the range of each tensor, or its distribution."""
        if not self.histogram_dict:
            raise ValueError("Histogram has not been collected. Please run collect() first.")
        if self.method == "percentile" and not 0 <= self.percentile <= 100:
            raise ValueError("Invalid percentile. Must be in range 0 <= percentile <= 100.")
        if self.method == "distribution":
            self._check_distribution()
        compute = {
            "entropy": self._by_entropy,
            "percentile": self._by_percentile,
            "distribution": self._distribution,
        }[self.method]
        return {name: compute(histogram) for name, histogram in self.histogram_dict.items()}

    def _by_percentile(self, histogram: Histogram) -> tuple[Any, ...]:
        counts, edges = histogram.counts, histogram.edges
        share = np.cumsum(counts / counts.sum())
        if self.symmetric:
            right = np.searchsorted(share, self.percentile / 100.0)
            high = np.array(edges[right], edges.dtype)
            low = -high
        else:
            cut = (100.0 - self.percentile) / 200.0
            high = np.array(edges[np.searchsorted(share, 1.0 - cut)], edges.dtype)
            low = np.array(edges[np.searchsorted(share, cut)], edges.dtype)
        return *_clipped(low, high, histogram), *counts[:2]

    def _by_entropy(self, histogram: Histogram) -> tuple[Any, ...]:
        low, high = entropy_range(histogram, self.num_quantized_bins)
        return low, high, histogram.counts, histogram.edges

    def _check_distribution(self) -> None:
        if self.num_bins < _MIN_BINS:
            raise ValueError(f"Invalid num_bins. Must be in range {_MIN_BINS} <= num_bins.")
        if self.scenario not in ("same", "p3"):
            raise ValueError("Invalid scenario. Must be in {'same', 'p3'}.")

    def _distribution(self, histogram: Histogram) -> TensorData:
        edges = histogram.edges
        power = 1.0 if self.scenario == "same" else 1.0 / 3.0
        avg, std = mean_and_deviation(histogram.counts, edges, power)
        return TensorData(
            avg=avg,
            std=std,
            hist=histogram.counts,
            hist_edges=edges,
            lowest=edges.min(),
            highest=edges.max(),
        )


def _widened(old: Histogram | None, span: _Range, bins: int) -> Histogram:
    """Return a histogram, symmetric to 0, whose bins hold a range; bins keep their width."""
    limit: Any = np.array(span.largest)
    if old is None:
        _, edges = np.histogram(np.empty(0, limit.dtype), bins, range=(-limit, limit))
        return Histogram(np.zeros(bins, np.int64), edges, span.lowest, span.highest, limit)
    low, high = min(old.lowest, span.lowest), max(old.highest, span.highest)
    if limit <= old.threshold:
        return replace(old, lowest=low, highest=high)
    counts = old.counts
    if old.threshold != 0:
        width = 2 * old.threshold / len(counts)
        added = int((limit - old.threshold) // width + 1)
        limit = np.array(added * width + old.threshold, limit.dtype)
        counts = np.pad(counts, added)
    _, edges = np.histogram(np.empty(0, limit.dtype), len(counts), range=(-limit, limit))
    return Histogram(counts, edges, low, high, limit)


def _widened_absolute(old: Histogram | None, span: _Range, bins: int) -> Histogram:
    """Return a histogram of absolute values whose bins hold a range."""
    if old is None:
        dtype = np.asarray(span.largest).dtype
        limits = span.smallest, span.largest
        _, edges = np.histogram(np.empty(0, dtype), bins, range=limits)
        counts = np.zeros(bins, np.int64)
        return Histogram(counts, edges.astype(dtype), span.lowest, span.highest)
    counts, edges = old.counts, old.edges
    if span.largest > edges[-1]:
        width = edges[1] - edges[0]
        more = np.arange(edges[-1] + width, span.largest + width, width)
        edges = np.hstack((edges, more)).astype(edges.dtype)
        counts = np.pad(counts, (0, len(edges) - 1 - len(counts)))
    low, high = min(old.lowest, span.lowest), max(old.highest, span.highest)
    return Histogram(counts, edges, low, high)


def _clipped(low: Any, high: Any, histogram: Histogram) -> tuple[Any, Any]:
    """Return a range without what no value reaches."""
    low = histogram.lowest if low < histogram.lowest else low
    high = histogram.highest if high > histogram.highest else high
    return low, high


def entropy_range(histogram: Histogram, num_quantized_bins: int) -> tuple[Any, Any]:
    """Return the range that loses least when its values are quantized, by KL divergence.

    Candidates are symmetric in bins; outliers count in the first and last bin.
    See https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    counts, edges = histogram.counts, histogram.edges
    middle, fewest = counts.size // 2, num_quantized_bins // 2
    if fewest > middle:
        raise InvalidArgument(
            f"{num_quantized_bins} quantized bins are more than the {counts.size} of the histogram",
            hint="raise num_bins or lower num_quantized_bins",
        )
    best, found = None, (edges[0], edges[-1])
    for half in range(fewest, middle + 1):
        start, end = middle - half, min(middle + half + 1, counts.size)
        divergence = _divergence(counts, start, end, num_quantized_bins)
        if best is None or divergence < best:
            best, found = divergence, (edges[start], edges[end])
    return _clipped(*found, histogram)


def _divergence(counts: Array, start: int, end: int, n_quantized: int) -> float:
    """Return the KL divergence of a part of a histogram from itself with fewer bins."""
    inner = counts[start:end]
    reference = inner.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[end:].sum()
    merged = inner.size // n_quantized
    used = merged * n_quantized
    bins = inner[:used].reshape(n_quantized, merged).sum(axis=1)
    bins[-1] += inner[used:].sum()
    norms = (reference[:used] != 0).reshape(n_quantized, merged).sum(axis=1)
    # Each quantized bin spreads over the bins it was merged from.
    means = np.divide(bins, norms, out=np.zeros(n_quantized), where=norms != 0).astype(np.int64)
    spread = np.zeros(inner.size, np.int64)
    spread[:used] = np.repeat(means, merged)
    p, q = smooth_distribution(reference), smooth_distribution(spread)
    return float("inf") if p is None or q is None else float(entropy(p, q))


def smooth_distribution(p: Array, eps: float = _EPSILON) -> Array | None:
    """Return counts without zeros: each zero becomes `eps`, taken off the others; None if all are.

    None too if there are so many zeros that nothing would be left of the others.
    """
    n_zeros = int((p == 0).sum())
    n_others = p.size - n_zeros
    if not n_others or eps * n_zeros / n_others >= 1.0:
        return None
    smoothed: Array = p.astype(np.float32)
    smoothed += np.where(p == 0, eps, -eps * n_zeros / n_others).astype(np.float32)
    return smoothed if (smoothed > 0).all() else None


def relative_entropy(pk: Array, qk: Array) -> Array:
    """Return p log(p / q) by element: 0 where p is 0, infinite where only q is."""
    result: Array = np.full(pk.shape, np.inf, pk.dtype)
    both = (pk > 0) & (qk > 0)
    result[both] = pk[both] * np.log(pk[both] / qk[both])
    result[(pk == 0) & (qk >= 0)] = 0
    return result


def entropy(pk: Any, qk: Any, base: float | None = None, axis: int = 0) -> Any:
    """Return the KL divergence of q from p, both of which are normalized first."""
    if base is not None and base <= 0:
        raise ValueError(f"base={base} must be a positive number or None")
    p, q = np.asarray(pk, np.float32), np.asarray(qk, np.float32)
    p = p / np.sum(p, axis=axis, keepdims=True)
    p, q = np.broadcast_arrays(p, q)
    q = q / np.sum(q, axis=axis, keepdims=True)
    total = np.sum(relative_entropy(p, q), axis=axis)
    return (total if base is None else total / np.log(base)).astype(p.dtype)


def mean_and_deviation(counts: Array, edges: Array, power: float) -> tuple[Array, Array]:
    """Return mean and standard deviation of a histogram of values, raised to a power."""
    values = (edges[:-1] + edges[1:]) * 0.5
    if power != 1:
        values = np.sign(values) * np.abs(values) ** power
    total = counts.sum()
    avg = (counts * values).sum() / total
    std = ((counts * values**2).sum() / total - avg**2) ** 0.5
    return np.array(avg, edges.dtype), np.array(std, edges.dtype)
