"""Classifies additive attention masks: causal, padding (a mask of zeros and ones), or a bias."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.graph import Value, input_of
from sardonyx.graph.op import ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need, ranked
from sardonyx.passes.attention import sum_of
from sardonyx.passes.rule import scalar
from sardonyx.transformers.attention_match import Attention
from sardonyx.transformers.fusion import as_int32, has_unit_steps

_FILTER: Final = -1e4  # the default of mask_filter_value
_VIEWS: Final = ("Cast", "Identity", "Reshape", "Slice", "Unsqueeze")
_SAMPLES, _QUERIES = -4, -2  # dims of masks, from the last
# Ops whose results vary along a dim only if an operand does; of the second set, the first one.
_POINTWISE: Final = ("Add", "And", "Cast", "Mul", "Not", "Or", "Sub", "Where")
_REPEATED: Final = ("Expand", "Slice")


@frozen
class Masks:
    """The masks of an attention, as its op takes them."""

    is_causal: bool = False
    padding: Value | None = None  # [batch, keys] in int32, 0 for masked keys
    low: float = _FILTER  # the score of these
    bias: Value | None = None  # [batch or 1, heads or 1, rows, keys], added to scores


def masks_of(b: Builder, found: Attention, may_be_causal: bool, is_decoder: bool) -> Masks:
    """Return the masks of an attention; without `may_be_causal`, all but padding is a bias.

    In a decoder, a mask that differs between queries and not between samples is causal.
    """
    rows, keys = found.q.value.tensor.dims[2], found.k.whole.tensor.dims[2]
    if found.selected is not None:
        whole, cut = _uncut(found.selected.mask)
        is_whole = whole.tensor.rank == 4 and cut == _last_rows(rows, keys)
        need(is_whole and not found.masks, "a mask multiplies the scores")
        return Masks(padding=as_int32(b, whole), low=found.selected.low)
    is_causal, padding, low, others = False, None, _FILTER, []
    for mask in found.masks:
        raw = _padding(mask, found)
        is_assumed = is_decoder and _differs(mask, _QUERIES) and not _differs(mask, _SAMPLES)
        if may_be_causal and (is_assumed or _is_causal(mask, rows, keys)):
            is_causal = True
        elif raw is not None and padding is None:
            padding, low = raw
        else:
            others.append(mask)
    # A triangle that is as large as the longest sequence has a row for each query.
    need(is_causal or found.rows == rows, "a mask adds queries")
    bias = sum_of(b, others)
    if bias is not None:
        bias = _expanded(b, bias, found)
    return Masks(is_causal, None if padding is None else as_int32(b, padding), low, bias)


def _differs(mask: Value, dim: int) -> bool:
    """Whether a mask may differ along a dim."""
    shape, node = mask.tensor.shape, mask.node
    if shape is not None and (len(shape) < -dim or shape[dim] == 1):
        return False
    if node is None or node.op.domain != ONNX or node.op.name not in (*_POINTWISE, *_REPEATED):
        return True
    operands = node.inputs[:1] if node.op.name in _REPEATED else node.inputs
    return any(_differs(value, dim) for value in operands if value is not None)


def _padding(mask: Value, found: Attention) -> tuple[Value, float] | None:
    """Return the mask of ones [batch, keys] in (1 - mask) * low, and low."""
    node = mask.node
    if node is None or node.op.key != (ONNX, "Mul"):
        return None
    for i in (0, 1):
        low, rest = scalar(input_of(node, 1 - i)), input_of(node, i).node
        if low is None or low > _FILTER or rest is None or rest.op.key != (ONNX, "Sub"):
            continue
        if scalar(input_of(rest, 0)) == 1:
            source, batch = _viewed(input_of(rest, 1)), found.q.value.tensor.dims[0]
            # One mask for all samples is a bias: the op does not broadcast it.
            is_whole = source is not None and (source.tensor.dims[0] != 1 or batch == 1)
            return (source, low) if source is not None and is_whole else None
    return None


def _viewed(value: Value) -> Value | None:
    """Return the matrix [batch, keys] of which a mask [batch, 1, 1, keys] is a view."""
    ranked(value)
    dims = value.tensor.dims
    if len(dims) != 4 or dims[1:3] != (1, 1) or dims[3] == 1:
        return None
    expected, found = (dims[0], dims[3]), None
    while value.node is not None and value.op in _VIEWS:
        value = input_of(value.node, 0)
        ranked(value)
        if value.tensor.dims == expected:
            found = value
    return found


def _is_causal(mask: Value, rows: Size, keys: Size) -> bool:
    """Whether a mask lets each of the last rows see the keys up to its own."""
    node = mask.node
    if node is None or node.op.key != (ONNX, "Where"):
        return False
    low = scalar(input_of(node, 2))
    if scalar(input_of(node, 1)) != 0 or low is None or low > _FILTER:
        return False
    return _is_lower_triangle(input_of(node, 0), rows, keys)


def _is_lower_triangle(value: Value, rows: Size, keys: Size) -> bool:
    """Whether a value is the last rows of a lower-triangular matrix of ones, a column per key.

    It is cut out of a constant one, which is as large as the longest sequence.
    """
    value, cut = _uncut(value)
    const = value.const
    if const is None or value.tensor.rank != 4 or value.tensor.dims[:2] != (1, 1):
        return False
    if cut != _last_rows(rows, keys):
        return False
    table = const.read()[0, 0]
    return table.shape[0] == table.shape[1] and np.array_equal(table != 0, np.tri(len(table)) != 0)


def _last_rows(rows: Size, keys: Size) -> dict[int, tuple[Size, Size]]:
    """Return the bounds by axis of the last of as many rows and columns as there are keys."""
    return {2: (keys - rows, keys), 3: (0, keys)}


def _uncut(value: Value) -> tuple[Value, dict[int, tuple[Size, Size]]]:
    """Trace a value back through Casts and Slices; return its source and the bounds by axis."""
    cut: dict[int, tuple[Size, Size]] = {}
    while value.node is not None and value.op in ("Cast", "Slice"):
        node = value.node
        if node.op.name == "Slice":
            starts, ends, axes = (input_of(node, i).tensor for i in (1, 2, 3))
            if starts.sym is None or ends.sym is None or axes.ints is None:
                break
            if not has_unit_steps(node):
                break
            bounds = zip(axes.ints, starts.sym, ends.sym, strict=True)
            cut |= {axis % 4: (start, end) for axis, start, end in bounds}
        value = input_of(node, 0)
    return value, cut


def _expanded(b: Builder, bias: Value, found: Attention) -> Value:
    """Return a bias with a row for each query and a column for each key, as kernels read it."""
    ranked(bias)
    query, keys = found.q.value, found.k.whole
    if bias.tensor.rank < 4:
        bias = b.Unsqueeze(bias, b.ints(*range(4 - bias.tensor.rank)))
    batch, heads, rows, columns = bias.tensor.dims
    need(heads in (1, found.v.count), "the mask has other heads")
    need(batch in (1, query.tensor.dims[0]), "the mask has another batch")
    expected = (query.tensor.dims[2], keys.tensor.dims[2])
    if (rows, columns) == expected:
        return bias
    sizes = [b.ints(1, 1)]
    for size, wanted, source in ((rows, expected[0], query), (columns, expected[1], keys)):
        need(size in (1, wanted), "the mask has other rows or columns")
        sizes.append(b.ints(wanted) if isinstance(wanted, int) else b.Shape(source, start=2, end=3))
    return b.Expand(bias, b.Concat(*sizes, axis=0))
