"""Recognizes attention as exporters write it: heads, scores, masks, past keys, the result."""

from __future__ import annotations

import itertools

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need, present, ranked
from sardonyx.passes.attention import (
    Scores,
    matched_scores,
    matmul_scores,
    only_reader,
    value_matmul,
)
from sardonyx.passes.rule import known_size, scalar

_MASKED_OUT = -1e4  # what exporters of transformers write for masked scores, or less
_SWAPPED = (0, 1, 3, 2)
_HEADS_FIRST = (0, 2, 1, 3)  # [batch, rows, heads, head] as [batch, heads, rows, head]


@frozen
class Heads:
    """Queries, keys or values as [batch, heads, rows, head], and their sources."""

    value: Value  # of this run, without the past
    projection: Value | None  # [batch, rows, heads * head]; None if not from a projection
    past: Value | None = None  # that is before them in `joined`
    joined: Value | None = None

    @property
    def count(self) -> int:
        return known_size(self.value.tensor.dims[1], "the number of heads is not known")

    @property
    def width(self) -> int:
        return known_size(self.value.tensor.dims[3])

    @property
    def whole(self) -> Value:
        """The heads with those of the past."""
        return self.value if self.joined is None else self.joined


@frozen
class Selected:
    """A multiplicative mask of ones; masked scores become a low number."""

    mask: Value
    low: float


@frozen
class Attention:
    """A matched attention."""

    q: Heads
    k: Heads
    v: Heads
    scale: float
    masks: tuple[Value, ...]
    rows: Size  # of the scores: those of the queries, as far as masks have as many
    result: Value  # [batch, rows, heads * head]
    dtype: DType | None = None  # that the result is cast to
    hidden: Value | None = None  # where this is true, the weights are zeros
    is_guarded: bool = False  # the weights of rows that see no key are zeros, not NaN
    selected: Selected | None = None

    @property
    def heads(self) -> tuple[Heads, Heads, Heads]:
        return self.q, self.k, self.v

    @property
    def projections(self) -> tuple[Value, Value, Value] | None:
        q, k, v = (heads.projection for heads in self.heads)
        return None if q is None or k is None or v is None else (q, k, v)


def matched_attention(b: Builder, softmax: Node) -> Attention:
    """Return the attention around a Softmax."""
    need(softmax.op.key == (ONNX, "Softmax"), "not a Softmax")
    x = input_of(softmax, 0)
    ranked(x)
    need(softmax.attrs["axis"] in (-1, x.tensor.rank - 1), "not along the keys")
    zeroed, hidden = _zeroed(softmax)
    weights, dtype = _narrowed(zeroed)
    matmul, nan_rows = value_matmul(weights)
    scores, selected = _scores(b, x)
    values = input_of(matmul, 1)
    need(scores.masks or values is not matmul.inputs[0], "the weights are read twice")
    q, factor = _heads(b, scores.q)
    k, key_factor = _heads(b, scores.k)
    if dtype is not None:
        values = _widened(b, values, q.value.tensor.dtype)
    v, value_factor = _heads(b, values)
    need(value_factor == 1, "the values are scaled")
    need(q.past is None, "queries have a past")
    need(q.count == k.count == v.count, "heads are shared")
    need(q.width == k.width, "queries and keys have other widths")
    need(scores.groupings <= {q.value.tensor.dims[:2]}, "heads are regrouped after a mask")
    rows = x.tensor.dims[-2]
    result = _result(matmul, (q.value.tensor.dims[0], rows, v.count * v.width))
    scale = scores.scale * factor * key_factor
    return Attention(
        q, k, v, scale, scores.masks, rows, result, dtype, hidden, bool(nan_rows), selected
    )


def _scores(b: Builder, x: Value) -> tuple[Scores, Selected | None]:
    """Return the scores that a Softmax reads, and the mask that multiplies them, if any.

    Megatron writes s * m - (1 - m) * 10000.
    """
    kept, lowered = _product(x, "Sub", 0), _product(x, "Sub", 1)
    if kept is None or lowered is None:
        return matched_scores(b, x, _MASKED_OUT), None
    for i, j in itertools.product((0, 1), repeat=2):
        mask, number = input_of(kept, 1 - i), scalar(input_of(lowered, 1 - j))
        others, scores = input_of(lowered, j).node, input_of(kept, i)
        is_other = others is not None and others.op.key == (ONNX, "Sub")
        if others is None or not is_other or number is None or -number > _MASKED_OUT:
            continue
        if scalar(input_of(others, 0)) == 1 and input_of(others, 1) is mask:
            matmul = present(scores.node, "the scores are an input")
            readers = {node.op.name for node, _ in scores.uses if node is not kept}
            is_read = scores.n_exits or not readers <= {"Shape"}
            need(not is_read and matmul.op.key == (ONNX, "MatMul"), "the scores are read elsewhere")
            return matmul_scores(b, matmul), Selected(mask, -number)
    return matched_scores(b, x, _MASKED_OUT), None


