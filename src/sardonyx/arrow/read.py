"""Conversion of table columns to input arrays.

Columns of numbers, fixed-size lists and tensors without nulls become views of Arrow's memory (zero
copy) if they have the type of the input. Columns of another type, of booleans (bits in Arrow), of
strings, of several chunks, and stacked columns are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.arrow.columns import Feed, TableInput
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import STRING, DType

Padding = Mapping[str, Any]  # by input: the value that pads lists to the longest of a run


def plain(table: pa.Table, names: list[str]) -> pa.Table:
    """Return a table whose columns of these names have no views of strings, and no runs.

    Arrow cannot filter all of them, or make arrays of them.
    """
    columns = {name: table.column(name) for name in table.schema.names}
    for name in names:
        kind = columns[name].type
        if pa.types.is_run_end_encoded(kind):
            columns[name] = pc.run_end_decode(columns[name])
        wanted = _plain_type(columns[name].type)
        if wanted != columns[name].type:
            with _reading(name, kind):
                columns[name] = columns[name].cast(wanted)
    return pa.table(columns)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        return pa.large_string()
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_type(kind.value_type))
    return kind


@contextmanager
def _reading(name: str, kind: pa.DataType) -> Iterator[None]:
    """Raise our error for a type that Arrow itself cannot handle."""
    try:
        yield
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidArgument(
            f"column {name} is a {kind}, which Arrow does not convert: {error}",
            hint="cast it to numbers, strings or lists of them",
        ) from None


def read_feed(feed: Feed, rows: pa.Table, padding: Padding) -> np.ndarray[Any, Any]:
    """Return the array that feeds an input; raise if the columns do not fit it."""
    given = feed.input
    columns = [_one_chunk(rows.column(name)) for name in feed.names]
    if not feed.is_joined:
        array = _column(columns[0], feed.names[0], given, padding.get(given.name))
        return _shaped(array, feed.names[0], given)
    joined = np.empty((rows.num_rows, len(columns)), given.dtype.np)
    for index, (name, column) in enumerate(zip(feed.names, columns, strict=True)):
        array = _column(column, name, given, None)
        if array.ndim != 1:
            raise InvalidArgument(
                f"column {name} is a {column.type}, and only columns of single values are stacked",
                input=given.name,
            )
        joined[:, index] = array
    return joined


def _column(column: pa.Array, name: str, given: TableInput, padding: Any) -> np.ndarray[Any, Any]:
    with _reading(name, column.type):
        return _array(column, name, given, padding)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the elements as one array: without a copy if they are in one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()  # some types stay chunked, if they are empty
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _array(column: pa.Array, name: str, given: TableInput, padding: Any) -> np.ndarray[Any, Any]:
    """Return one column as an array of the input's type, whose first axis are the rows."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _array(column.dictionary_decode(), name, given, padding)
    if isinstance(kind, pa.FixedShapeTensorType):
        storage = _array(column.storage, name, given, None)
        return _permuted(storage.reshape(len(column), *kind.shape), kind.permutation)
    if isinstance(kind, pa.BaseExtensionType):
        return _array(column.storage, name, given, padding)
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists(column, name, given)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _equal_lists(column, name, given, padding)
    if pa.types.is_fixed_size_binary(kind):
        data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
        begin = column.offset * kind.byte_width
        data = data[begin : begin + len(column) * kind.byte_width]
        rows = _converted(data.reshape(len(column), kind.byte_width), name, given)
        return _with_nan(rows, column)
    return _scalars(column, name, given)


def _permuted(array: np.ndarray[Any, Any], permutation: list[int] | None) -> np.ndarray[Any, Any]:
    """Return tensors in their logical order: `permutation` maps it to the stored order."""
    if permutation is None:
        return array
    stored = [permutation.index(axis) + 1 for axis in range(len(permutation))]
    return array.transpose(0, *stored)


def _fixed_lists(column: pa.Array, name: str, given: TableInput) -> np.ndarray[Any, Any]:
    """Return lists of one size as rows: a null is a row of NaN."""
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    elements = _array(values, name, given, None)
    return _with_nan(elements.reshape(len(column), size, *elements.shape[1:]), column)


