"""Nodes with strings on the CPU: an element is 16 bytes that say where its text lies.

What only moves elements is lowered as for numbers; everything else has rows of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

import sardonyx._native as native
from sardonyx.graph.dtype import STRING
from sardonyx.graph.graph import Node, Value, given
from sardonyx.ops.declare import ML
from sardonyx.ops.features.categories import encoder_table, mapper_table, position_table
from sardonyx.ops.rules import Array, axis_of
from sardonyx.ops.scores import labels_of, texts
from sardonyx.ops.table import Table
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Lowered, Sliced, Zipped
from sardonyx.providers.cpu import gather, linear_ml, move, shape
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import held


def index_of(keys: Array) -> tuple[Value, Value]:
    """Strings as a constant, and the table by which kernels find one of them."""
    return held(keys), held(native.text_index(native.texts(keys), len(keys)))


def _texts(strings: list[str]) -> Array:
    made = np.empty(len(strings), object)
    made[:] = strings
    return made


def _concat(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], node.outputs[0].tensor.rank)
    return Call("concat", tuple(node.inputs), (axis,), joins=True, writes_rows=True)


def _gather(node: Node) -> Lowered:
    """One element along an axis is a view; with strings that is how columns are told apart."""
    x, index = given(node, 0), given(node, 1)
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    places, size = index.tensor.ints, x.tensor.dims[axis]
    if places is None or index.tensor.dims != (1,) or not isinstance(size, int):
        return gather.gather(node)
    (place,) = places
    if not -size <= place < size:
        return gather.gather(node)  # which says what is wrong
    starts = tuple(place % size if i == axis else 0 for i in range(x.tensor.rank))
    return Sliced(x, (starts,), (1,) * x.tensor.rank)


def _scatter(node: Node) -> Lowered | No:
    if node.attrs["reduction"] != b"none":
        return No("strings are not reduced")
    return gather.LOWERINGS[node.op.key](node)


def _found(x: Value, table: Table) -> Call:
    """What a table of strings, or of numbers, has for each element."""
    if table.strings is None:
        values: Array = table.values[np.append(table.at, len(table.values) - 1)]
        return Call("label_encoder", (x, held(table.keys), held(values)))
    at = [*table.strings.values(), len(table.values) - 1]
    return Call("text_find", (x, *index_of(_texts([*table.strings])), held(table.values[at])))


def _encoder(node: Node) -> Call:
    return _found(given(node, 0), encoder_table(node.attrs))


def _mapper(node: Node) -> Call:
    x = given(node, 0)
    return _found(x, mapper_table(x.tensor.dtype is STRING, **node.attrs))


def one_hot(node: Node) -> Call:
    """OneHotEncoder, of strings or numbers."""
    x, zeros = given(node, 0), (int(node.attrs["zeros"] != 0),)
    if x.tensor.dtype is STRING:
        names = texts(node.attrs["cats_strings"])
        return Call("text_one_hot", (x, *index_of(names)), zeros, writes_rows=True)
    table = position_table(node.attrs["cats_int64s"])
    inputs = (x, held(np.asarray(table.keys, np.int64)), held(np.asarray(table.at, np.int64)))
    return Call("category_one_hot", inputs, zeros, writes_rows=True)


def _zip_map(node: Node) -> Zipped | No:
    """Dicts are made where the result is handed out."""
    z = node.outputs[0]
    if z.uses or not z.n_exits:
        return No("its result is read inside the model")
    keys = labels_of(node.attrs["classlabels_int64s"], node.attrs["classlabels_strings"])
    return Zipped(given(node, 0), tuple(keys.tolist()))


def _pairwise(row: str) -> Lowering:
    return lambda node: Call(row, tuple(node.inputs))


TEXT_LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "Compress"): gather.compress,
    ("", "Concat"): _concat,
    ("", "Equal"): _pairwise("text_equal"),
    ("", "Expand"): shape.expand,
    ("", "Flatten"): shape.reshaped,
    ("", "Gather"): _gather,
    ("", "GatherElements"): gather.gather_elements,
    ("", "GatherND"): gather.gather_nd,
    ("", "Identity"): shape.identity,
    ("", "Reshape"): shape.reshape,
    ("", "ReverseSequence"): move.reverse_sequence,
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "Shape"): shape.sizes,
    ("", "Size"): shape.sizes,
    ("", "Slice"): move.slice_,
    ("", "Split"): move.split,
    ("", "Squeeze"): shape.with_axes,
    ("", "StringConcat"): _pairwise("text_concat"),
    ("", "Tile"): move.tile,
    ("", "Transpose"): move.transpose,
    ("", "Unsqueeze"): shape.with_axes,
    ("", "Where"): _pairwise("text_where"),
    (ML, "ArrayFeatureExtractor"): linear_ml.LOWERINGS[ML, "ArrayFeatureExtractor"],
    (ML, "CategoryMapper"): _mapper,
    (ML, "LabelEncoder"): _encoder,
    (ML, "OneHotEncoder"): one_hot,
}

# Those that may have to do with numbers alone.
LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (ML, "OneHotEncoder"): one_hot,
    (ML, "ZipMap"): _zip_map,
}