def _product(value: Value, op: str, position: int) -> Node | None:
    """Return the Mul among the operands of a value computed by a node of this op."""
    if value.op != op or value.node is None:
        return None
    factor = input_of(value.node, position).node
    return factor if factor is not None and factor.op.key == (ONNX, "Mul") else None


def _zeroed(softmax: Node) -> tuple[Node, Value | None]:
    """Return the node that computes the weights, and the mask by which it zeroes some of them.

    Scores are masked out by the same mask, so this matters where it hides all keys.
    """
    weights, masked = softmax.outputs[0], input_of(softmax, 0).node
    reader = only_reader(weights)
    if reader is None or reader.op.key != (ONNX, "Where") or reader.inputs[2] is not weights:
        return softmax, None
    hidden = input_of(reader, 0)
    is_zero = scalar(input_of(reader, 1)) == 0
    is_same = masked is not None and masked.op.name == "Where" and masked.inputs[0] is hidden
    is_same = is_same and masked is not None and scalar(input_of(masked, 1)) is not None
    ranked(hidden)
    fits = hidden.tensor.rank == 4 and hidden.tensor.dims[1] == 1
    return (reader, hidden) if is_zero and is_same and fits else (softmax, None)


def _narrowed(softmax: Node) -> tuple[Node, DType | None]:
    """Return the node that computes the weights, and the type that they are cast to, if any."""
    weights = softmax.outputs[0]
    reader = only_reader(weights)
    if reader is None or reader.op.key != (ONNX, "Cast"):
        return softmax, None
    dtype = reader.outputs[0].tensor.dtype
    return reader, None if dtype is weights.tensor.dtype else dtype


def _widened(b: Builder, values: Value, dtype: DType) -> Value:
    """Return values in the type of queries and keys; a Cast from it is undone."""
    node = values.node
    if node is not None and node.op.name == "Cast":
        source = input_of(node, 0)
        if source.tensor.dtype is dtype:
            return source
    return b.cast(values, dtype)


def _heads(b: Builder, value: Value) -> tuple[Heads, float]:
    """Return heads, and the factor of their projection."""
    value = _unmerged(value)
    past, joined = None, None
    parts = _joined(b, value)
    if parts is not None:
        past, value, joined = parts
        ranked(past)
    ranked(value)
    need(value.tensor.rank == 4, "not heads")
    projection, factor = _projection(value)
    return Heads(value, projection, past, joined), factor


def _joined(b: Builder, value: Value) -> tuple[Value, Value, Value] | None:
    """Split a value into its past and new heads; return them and the value in the model.

    Keys may be joined after they were transposed for the product.
    """
    node, perm = value.node, (0, 1, 2, 3)
    if node is not None and node.op.name == "Transpose" and tuple(node.attrs["perm"]) == _SWAPPED:
        value, perm = input_of(node, 0), _SWAPPED
        swapped = [n for n, _ in value.uses if n.op is node.op and n.attrs == node.attrs]
        whole = next((n.outputs[0] for n in swapped if n is not node), node.outputs[0])
        node = value.node
    else:
        whole = value
    if node is None or node.op.name != "Concat" or len(node.inputs) != 2:
        return None
    if node.attrs["axis"] % 4 != perm[2]:
        return None
    past, new = (_permuted(b, input_of(node, i), perm) for i in (0, 1))
    return past, new, whole


def _permuted(b: Builder, value: Value, perm: tuple[int, ...]) -> Value:
    """Return a value with permuted dims; a Transpose that made it is combined with that."""
    if perm == (0, 1, 2, 3):
        return value
    node = value.node
    if node is None or node.op.key != (ONNX, "Transpose"):
        return b.Transpose(value, perm=perm)
    combined = tuple(node.attrs["perm"][i] for i in perm)
    source = input_of(node, 0)
    return source if combined == (0, 1, 2, 3) else b.Transpose(source, perm=combined)


