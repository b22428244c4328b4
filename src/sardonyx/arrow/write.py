"""Conversion of model outputs to columns, with one element per row.

A row of an output is a number, a string, a list of fixed size, a tensor of fixed shape, or a map of
labels to numbers. The type of a column follows from the model alone, so that all batches of a data
set have the same; only sizes that the model leaves open become lists of any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import STRING, DType, by_ort_name

if TYPE_CHECKING:
    from sardonyx.ort.node_arg import NodeArg

_LABELS: Final = {"int64": pa.int64(), "string": pa.string()}
_MAPS: Final = "seq(map("


def column_type(output: NodeArg, *, is_nested: bool = False) -> pa.DataType | None:
    """Return the type of an output's column; None: the model does not say what rank it has.

    With `is_nested`, rows of several elements are lists, the only form that Spark reads.
    """
    if output.type.startswith(_MAPS):
        key, value = output.type.removeprefix(_MAPS).rstrip(")").split(",tensor(")
        return pa.map_(_LABELS[key], _element(output, by_ort_name(value)))
    dtype = by_ort_name(output.type.removeprefix("tensor(").removesuffix(")"))
    if not output.type.startswith("tensor(") or dtype is None:
        raise InvalidArgument(
            f"output {output.name} is a {output.type}, which cannot be a column",
            hint="choose others with outputs=[...]",
        )
    if not output.shape:
        return None
    sizes = [size if isinstance(size, int) else None for size in output.shape[1:]]
    return _row_type(_element(output, dtype), sizes, is_nested)


def _element(output: NodeArg, dtype: DType | None) -> pa.DataType:
    """Return the Arrow type of one element; types that Arrow lacks are widened."""
    if dtype is STRING:
        return pa.string()
    if dtype is not None and dtype.kind == "bool":
        return pa.bool_()
    if dtype is None or dtype.kind == "complex":
        raise InvalidArgument(f"output {output.name} is a {output.type}, which Arrow does not have")
    return pa.from_numpy_dtype(_widened(dtype))


def _widened(dtype: DType) -> np.dtype[Any]:
    """The numpy type that Arrow has for an element type: the same or a wider one."""
    if dtype.is_integer and dtype.bits < 8:
        return np.dtype(np.int8 if dtype.kind == "int" else np.uint8)
    is_known = dtype.is_integer or dtype.np_name in ("float16", "float32", "float64")
    return dtype.np if is_known else np.dtype(np.float32)


def _row_type(element: pa.DataType, sizes: list[int | None], is_nested: bool) -> pa.DataType:
    if sizes in ([], [1]):
        return element
    if is_nested or None in sizes or not _is_number(element):
        for _ in sizes:
            element = pa.list_(element)
        return element
    known = [size for size in sizes if size is not None]
    return pa.list_(element, known[0]) if len(known) == 1 else pa.fixed_shape_tensor(element, known)


def _is_number(element: pa.DataType) -> bool:
    return bool(pa.types.is_integer(element) or pa.types.is_floating(element))


def column(output: NodeArg, kind: pa.DataType | None, value: Any, n_rows: int) -> pa.Array:
    """Return a value of an output as a column of this type, without a copy of its numbers."""
    if isinstance(value, list):
        return _maps(kind, value, n_rows, output.name)
    array = np.asarray(value)
    if array.ndim == 0 or array.shape[0] != n_rows:
        raise InvalidArgument(
            f"output {output.name} has shape {list(array.shape)} for {n_rows} rows",
            hint="choose outputs that have one element per row with outputs=[...]",
        )
    dtype = by_ort_name(output.type.removeprefix("tensor(").removesuffix(")"))
    element = _element(output, dtype)
    if kind is None:
        kind = _row_type(element, [None] * (array.ndim - 1), is_nested=True)
    return _rows(array, kind, element)


def _rows(array: np.ndarray[Any, Any], kind: pa.DataType, element: pa.DataType) -> pa.Array:
    flat = _values(array.reshape(-1), element)
    if kind == element:
        return flat
    if isinstance(kind, pa.FixedShapeTensorType):
        stored = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(kind.shape)))
        return pa.ExtensionArray.from_storage(kind, stored)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    for axis in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:axis]))
        offsets = np.arange(count + 1, dtype=np.int32) * array.shape[axis]
        flat = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
    return flat


def _values(flat: np.ndarray[Any, Any], element: pa.DataType) -> pa.Array:
    """Return a vector as an Arrow array: numbers share its memory."""
    if pa.types.is_string(element):
        return pa.array(flat.tolist(), element)
    wanted = np.dtype(bool) if pa.types.is_boolean(element) else np.dtype(element.to_pandas_dtype())
    return pa.array(flat if flat.dtype == wanted else flat.astype(wanted), element)


def _maps(kind: pa.DataType | None, rows: list[Any], n_rows: int, name: str) -> pa.Array:
    """Return a list of dicts, as ZipMap makes it, as a column of maps."""
    if len(rows) != n_rows:
        raise InvalidArgument(f"output {name} has {len(rows)} maps for {n_rows} rows")
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    keys = [key for row in rows for key in row]
    values = [value for row in rows for value in row.values()]
    assert kind is not None  # maps always have a type
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(keys, kind.key_type),
        pa.array(np.asarray(values), kind.item_type),
    )
