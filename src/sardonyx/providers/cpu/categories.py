"""Categories on the CPU: values looked up in tables, one-hot vectors, and scores by label."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.const import Words
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import STRING
from sardonyx.graph.graph import Node, Value, given
from sardonyx.graph.op import ML
from sardonyx.ops.features.categories import encoder_table, mapper_table, position_table
from sardonyx.ops.rules import Array
from sardonyx.ops.scores import labels_of
from sardonyx.ops.table import Table, TextTable
from sardonyx.place.lowered import Call, Zipped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import held


def index_of(strings: list[bytes] | TextTable) -> tuple[Value, Value]:
    """Strings as a constant, and the table by which kernels find one of them."""
    table = strings if isinstance(strings, TextTable) else TextTable(strings)
    return constant(Words(table.block, table.count)), held(table.index)


def _found(x: Value, table: Table) -> Call:
    """What a table of strings, or of numbers, has for each element."""
    if table.strings is None:
        values: Array = table.values[np.append(table.at, len(table.values) - 1)]
        return Call("label_encoder", (x, held(table.keys), held(values)))
    at = [*table.strings.values(), len(table.values) - 1]
    keys = [s.encode() for s in table.strings]
    return Call("text_find", (x, *index_of(keys), held(table.values[at])))


def encoder(node: Node) -> Call:
    return _found(given(node, 0), encoder_table(node.attrs))


def mapper(node: Node) -> Call:
    x = given(node, 0)
    return _found(x, mapper_table(x.tensor.dtype is STRING, **node.attrs))


def one_hot(node: Node) -> Call:
    """OneHotEncoder, of strings or numbers."""
    x, zeros = given(node, 0), (int(node.attrs["zeros"] != 0),)
    if x.tensor.dtype is STRING:
        names = index_of(node.attrs["cats_strings"])
        return Call("text_one_hot", (x, *names), zeros, writes_rows=True)
    table = position_table(node.attrs["cats_int64s"])
    inputs = (x, held(np.asarray(table.keys, np.int64)), held(np.asarray(table.at, np.int64)))
    return Call("category_one_hot", inputs, zeros, writes_rows=True)


def zip_map(node: Node) -> Zipped | No:
    """Dicts are made where the result is handed out."""
    z = node.outputs[0]
    if z.uses or not z.n_exits:
        return No("its result is read inside the model")
    keys = labels_of(node.attrs["classlabels_int64s"], node.attrs["classlabels_strings"])
    return Zipped(given(node, 0), tuple(keys.tolist()))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (ML, "CategoryMapper"): mapper,
    (ML, "LabelEncoder"): encoder,
    (ML, "OneHotEncoder"): one_hot,
    (ML, "ZipMap"): zip_map,
}