def _unmerged(value: Value) -> Value:
    """Return heads whose first two dims may be merged for a batched matmul."""
    ranked(value)
    if value.tensor.rank == 4:
        return value
    node = present(value.node, "heads are an input")
    need(node.op.key == (ONNX, "Reshape") and value.tensor.rank == 3, "not merged heads")
    source = input_of(node, 0)
    ranked(source)
    need(source.tensor.rank == 4, "not merged heads")
    dims = source.tensor.dims
    need(value.tensor.dims == (dims[0] * dims[1], *dims[2:]), "not merged heads")
    return source


def _projection(value: Value) -> tuple[Value | None, float]:
    """Return the value that is reshaped to heads and transposed, and its scale factor."""
    node = value.node
    if node is None or node.op.key != (ONNX, "Transpose"):
        return None, 1.0
    split = input_of(node, 0)
    if tuple(node.attrs["perm"]) != _HEADS_FIRST or split.op != "Reshape" or split.node is None:
        return None, 1.0
    projection = input_of(split.node, 0)
    ranked(projection, split)
    dims = split.tensor.dims
    if projection.tensor.shape != (*dims[:2], dims[2] * dims[3]):
        return None, 1.0
    return unscaled(projection)


def unscaled(value: Value) -> tuple[Value, float]:
    """Return the operand and the constant factor of a scaled value."""
    node = value.node
    if node is None or node.op.key not in ((ONNX, "Mul"), (ONNX, "Div")):
        return value, 1.0
    for i in (0, 1) if node.op.name == "Mul" else (0,):
        number = scalar(input_of(node, 1 - i))
        if number:
            return input_of(node, i), number if node.op.name == "Mul" else 1 / number
    return value, 1.0


def _result(matmul: Node, dims: tuple[object, ...]) -> Value:
    """Return the attention result with merged heads."""
    reader = present(only_reader(matmul.outputs[0]), "the result has other readers")
    if reader.op.key == (ONNX, "Reshape"):
        _unmerged_result(reader)
        reader = present(only_reader(reader.outputs[0]), "the result has other readers")
    need(reader.op.key == (ONNX, "Transpose"), "heads are not moved after the rows")
    need(tuple(reader.attrs["perm"]) == _HEADS_FIRST, "heads are not moved after the rows")
    merged = present(only_reader(reader.outputs[0]), "the result has other readers")
    need(merged.op.key == (ONNX, "Reshape"), "heads are not merged")
    need(merged.outputs[0].tensor.shape == dims, "the result has another shape")
    return merged.outputs[0]


def _unmerged_result(reshape: Node) -> None:
    merged, heads = input_of(reshape, 0).tensor.dims, reshape.outputs[0].tensor.dims
    is_split = len(merged) == 3 and len(heads) == 4 and merged[1:] == heads[2:]
    need(is_split, "heads are regrouped")


def stacked(value: Value | None, position: int) -> Value | None:
    """Return the tensor [2, ...] whose element at a position this is: a past of keys and values."""
    node = None if value is None else value.node
    if node is None:
        return None
    if node.op.name == "Gather" and node.attrs["axis"] == 0:
        index = input_of(node, 1)
        is_element = scalar(index) == position and index.tensor.rank == 0
        return input_of(node, 0) if is_element else None
    if node.op.name != "Squeeze":
        return None
    part = input_of(node, 0)
    split = part.node
    if split is None or split.op.name != "Split" or split.attrs["axis"] != 0:
        return None
    return input_of(split, 0) if len(split.outputs) == 2 and part.index == position else None


def stack_of(k: Value, v: Value) -> Value | None:
    """Return the tensor [2, ...] of keys and values that is made of both."""
    for node, _ in k.uses:
        if not _adds_first_dim(node):
            continue
        for concat, slot in node.outputs[0].uses:
            if concat.op.name != "Concat" or concat.attrs["axis"] != 0 or slot != 0:
                continue
            other = input_of(concat, 1).node if len(concat.inputs) == 2 else None
            if other is not None and _adds_first_dim(other) and input_of(other, 0) is v:
                return concat.outputs[0]
    return None


def _adds_first_dim(node: Node) -> bool:
    return node.op.name == "Unsqueeze" and input_of(node, 1).tensor.ints == (0,)
