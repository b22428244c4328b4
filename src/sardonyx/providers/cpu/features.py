"""Feature preparation on the CPU: category encoding, scaling, imputation, one-hot vectors."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.const import PackedStrings
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import STRING
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import labels_of
from sardonyx.ops.features.categories import encoder_table, mapper_table, position_table
from sardonyx.ops.lookup_table import LookupTable, StringTable
from sardonyx.place.lowered import Call, Zipped
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, direct
from sardonyx.providers.cpu.scores import array_constant

NORMS: Final = (b"MAX", b"L1", b"L2")


def index_of(strings: list[bytes] | StringTable) -> tuple[Value, Value]:
    """Return strings as a constant, and the hash table by which kernels look them up."""
    table = strings if isinstance(strings, StringTable) else StringTable(strings)
    return constant(PackedStrings(table.block, table.count)), array_constant(table.index)


def _lookup(x: Value, table: LookupTable) -> Call:
    """Look up each element in a table of strings or numbers; the last value is the default."""
    if table.strings is None:
        # Values by position of their keys, which are sorted, for a binary search.
        values: Array = table.values[np.append(table.at, len(table.values) - 1)]
        return Call("label_encoder", (x, array_constant(table.keys), array_constant(values)))
    at = [*table.strings.values(), len(table.values) - 1]
    keys = [s.encode() for s in table.strings]
    return Call("text_find", (x, *index_of(keys), array_constant(table.values[at])))


def encoder(node: Node) -> Call:
    return _lookup(input_of(node, 0), encoder_table(node.attrs))


def mapper(node: Node) -> Call:
    x = input_of(node, 0)
    return _lookup(x, mapper_table(x.tensor.dtype is STRING, **node.attrs))


def one_hot(node: Node) -> Call:
    """Lower OneHotEncoder, of strings or numbers."""
    x, zeros = input_of(node, 0), (int(node.attrs["zeros"] != 0),)
    if x.tensor.dtype is STRING:
        names = index_of(node.attrs["cats_strings"])
        return Call("text_one_hot", (x, *names), zeros, writes_rows=True)
    table = position_table(node.attrs["cats_int64s"])
    inputs = (
        x,
        array_constant(np.asarray(table.keys, np.int64)),
        array_constant(np.asarray(table.at, np.int64)),
    )
    return Call("category_one_hot", inputs, zeros, writes_rows=True)


def zip_map(node: Node) -> Zipped | No:
    """Lower to a marked output: native code builds the dicts when it returns results."""
    z = node.outputs[0]
    # Sequences of maps have no native representation inside of a program.
    if z.uses or not z.n_exits:
        return No("its result is read inside the model")
    keys = labels_of(node.attrs["classlabels_int64s"], node.attrs["classlabels_strings"])
    return Zipped(input_of(node, 0), tuple(keys.tolist()))


def scaler(node: Node) -> Call:
    # Absent and empty attributes are None: nothing is subtracted, or multiplied.
    offset, scale = (
        None if v is None or not len(v) else array_constant(np.asarray(v, np.float32))
        for v in (node.attrs["offset"], node.attrs["scale"])
    )
    return Call("scaler", (input_of(node, 0), offset, scale))


def normalizer(node: Node) -> Call:
    return Call("normalizer", (input_of(node, 0),), (NORMS.index(node.attrs["norm"]),))


def imputer(node: Node) -> Call | No:
    x, attrs = input_of(node, 0), node.attrs
    dtype = x.tensor.dtype
    name = "imputed_value_floats" if dtype.is_float else "imputed_value_int64s"
    replaced = attrs["replaced_value_int64"]
    # Kernels compare in the type of x, to which the attribute is cast.
    if not dtype.is_float:
        bounds = np.iinfo(dtype.np)
        if not bounds.min <= replaced <= bounds.max:
            return No(f"the value to replace, {replaced}, does not fit {dtype}")
    imputed = array_constant(attrs[name].astype(dtype.np))
    floats = (float(np.float32(attrs["replaced_value_float"])),)
    return Call("imputer", (x, imputed), (replaced,), floats)


def binarizer(node: Node) -> Call:
    return Call(
        "binarizer", (input_of(node, 0),), (), (float(np.float32(node.attrs["threshold"])),)
    )


def vectorizer(node: Node) -> Call:
    dims = node.attrs["inputdimensions"]
    # Each input is a row of features per sample; a vector has one sample.
    if dims is None:
        shapes = [input_of(node, i).tensor.dims for i in range(len(node.inputs))]
        dims = [product(s[1:] if len(s) > 1 else s) for s in shapes]
    return Call("feature_vectorizer", node.inputs, tuple(dims[: len(node.inputs)]))


LOWERINGS: Final[Lowerings] = {
    (ML, "CategoryMapper"): mapper,
    (ML, "LabelEncoder"): encoder,
    (ML, "OneHotEncoder"): one_hot,
    (ML, "ZipMap"): zip_map,
    (ML, "ArrayFeatureExtractor"): direct("array_feature_extractor"),
    (ML, "Binarizer"): binarizer,
    (ML, "FeatureVectorizer"): vectorizer,
    (ML, "Imputer"): imputer,
    (ML, "Normalizer"): normalizer,
    (ML, "Scaler"): scaler,
}
