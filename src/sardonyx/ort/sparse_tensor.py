"""SparseTensor: values with the places where they stand, in one of three layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING, DType, by_numpy
from sardonyx.ort.device import OrtDevice, check_cpu
from sardonyx.ort.enums import OrtSparseFormat

Array = np.ndarray[Any, Any]


class SparseCooView:
    """The places of values, each by itself: flat, or by row and column."""

    __slots__ = ("_indices",)

    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        """One number for each value, or one row of two."""
        return self._indices


class SparseBlockSparseView(SparseCooView):
    """The places of blocks of values."""


class SparseCsrView:
    """The places of values, row by row."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: Array, outer: Array) -> None:
        self._inner, self._outer = inner, outer

    def inner(self) -> Array:
        """The column of each value."""
        return self._inner

    def outer(self) -> Array:
        """Where each row begins among the values, and where the last ends."""
        return self._outer


class SparseTensor:
    """A sparse tensor over the memory of arrays, which it keeps; indices are checked."""

    __slots__ = ("_dtype", "_format", "_places", "_shape", "_values")

    def __init__(
        self,
        dense_shape: Sequence[int],
        values: Array,
        places: tuple[Array, ...],
        format: OrtSparseFormat,
    ) -> None:
        self._shape = tuple(int(d) for d in dense_shape)
        if any(d < 0 for d in self._shape):
            raise ValueFault(f"a shape has sizes of 0 or more, not {list(self._shape)}")
        if not isinstance(values, np.ndarray):
            raise TypeError(f"values are a numpy array, not {type(values).__name__}")
        dtype = by_numpy(values.dtype)
        if dtype is None or (dtype is STRING and values.dtype != object):
            raise ValueFault(f"values are of a type of ONNX, not {values.dtype}")
        self._dtype: DType = dtype
        self._values = np.ascontiguousarray(values)
        self._places, self._format = places, format

    @classmethod
    def sparse_coo_from_numpy(
        cls,
        dense_shape: Any,
        values: Array,
        coo_indices: Any,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Values with a flat index each, or with one of row and column."""
        check_cpu(ort_device, "a sparse tensor")
        indices = _indices(coo_indices, "coo_indices")
        made = cls(dense_shape, values, (indices,), OrtSparseFormat.ORT_SPARSE_COO)
        count = made._values.size
        if made._values.ndim != 1 or indices.shape not in ((count,), (count, 2)):
            raise ValueFault(
                f"{list(made._values.shape)} values have indices of shape [{count}] or "
                f"[{count}, 2], not {list(indices.shape)}"
            )
        if indices.ndim == 2 and len(made._shape) != 2:
            raise ValueFault(f"rows and columns index a matrix, not {list(made._shape)}")
        made._check_range()
        return made

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Any,
        values: Array,
        inner_indices: Any,
        outer_indices: Any,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Values row by row: the column of each, and where each row begins."""
        check_cpu(ort_device, "a sparse tensor")
        inner = _indices(inner_indices, "inner_indices")
        outer = _indices(outer_indices, "outer_indices")
        made = cls(dense_shape, values, (inner, outer), OrtSparseFormat.ORT_SPARSE_CSRC)
        made._check_rows(inner, outer)
        return made

    @classmethod
    def blocksparse_from_numpy(
        cls, dense_shape: Any, values: Array, block_indices: Any, ort_device: OrtDevice
    ) -> SparseTensor:
        """Blocks of values along the last dim, and the row and column of each among blocks."""
        check_cpu(ort_device, "a sparse tensor")
        indices = _indices(block_indices, "block_indices", np.int32)
        made = cls(dense_shape, values, (indices,), OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)
        blocks = made._values
        if blocks.ndim < 3 or indices.ndim != 2 or indices.shape[0] != 2:
            raise ValueFault(
                "values are blocks along their last dim and indices two rows of numbers; here are "
                f"{list(blocks.shape)} and {list(indices.shape)}"
            )
        if indices.shape[1] != blocks.shape[-1]:
            raise ValueFault(f"{blocks.shape[-1]} blocks have {indices.shape[1]} places")
        return made

    def _check_range(self) -> None:
        """Flat indices, or rows and columns, lie in the tensor."""
        places = self._places[0]
        limits = self._shape if places.ndim == 2 else (math.prod(self._shape),)
        if places.size and ((places < 0).any() or (places >= np.array(limits)).any()):
            raise ValueFault(f"an index lies outside a tensor of shape {list(self._shape)}")

    def _check_rows(self, inner: Array, outer: Array) -> None:
        count = self._values.size
        if len(self._shape) != 2 or self._values.ndim != 1 or inner.shape != (count,):
            raise ValueFault(
                f"a matrix in rows has one column for each of {count} values; here are the "
                f"shape {list(self._shape)} and {list(inner.shape)} columns"
            )
        rows, columns = self._shape
        if outer.shape != (rows + 1,) and not (count == 0 and outer.size == 0):
            raise ValueFault(f"{rows} rows have {rows + 1} borders, not {list(outer.shape)}")
        if outer.size and (outer[0] != 0 or outer[-1] != count or (np.diff(outer) < 0).any()):
            raise ValueFault(f"the borders of rows do not go from 0 up to {count}")
        if count and ((inner < 0).any() or (inner >= columns).any()):
            raise ValueFault(f"a column lies outside a matrix of {columns} columns")

    def values(self) -> Array:
        """The values, over their own memory."""
        return self._values

    def as_coo_view(self) -> SparseCooView:
        """The places of a tensor in coordinates."""
        self._expect(OrtSparseFormat.ORT_SPARSE_COO)
        return SparseCooView(self._places[0])

    def as_csrc_view(self) -> SparseCsrView:
        """The places of a tensor in rows."""
        self._expect(OrtSparseFormat.ORT_SPARSE_CSRC)
        return SparseCsrView(*self._places)

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """The places of a tensor in blocks."""
        self._expect(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)
        return SparseBlockSparseView(self._places[0])

    get_coo_data = as_coo_view
    get_csrc_data = as_csrc_view
    get_blocksparse_data = as_blocksparse_view

    def _expect(self, wanted: OrtSparseFormat) -> None:
        if self._format is not wanted:
            raise ValueFault(f"the sparse tensor is {self._format.name}, not {wanted.name}")

    def to_cuda(self, ort_device: OrtDevice) -> None:
        """A copy on a GPU, of which there is none here."""
        raise ValueFault("sparse tensors lie on the CPU here; there is no CUDA")

    def format(self) -> OrtSparseFormat:
        """The layout."""
        return self._format

    def dense_shape(self) -> list[int]:
        """The sizes of the tensor with its zeros."""
        return list(self._shape)

    def data_type(self) -> str:
        """The type as onnxruntime writes it: sparse_tensor(float)."""
        return f"sparse_tensor({self._dtype.ort_name})"

    def device_name(self) -> str:
        """Where the tensor lies."""
        return "cpu"

    def _get_c_tensor(self) -> SparseTensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseTensor, (self._shape, self._values, self._places, self._format)

    def copied(self) -> SparseTensor:
        """The same in memory of its own."""
        places = tuple(place.copy() for place in self._places)
        return SparseTensor(self._shape, self._values.copy(), places, self._format)

    def to_dense(self) -> Array:
        """The tensor with its zeros, as an array."""
        dense = np.zeros(self._shape, self._values.dtype)
        match self._format:
            case OrtSparseFormat.ORT_SPARSE_COO if self._places[0].ndim == 2:
                dense[tuple(self._places[0].T)] = self._values
            case OrtSparseFormat.ORT_SPARSE_COO:
                dense.reshape(-1)[self._places[0]] = self._values
            case OrtSparseFormat.ORT_SPARSE_CSRC:
                inner, outer = self._places
                rows = np.repeat(np.arange(self._shape[0]), np.diff(outer)) if outer.size else inner
                dense[rows, inner] = self._values
            case _:
                raise ValueFault("blocks have no one meaning as a dense tensor")
        return dense


def _indices(given: Any, what: str, dtype: Any = np.int64) -> Array:
    array = np.asarray(given)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueFault(f"{what} are whole numbers, not {array.dtype}")
    return np.ascontiguousarray(array, dtype)
