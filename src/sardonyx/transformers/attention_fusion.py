"""Fusion of attention, as exporters write it, into Attention or MultiHeadAttention."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need, ranked
from sardonyx.passes.rule import scalar


@frozen
class _Heads:
    """A projection that is split into heads."""

    projection: Value  # of rank 3: batch, rows, columns
    n_heads: int
    width: int


@frozen
class _Scores:
    """Scaled products of queries and keys, with a mask that is added."""

    query: _Heads
    key: _Heads
    scale: float
    mask: Value | None


def attention(b: Builder, node: Node) -> dict[Value, Value]:
    """Attention, where query, key and value are projections of one value; else the other op."""
    found = _match(node)
    parts = [_projected(h) for h in found.heads]
    if any(part is None for part in parts):
        return _multi_head(b, found)
    sources = {id(part[0]) for part in parts if part is not None}
    if len(sources) > 1:
        return _multi_head(b, found)
    given = [part for part in parts if part is not None]
    weights = b.Concat(*[part[1] for part in given], axis=1)
    bias = b.Concat(*[part[2] for part in given], axis=0)
    mask = _expanded(b, found)
    inputs = [given[0][0], weights, bias, *([] if mask is None else [None, None, mask])]
    options = _options(found)
    sizes = [part[1].tensor.dims[1] for part in given]
    if len(set(sizes)) > 1:
        options["qkv_hidden_sizes"] = sizes
    return {found.result: b.node("Attention", *inputs, **options).outputs[0]}


def multi_head_attention(b: Builder, node: Node) -> dict[Value, Value]:
    """MultiHeadAttention of three projections."""
    return _multi_head(b, _match(node))


@frozen
class _Attention:
    """A matched attention and the value that it computes, of rank 3."""

    scores: _Scores
    value: _Heads
    result: Value

    @property
    def heads(self) -> tuple[_Heads, _Heads, _Heads]:
        return self.scores.query, self.scores.key, self.value


def _multi_head(b: Builder, found: _Attention) -> dict[Value, Value]:
    mask = _expanded(b, found)
    inputs: list[Any] = [heads.projection for heads in found.heads]
    if mask is not None:
        inputs += [None, None, mask]
    return {found.result: b.node("MultiHeadAttention", *inputs, **_options(found)).outputs[0]}


def _options(found: _Attention) -> dict[str, Any]:
    scale, width = found.scores.scale, found.scores.query.width
    options: dict[str, Any] = {"domain": MICROSOFT, "num_heads": found.value.n_heads}
    return (
        options if math.isclose(scale, width**-0.5, rel_tol=1e-5) else {**options, "scale": scale}
    )


def _match(node: Node) -> _Attention:
    """Return the attention around a Softmax."""
    need(node.op.key == (ONNX, "Softmax"), "not a Softmax")
    weights = node.outputs[0]
    ranked(weights)
    need(weights.tensor.rank == 4 and node.attrs["axis"] in (-1, 3), "not over the keys of heads")
    product = _only_reader(weights, "MatMul")
    need(input_of(product, 0) is weights, "the weights are the right operand")
    value = _split(input_of(product, 1), (0, 2, 1, 3))
    scores = _scores(input_of(node, 0))
    merged = _only_reader(product.outputs[0], "Transpose")
    need(tuple(merged.attrs["perm"]) == (0, 2, 1, 3), "heads are not moved after the rows")
    result = _only_reader(merged.outputs[0], "Reshape").outputs[0]
    query = scores.query
    columns = value.n_heads * value.width
    expected = (*query.projection.tensor.dims[:2], columns)
    need(result.tensor.shape == expected, "the result has another shape")
    need(query.n_heads == scores.key.n_heads == value.n_heads, "heads are shared")
    need(query.width == scores.key.width, "queries and keys have other widths")
    return _Attention(scores, value, result)


def _only_reader(value: Value, op: str) -> Node:
    need(len(value.uses) == 1 and not value.n_exits, f"{value} has other readers")
    reader, _ = value.uses[0]
    need(reader.op.key == (ONNX, op), f"{op} does not follow")
    return reader


def _made_by(value: Value, op: str) -> Node:
    node = value.node
    need(node is not None and node.op.key == (ONNX, op), f"not made by {op}")
    assert node is not None
    return node


def _scores(value: Value) -> _Scores:
    """Return the parts of masked scores."""
    mask = None
    if value.op == "Add" and value.node is not None:
        left, right = input_of(value.node, 0), input_of(value.node, 1)
        value, mask = (left, right) if _leads_to_matmul(left) else (right, left)
        ranked(mask)
        need(mask.tensor.rank == 4, "the mask is not of rank 4")
    value, scale = _unscaled(value)
    product = _made_by(value, "MatMul")
    left, left_scale = _unscaled(input_of(product, 0))
    right, right_scale = _unscaled(input_of(product, 1))
    query = _split(left, (0, 2, 1, 3))
    key = _keys(right)
    return _Scores(query, key, scale * left_scale * right_scale, mask)


def _leads_to_matmul(value: Value) -> bool:
    unscaled, _ = _unscaled(value)
    return unscaled.op == "MatMul"


def _unscaled(value: Value) -> tuple[Value, float]:
    """Return what a value is times a number, and the number."""
    node = value.node
    if node is None or node.op.key not in ((ONNX, "Mul"), (ONNX, "Div")):
        return value, 1.0
    for i in (0, 1) if node.op.name == "Mul" else (0,):
        number = scalar(input_of(node, 1 - i))
        if number:
            return input_of(node, i), number if node.op.name == "Mul" else 1 / number
    return value, 1.0


def _keys(value: Value) -> _Heads:
    """Return keys that are transposed for the product, in one step or two."""
    node = _made_by(value, "Transpose")
    if tuple(node.attrs["perm"]) == (0, 1, 3, 2):
        return _split(input_of(node, 0), (0, 2, 1, 3))
    return _split(value, (0, 2, 3, 1))


def _split(value: Value, perm: tuple[int, ...]) -> _Heads:
    """Return a projection that is reshaped to heads and transposed."""
    node = _made_by(value, "Transpose")
    need(tuple(node.attrs["perm"]) == perm, "another transpose")
    split = input_of(node, 0)
    projection = input_of(_made_by(split, "Reshape"), 0)
    ranked(split, projection)
    shape = split.tensor.dims
    need(len(shape) == 4 and projection.tensor.rank == 3, "not split into heads")
    n_heads, width = shape[2], shape[3]
    need(isinstance(n_heads, int) and isinstance(width, int), "the heads are not known")
    assert isinstance(n_heads, int)
    assert isinstance(width, int)
    expected = (*shape[:2], n_heads * width)
    need(projection.tensor.shape == expected, "rows are regrouped")
    return _Heads(projection, n_heads, width)


def _projected(heads: _Heads) -> tuple[Value, Value, Value] | None:
    """Return the source, weight and bias of a projection by constants; None for others."""
    add = heads.projection.node
    if add is None or add.op.key != (ONNX, "Add"):
        return None
    for i in (0, 1):
        product, bias = input_of(add, i).node, input_of(add, 1 - i)
        if product is None or product.op.key != (ONNX, "MatMul") or not bias.is_const:
            continue
        x, weight = input_of(product, 0), input_of(product, 1)
        is_linear = weight.is_const and weight.tensor.rank == 2 and bias.tensor.rank == 1
        if is_linear and x.tensor.shape is not None and x.tensor.rank == 3:
            return x, weight, bias
    return None


def _expanded(b: Builder, found: _Attention) -> Value | None:
    """Return the mask with a row for each query, as kernels read it."""
    mask = found.scores.mask
    if mask is None:
        return None
    n_rows = found.scores.query.projection.tensor.dims[1]
    rows = mask.tensor.dims[2]
    need(mask.tensor.dims[3] != 1, "the mask has one column")
    need(mask.tensor.dims[1] in (1, found.value.n_heads), "the mask has other heads")
    if rows == n_rows:
        return mask
    need(rows == 1, "the mask has another number of rows")
    if isinstance(n_rows, int):
        return b.Expand(mask, b.ints(1, 1, n_rows, 1))
    count = b.Shape(found.scores.query.projection, start=1, end=2)
    return b.Expand(mask, b.Concat(b.ints(1, 1), count, b.ints(1), axis=0))