def _with_nan(rows: np.ndarray[Any, Any], column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the rows, with NaN for those that are null."""
    if column.null_count:
        rows = rows.copy()
        rows[pc.is_null(column).to_numpy(zero_copy_only=False)] = np.nan
    return rows


def _equal_lists(
    column: pa.Array, name: str, given: TableInput, padding: Any
) -> np.ndarray[Any, Any]:
    """Return lists as rows; those that are shorter than the longest are padded, if asked for."""
    offsets = column.offsets.to_numpy()
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    elements = _array(column.flatten(), name, given, None)
    if (lengths == longest).all():
        return elements.reshape(len(column), longest, *elements.shape[1:])
    padded = np.full((len(column), longest, *elements.shape[1:]), padding, given.dtype.np)
    padded[np.arange(longest) < lengths[:, None]] = elements
    return padded


def check_lengths(feed: Feed, table: pa.Table, padding: Padding) -> None:
    """Raise if the lists of a table differ in length, and the input has no padding."""
    for name in feed.names:
        column, kind = table.column(name), table.schema.field(name).type
        if feed.input.name in padding or not (
            pa.types.is_list(kind) or pa.types.is_large_list(kind)
        ):
            continue
        ends = pc.min_max(pc.list_value_length(column)).as_py()
        if ends["min"] != ends["max"]:
            raise InvalidArgument(
                f"column {name} has lists of {ends['min']} to {ends['max']} elements",
                input=feed.input.name,
                hint=f"pass padding={{{feed.input.name!r}: 0}} to fill them up, or score each "
                "length alone",
            )


def _scalars(column: pa.Array, name: str, given: TableInput) -> np.ndarray[Any, Any]:
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text != (given.dtype is STRING):
        raise _mismatch(name, kind, given)
    if pa.types.is_boolean(kind) and column.null_count:
        column = column.cast(pa.uint8())  # whose nulls are NaN
    elif is_text or pa.types.is_boolean(kind):
        return _converted(column.to_numpy(zero_copy_only=False), name, given)
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise _mismatch(name, kind, given)
    return _converted(column.to_numpy(zero_copy_only=column.null_count == 0), name, given)


def _mismatch(name: str, kind: pa.DataType, given: TableInput) -> InvalidArgument:
    return InvalidArgument(
        f"column {name} is a {kind}, and the input {given.name} takes {given.dtype.ort_name}",
        hint="convert it with pyarrow.compute.cast",
    )


def _converted(array: np.ndarray[Any, Any], name: str, given: TableInput) -> np.ndarray[Any, Any]:
    """Return the array in the input's type. Floats may be rounded, integers keep their values."""
    wanted = given.dtype.np
    if array.dtype == wanted or given.dtype is STRING:
        return array
    if given.dtype.is_integer:
        _check_integers(array, name, given.dtype)
    with np.errstate(over="ignore"):  # to infinity, as float64 is rounded to float32
        return array.astype(wanted)


def _check_integers(array: np.ndarray[Any, Any], name: str, dtype: DType) -> None:
    """Raise if a number is not an integer, or out of the range of the type."""
    if array.dtype.kind == "b" or array.size == 0:
        return
    info = np.iinfo(dtype.np) if dtype.bits >= 8 else None
    low, high = (info.min, info.max) if info else _narrow_range(dtype)
    if array.dtype.kind == "f":  # which have no 2^63 - 1, but 2^63
        is_wrong = ~((array >= low) & (array < float(high + 1))) | (array != np.rint(array))
    else:
        is_wrong = ~((array >= low) & (array <= high))
    if is_wrong.any():
        value = array[is_wrong].flat[0]
        raise InvalidArgument(
            f"column {name} has {value}, which is not a {dtype.ort_name}",
            hint="cast it as you want it rounded, or choose another column",
        )


def _narrow_range(dtype: DType) -> tuple[int, int]:
    """The smallest and largest number of an integer type of fewer than 8 bits."""
    half = 1 << (dtype.bits - 1)
    return (-half, half - 1) if dtype.kind == "int" else (0, 2 * half - 1)


def _shaped(array: np.ndarray[Any, Any], name: str, given: TableInput) -> np.ndarray[Any, Any]:
    """Return the array with the rank of the input: single values may be rows of one."""
    rank = len(given.shape)
    if rank in (0, array.ndim):
        return array
    if rank == array.ndim + 1 and given.shape[-1] in (1, None):
        return array[..., None]
    if rank == array.ndim - 1 and array.shape[-1] == 1:
        return array[..., 0]
    raise InvalidArgument(
        f"a row of column {name} has shape {list(array.shape[1:])}, "
        f"and one of the input {given.name} has shape {list(given.shape[1:])}"
    )


def null_rows(columns: list[pa.ChunkedArray]) -> np.ndarray[Any, Any] | None:
    """Return which rows have a null in one of the columns, in lists too; None: no row has."""
    found = None
    for column in columns:
        mask = _nulls(column)
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def has_null_list(kind: pa.DataType, column: pa.ChunkedArray) -> bool:
    """Return whether a list of no fixed size is null: what it would contain is not known."""
    if isinstance(kind, pa.BaseExtensionType) or not _is_list(kind):
        return False
    if column.null_count and not pa.types.is_fixed_size_list(kind):
        return True
    return has_null_list(kind.value_type, pa.chunked_array([_one_chunk(column).flatten()]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _nulls(column: pa.ChunkedArray) -> np.ndarray[Any, Any] | None:
    """Return which elements are null or contain one."""
    mask, kind = None, column.type
    is_dictionary = pa.types.is_dictionary(kind)  # of which an entry may be null
    if is_dictionary and any(chunk.dictionary.null_count for chunk in column.chunks):
        column = pa.chunked_array([_one_chunk(column).dictionary_decode()])
    if column.null_count:
        mask = pc.is_null(column).to_numpy().astype(bool)
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not _is_list(storage):
        return mask
    array = _one_chunk(column)
    lists = array.storage if isinstance(kind, pa.BaseExtensionType) else array
    inner = _nulls(pa.chunked_array([lists.flatten()]))
    if inner is None:
        return mask
    rows = np.zeros(len(lists), bool)
    rows[pc.list_parent_indices(lists).to_numpy()[inner]] = True
    return rows if mask is None else rows | mask
