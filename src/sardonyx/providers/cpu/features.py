"""Feature preparation on the CPU: categories, scaling, imputing, one-hot vectors."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.const import Words
from sardonyx.graph.constant import constant
from sardonyx.graph.dim import Size, product
from sardonyx.graph.dtype import STRING, DType
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import labels_of
from sardonyx.ops.features.categories import encoder_table, mapper_table, position_table
from sardonyx.ops.lookup_table import LookupTable, StringTable
from sardonyx.place.lowered import Call, Zipped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import held


def index_of(strings: list[bytes] | StringTable) -> tuple[Value, Value]:
    """Strings as a constant, and the table by which kernels find one of them."""
    table = strings if isinstance(strings, StringTable) else StringTable(strings)
    return constant(Words(table.block, table.count)), held(table.index)


def _found(x: Value, table: LookupTable) -> Call:
    """What a table of strings, or of numbers, has for each element."""
    if table.strings is None:
        values: Array = table.values[np.append(table.at, len(table.values) - 1)]
        return Call("label_encoder", (x, held(table.keys), held(values)))
    at = [*table.strings.values(), len(table.values) - 1]
    keys = [s.encode() for s in table.strings]
    return Call("text_find", (x, *index_of(keys), held(table.values[at])))


def encoder(node: Node) -> Call:
    return _found(input_of(node, 0), encoder_table(node.attrs))


def mapper(node: Node) -> Call:
    x = input_of(node, 0)
    return _found(x, mapper_table(x.tensor.dtype is STRING, **node.attrs))


def one_hot(node: Node) -> Call:
    """OneHotEncoder, of strings or numbers."""
    x, zeros = input_of(node, 0), (int(node.attrs["zeros"] != 0),)
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
    return Zipped(input_of(node, 0), tuple(keys.tolist()))


NORMS: Final = (b"MAX", b"L1", b"L2")


def _features(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x


def scaler(node: Node) -> Call | No:
    offset, scale = (
        None if v is None or not len(v) else held(np.asarray(v, np.float32))
        for v in (node.attrs["offset"], node.attrs["scale"])
    )
    return Call("scaler", (_features(node), offset, scale))


def normalizer(node: Node) -> Call | No:
    return Call("normalizer", (_features(node),), (NORMS.index(node.attrs["norm"]),))


def imputer(node: Node) -> Call | No:
    x, attrs = _features(node), node.attrs
    dtype: DType = x.tensor.dtype
    name = "imputed_value_floats" if dtype.is_float else "imputed_value_int64s"
    lost = attrs["replaced_value_int64"]
    if not dtype.is_float:
        bounds = np.iinfo(dtype.np)
        if not bounds.min <= lost <= bounds.max:
            return No(f"the value to replace, {lost}, is none of {dtype}")
    filling = held(attrs[name].astype(dtype.np))
    return Call(
        "imputer", (x, filling), (lost,), (float(np.float32(attrs["replaced_value_float"])),)
    )


def binarizer(node: Node) -> Call | No:
    return Call("binarizer", (_features(node),), (), (float(np.float32(node.attrs["threshold"])),))


def extractor(node: Node) -> Call:
    return Call("array_feature_extractor", (_features(node), node.inputs[1]))


def vectorizer(node: Node) -> Call | No:
    dims = node.attrs["inputdimensions"]
    widths: list[Size] = []
    for i, x in enumerate(node.inputs):
        assert x is not None
        shape = x.tensor.dims
        own = product(shape[1:] if len(shape) > 1 else shape)
        widths.append(own if dims is None else dims[i])
    return Call("feature_vectorizer", node.inputs, tuple(widths))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (ML, "CategoryMapper"): mapper,
    (ML, "LabelEncoder"): encoder,
    (ML, "OneHotEncoder"): one_hot,
    (ML, "ZipMap"): zip_map,
    (ML, "ArrayFeatureExtractor"): extractor,
    (ML, "Binarizer"): binarizer,
    (ML, "FeatureVectorizer"): vectorizer,
    (ML, "Imputer"): imputer,
    (ML, "Normalizer"): normalizer,
    (ML, "Scaler"): scaler,
}
