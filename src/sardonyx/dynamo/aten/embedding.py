"""Embeddings and embedding bags, and their gradients."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.dynamo.aten.shape import non_negative, positions, zeros
from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, Unsupported, expression_of
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BF16, F16, F32, I64, DType
from sardonyx.graph.graph import Value

_SUM, _MEAN, _MAX = range(3)  # torch's modes of embedding bags
_HALVES: Final = (F16, BF16)


@lowers("embedding.default")
def _(b: AtenBuilder, weight: Value, indices: Value, *_: Any) -> Value:
    rows = b.Gather(weight, non_negative(b, indices, weight, 0), axis=0)
    return rows if indices.tensor.rank else b.Squeeze(rows, b.ints(0))


@lowers("embedding_dense_backward.default")
def _(
    b: AtenBuilder, dy: Value, indices: Value, n: Dimension, padding_idx: int, by_frequency: bool
) -> Value:
    flat = b.Reshape(b.cast(indices, I64), b.ints(-1, 1))
    rows = b.Reshape(dy, b.sizes([b.fake(1).numel(), b.fake(0).shape[-1]]), allowzero=1)
    return _weight_gradient(b, rows, flat, n, padding_idx, by_frequency)


def _weight_gradient(
    b: AtenBuilder, rows: Value, flat: Value, n: Dimension, padding_idx: int, by_frequency: bool
) -> Value:
    """Add gradient rows to the rows of n embeddings that index tuples [m, 1] name."""
    dtype = rows.tensor.dtype
    if by_frequency:
        counts = _counts(b, flat, n, b.const(1, dtype))
        rows = b.Div(rows, b.Gather(counts, flat, axis=0))
    if padding_idx >= 0:
        rows = b.Where(b.Equal(flat, padding_idx), b.const(0, dtype), rows)
    return b.ScatterND(zeros(b, b.out.shape, rows), flat, rows, reduction=b"add")


def _counts(b: AtenBuilder, tuples: Value, n: Dimension, ones: Value) -> Value:
    """Return the sum of `ones` (how often, if all are 1) for each of n numbers in tuples [m, 1]."""
    ones = b.Expand(ones, b.Slice(b.Shape(tuples), b.ints(0), b.ints(1)))
    return b.ScatterND(zeros(b, [n], ones), tuples, ones, reduction=b"add")


class _Bags:
    """The bags of one call: which indices belong to which bag, and which of them count."""

    def __init__(
        self, b: AtenBuilder, indices: Value, offsets: Value, n_bags: Dimension, padding_idx: int
    ) -> None:
        self._b, self.n_bags = b, n_bags
        self.n_indices = _fake_of(b, indices)
        self.indices = b.Reshape(b.cast(indices, I64), b.ints(-1, 1))
        starts = b.Slice(b.cast(offsets, I64), b.ints(0), b.sizes([n_bags]))
        # The bag of an index is the number of bags that start at or before it, minus 1.
        empty = b.Expand(b.const(0, I64), b.sizes([self.n_indices + 1]))
        ones = b.Expand(b.const(1, I64), b.Shape(starts))
        marks = b.ScatterElements(empty, starts, ones, axis=0, reduction=b"add")
        within = b.Slice(marks, b.ints(0), b.sizes([self.n_indices]))
        self.bag = b.Unsqueeze(b.Sub(b.CumSum(within, b.const(0, I64)), 1), b.ints(-1))
        self.is_padding = b.Equal(self.indices, padding_idx) if padding_idx >= 0 else None

    def masked(self, rows: Value, value: float) -> Value:
        """Return rows [indices, ...] with a number in those of the padding index."""
        if self.is_padding is None:
            return rows
        return self._b.Where(self.is_padding, self._b.const(value, rows.tensor.dtype), rows)

    def sizes(self, dtype: DType) -> Value:
        """Return the number of indices in each bag, without padding."""
        b = self._b
        ones = b.Expand(b.const(1, dtype), b.Shape(self.indices))
        ones = b.Squeeze(self.masked(ones, 0), b.ints(1))
        return _counts(b, self.bag, self.n_bags, ones)

    def reduced(self, rows: Value, reduction: bytes, start: Any) -> Value:
        """Return rows [indices, width] reduced over each bag, from the number `start`."""
        b = self._b
        shape = b.Concat(b.sizes([self.n_bags]), b.element(b.Shape(rows), 1), axis=0)
        first = b.Expand(b.const(start, rows.tensor.dtype), shape)
        return b.ScatterND(first, self.bag, rows, reduction=reduction)


def _fake_of(b: AtenBuilder, indices: Value) -> Dimension:
    """Return the number of indices of the call being lowered."""
    position = 2 if "per_sample_weights_backward" in str(b.call_node.target) else 1
    return b.fake(position).numel()  # type: ignore[no-any-return]


@lowers("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _(
    b: AtenBuilder,
    weight: Value,
    indices: Value,
    offsets: Value,
    by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: Value | None = None,
    include_last: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, ...]:
    if sparse:
        raise Unsupported("its gradient is sparse")
    y_fake, bag_fake, size_fake, max_fake = b.out
    bags = _Bags(b, indices, offsets, y_fake.shape[0], padding_idx)
    rows = b.Gather(weight, b.Squeeze(bags.indices, b.ints(1)), axis=0)
    dtype = weight.tensor.dtype
    wide = F32 if dtype in _HALVES else dtype
    rows = b.cast(rows, wide)
    if weights is not None:
        rows = b.Mul(rows, b.Unsqueeze(b.cast(weights, wide), b.ints(-1)))
    counts = bags.sizes(I64)
    y, largest = _reduced_bags(b, bags, rows, counts, mode)
    if largest is None:
        largest = b.Expand(b.const(0, I64), b.sizes(max_fake.shape))
    bag = b.Squeeze(bags.bag, b.ints(1))
    if expression_of(bag_fake.shape[0]) == 0:  # torch's fast path does not compute it
        bag = b.Expand(b.const(0, I64), b.ints(0))
    counts = b.Pad(counts, b.sizes([0, size_fake.shape[0] - y_fake.shape[0]]))
    return b.cast(y, dtype), *(
        b.to(v, f.dtype) for v, f in ((bag, bag_fake), (counts, size_fake), (largest, max_fake))
    )


def _reduced_bags(
    b: AtenBuilder, bags: _Bags, rows: Value, counts: Value, mode: int
) -> tuple[Value, Value | None]:
    """Return the reduction of each bag and, of maxima, the index of each."""
    n_rows = b.Unsqueeze(counts, b.ints(-1))
    if mode == _MAX:
        rows = bags.masked(rows, float("-inf"))
        top = bags.reduced(rows, b"max", float("-inf"))
        y = b.Where(b.Equal(n_rows, 0), b.const(0, rows.tensor.dtype), top)
        return y, _first_largest(b, bags, rows, top)
    y = bags.reduced(bags.masked(rows, 0), b"add", 0)
    if mode == _MEAN:
        y = b.Div(y, b.cast(b.Max(n_rows, b.const(1, I64)), rows.tensor.dtype))
    return y, None


def _first_largest(b: AtenBuilder, bags: _Bags, rows: Value, top: Value) -> Value:
    """Return the index of the first largest element of each bag and column."""
    count = b.size(bags.n_indices)
    is_top = b.Equal(rows, b.Gather(top, b.Squeeze(bags.bag, b.ints(1)), axis=0))
    at = b.Where(is_top, b.Unsqueeze(positions(b, bags.n_indices), b.ints(-1)), count)
    shape = b.Shape(top)
    first = b.ScatterND(b.Expand(count, shape), bags.bag, at, reduction=b"min")
    # An empty bag has no first element; its gradient is masked.
    first = b.Min(first, b.Sub(count, 1))
    return b.Gather(b.Squeeze(bags.indices, b.ints(1)), first, axis=0)


@lowers("_embedding_bag_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    largest: Value,
    n: Dimension,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    if sparse:
        raise Unsupported("its gradient is sparse")
    n_bags = b.fake(0).shape[0]
    if mode == _MAX:
        counts = b.Slice(bag_size, b.ints(0), b.sizes([n_bags]))
        is_empty = b.Equal(b.Unsqueeze(counts, b.ints(-1)), 0)
        masked = b.Where(is_empty, b.const(0, dy.tensor.dtype), dy)
        where = b.cast(largest, I64)
        return b.ScatterElements(zeros(b, b.out.shape, dy), where, masked, axis=0, reduction=b"add")
    bags = _Bags(b, indices, offsets, n_bags, padding_idx)
    if mode == _MEAN:
        counts = b.Max(bags.sizes(I64), b.const(1, I64))
        dy = b.Div(dy, b.cast(b.Unsqueeze(counts, b.ints(-1)), dy.tensor.dtype))
    rows = b.Gather(dy, b.Squeeze(bags.bag, b.ints(1)), axis=0)
    if weights is not None:
        rows = b.Mul(rows, b.Unsqueeze(weights, b.ints(-1)))
    return _weight_gradient(b, rows, bags.indices, n, padding_idx, by_frequency)


@lowers("_embedding_bag_per_sample_weights_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    bags = _Bags(b, indices, offsets, b.fake(0).shape[0], padding_idx)
    rows = b.Gather(weight, b.Squeeze(bags.indices, b.ints(1)), axis=0)
    of_bag = b.Gather(dy, b.Squeeze(bags.bag, b.ints(1)), axis=0)
    product = bags.masked(b.Mul(rows, of_bag), 0)
    return b.ReduceSum(product, b.ints(1), keepdims=0)
