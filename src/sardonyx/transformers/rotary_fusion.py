"""Fusion of rotary positions (RoPE), as exporters write them, into RotaryEmbedding."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.decomposition import known_size, need, present, ranked
from sardonyx.passes.rule import P, hole, match
from sardonyx.transformers.attention_match import unscaled
from sardonyx.transformers.fusion import Fusion, FusionBuilder, Replaced, has_unit_steps

# Positions of a cache of angles that the model computes on the fly, as in onnxruntime's optimizer:
# more than models are trained for, in 64 MB for heads of 128.
_MAX_POSITIONS: Final = 131072
_VIEWS: Final = ("Unsqueeze", "Reshape", "Cast")

x, cos, sin = hole("x"), hole("cos"), hole("sin")
# The halves of each head are rotated: [-x2, x1].
_rotated = P.Concat(
    P.Neg(P.Slice(x, rest=True).named("high")), P.Slice(x, rest=True).named("low")
).named("halves")
_PATTERN: Final = P.Add(x * cos, _rotated * sin)

Caches = dict[tuple[bytes, float], tuple[Value, Value]]


@frozen
class _Angles:
    """Cosines or sines of positions."""

    ids: Value  # [batch, rows]
    table: Any  # [positions, head / 2], of the angles or of their function
    is_function: bool  # the table has cosines or sines
    scale: float = 1.0


def rotary_embedding() -> Fusion:
    """Return the fusion of rotary positions; nodes with the same angles share their caches."""
    caches: Caches = {}

    def fuse(b: FusionBuilder, node: Node) -> Replaced:
        return _fuse(b, node, caches)

    return fuse


def _fuse(b: FusionBuilder, node: Node, caches: Caches) -> Replaced:
    need(node.op.key == (ONNX, "Add"), "not a sum")
    holes, _ = present(match(_PATTERN, node), "not a rotation")
    source = holes["x"]
    ranked(source)
    need(source.tensor.rank == 4, "not heads")
    batch, _heads, rows, size = source.tensor.dims
    half = known_size(size) // 2
    need(holes["halves"].attrs["axis"] in (-1, 3), "not over the last dim")
    need(_is_part(holes["low"], 0, half) and _is_part(holes["high"], half, half), "not halves")
    cosines, sines = _angles(holes["cos"], "Cos"), _angles(holes["sin"], "Sin")
    need(cosines.ids is sines.ids and cosines.scale == sines.scale, "the angles differ")
    need(cosines.is_function == sines.is_function, "the angles differ")
    ids = cosines.ids
    need(ids.tensor.shape == (batch, rows), "positions do not fit the rows")
    need(cosines.table.shape[1] == half, "another number of angles")
    key = (cosines.table.tobytes() + sines.table.tobytes(), cosines.scale)
    if key not in caches:
        caches[key] = _caches(b, cosines, sines, source)
    y = b.RotaryEmbedding(source, b.cast(ids, I64), *caches[key], domain=MICROSOFT)
    return {node.outputs[0]: y}


def _caches(b: FusionBuilder, cosines: _Angles, sines: _Angles, like: Value) -> tuple[Value, Value]:
    """Return the cosines and sines of all positions, as constants."""
    tables = cosines.table, sines.table
    if not cosines.is_function:
        angles = np.arange(_MAX_POSITIONS, dtype=np.float32)[:, None] * cosines.table[0]
        tables = np.cos(angles), np.sin(angles)
    made = [b.const(table * np.float32(cosines.scale), like.tensor.dtype) for table in tables]
    for value, name in zip(made, ("cos_cache", "sin_cache"), strict=True):
        value.name = name
    return made[0], made[1]


def _is_part(node: Node, start: int, length: int) -> bool:
    """Whether a Slice takes these elements of the last dim, and of all others everything."""
    starts, axes = input_of(node, 1).tensor.sym, input_of(node, 3).tensor.ints
    dims, source = node.outputs[0].tensor.dims, input_of(node, 0).tensor.dims
    if starts is None or axes not in ((-1,), (3,)) or dims != (*source[:-1], length):
        return False
    if not has_unit_steps(node):
        return False
    return starts[0] in (start, start - 2 * length)


def _angles(value: Value, op: str) -> _Angles:
    """Return the angles of cosines or sines [batch, 1, rows, head], whose halves are equal."""
    ranked(value)
    need(value.tensor.rank == 4 and value.tensor.dims[1] == 1, "angles differ between heads")
    value, scale = _unviewed(value)
    node = present(value.node, "the angles are an input")
    if node.op.key == (ONNX, "Gather"):
        need(node.attrs["axis"] == 0, "not rows of a table")
        return _Angles(input_of(node, 1), _halved(_table(input_of(node, 0))), True, scale)
    need(node.op.key == (ONNX, op), "neither a table nor computed")
    concat = present(input_of(node, 0).node, "the angles are an input")
    need(concat.op.key == (ONNX, "Concat") and len(concat.inputs) == 2, "not two equal halves")
    half = input_of(concat, 0)
    need(half is concat.inputs[1] and concat.attrs["axis"] in (-1, 2), "not two equal halves")
    ids, frequencies = _product(half)
    return _Angles(ids, frequencies, False, scale)


def _unviewed(value: Value) -> tuple[Value, float]:
    """Return a value without dims of 1 that are added, and without the factor of it."""
    factor = 1.0
    while (node := value.node) is not None:
        inner, number = unscaled(value)
        if number != 1 or inner is not value:
            value, factor = inner, factor * number
        elif node.op.name in _VIEWS:
            source = input_of(node, 0)
            if value.tensor.dtype.kind == "int" and source.tensor.dtype.kind != "int":
                break  # it rounds
            value = source
            ranked(value)
        else:
            break
    return value, factor


def _table(value: Value) -> Any:
    """Return a constant matrix, of which the front may be sliced to the length of the sequence."""
    while (node := value.node) is not None and value.op in ("Slice", "Squeeze"):
        if node.op.name == "Slice":
            starts = input_of(node, 1).tensor.ints
            need(starts is not None and not any(starts), "not the front of a table")
        value = input_of(node, 0)
    const = present(value.const, "the table is not constant")
    table = const.read()
    need(table.ndim > 1, "not a matrix")
    need(table.size == max(table.shape[:-1]) * table.shape[-1], "not one row for each position")
    return table.reshape(-1, table.shape[-1])


def _halved(table: Any) -> Any:
    half = table.shape[1] // 2
    need(np.array_equal(table[:, :half], table[:, half:]), "the halves of a row differ")
    return table[:, :half]


def _product(value: Value) -> tuple[Value, Any]:
    """Return positions and the frequencies by which they are multiplied."""
    node = present(value.node, "the angles are an input")
    need(node.op.key == (ONNX, "Transpose") and node.attrs["perm"] == (0, 2, 1), "no product")
    product = present(input_of(node, 0).node, "the angles are an input")
    need(product.op.key == (ONNX, "MatMul"), "no product")
    const = present(input_of(product, 0).const, "the frequencies are not constant")
    frequencies = const.read()
    need(frequencies.ndim == 3 and frequencies.shape[2] == 1, "not one column")
    need((frequencies == frequencies[:1]).all(), "frequencies differ in the batch")
    position, factor = _unviewed(input_of(product, 1))
    need(position.tensor.rank == 2 and position.tensor.dtype.kind == "int", "no positions")
    return position, (frequencies[0].T * factor).astype(np.float32)
