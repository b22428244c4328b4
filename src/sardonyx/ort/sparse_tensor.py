"""SparseTensor: values with their indices, in the layouts COO, CSR and block sparse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING, DType, by_numpy
from sardonyx.ort.device import OrtDevice, check_cpu
from sardonyx.ort.device_enums import OrtSparseFormat

Array = np.ndarray[Any, Any]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


class SparseCooView:
    """The indices of a COO tensor: flat, or row and column."""

    __slots__ = ("_indices",)

    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        """Return one index per value: [n] flat ones, or [n, 2] rows and columns."""
        return _read_only(self._indices)


class SparseBlockSparseView(SparseCooView):
    """The indices of a block sparse tensor."""


class SparseCsrView:
    """The indices of a CSR matrix."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: Array, outer: Array) -> None:
        self._inner, self._outer = inner, outer

    def inner(self) -> Array:
        """Return the column of each value."""
        return _read_only(self._inner)

    def outer(self) -> Array:
        """Return the row offsets: where each row begins among the values, and the end."""
        return _read_only(self._outer)


class SparseTensor:
    """A sparse tensor over the memory of arrays, which it keeps alive; indices are validated."""

    __slots__ = ("_dtype", "_format", "_indices", "_shape", "_values")

    def __init__(
        self,
        dense_shape: Sequence[int],
        values: Array,
        indices: tuple[Array, ...],
        format: OrtSparseFormat,
    ) -> None:
        self._shape = tuple(int(d) for d in dense_shape)
        if any(d < 0 for d in self._shape):
            raise ValueFault(f"a shape must have sizes of 0 or more, got {list(self._shape)}")
        if not isinstance(values, np.ndarray):
            raise TypeError(f"values must be a numpy array, got {type(values).__name__}")
        dtype = by_numpy(values.dtype)
        if dtype is None or values.dtype.kind == "S":
            raise ValueFault(f"ONNX has no values of {values.dtype}")
        if dtype is STRING:
            values = values.astype(object, copy=False)
        self._dtype: DType = dtype
        self._values = np.ascontiguousarray(values)
        self._indices, self._format = indices, format

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Any, values: Array, coo_indices: Any, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a COO tensor with flat indices, or rows and columns."""
        check_cpu(ort_device, "a sparse tensor")
        indices = _as_indices(coo_indices, "coo_indices")
        tensor = cls(dense_shape, values, (indices,), OrtSparseFormat.ORT_SPARSE_COO)
        count = tensor._values.size
        if tensor._values.ndim != 1 or indices.shape not in ((count,), (count, 2)):
            raise ValueFault(
                f"{list(tensor._values.shape)} values need indices of shape [{count}] or "
                f"[{count}, 2], got {list(indices.shape)}"
            )
        if indices.ndim == 2 and len(tensor._shape) != 2:
            raise ValueFault(f"rows and columns index a matrix, got {list(tensor._shape)}")
        tensor._check_range()
        return tensor

    @classmethod
    def of_dense(cls, array: Array) -> SparseTensor:
        """Return the elements of an array that are not 0, as a COO tensor with flat indices."""
        flat = array.reshape(-1)
        indices = np.flatnonzero(flat).astype(np.int64, copy=False)
        return cls(array.shape, flat[indices], (indices,), OrtSparseFormat.ORT_SPARSE_COO)

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Any,
        values: Array,
        inner_indices: Any,
        outer_indices: Any,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Return a CSR matrix: the column of each value, and the row offsets."""
        check_cpu(ort_device, "a sparse tensor")
        inner = _as_indices(inner_indices, "inner_indices")
        outer = _as_indices(outer_indices, "outer_indices")
        tensor = cls(dense_shape, values, (inner, outer), OrtSparseFormat.ORT_SPARSE_CSRC)
        tensor._check_rows(inner, outer)
        return tensor

    @classmethod
    def blocksparse_from_numpy(
        cls, dense_shape: Any, values: Array, block_indices: Any, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a block sparse tensor: blocks along the last dim, with block rows and columns."""
        check_cpu(ort_device, "a sparse tensor")
        indices = _as_indices(block_indices, "block_indices", np.int32)
        tensor = cls(dense_shape, values, (indices,), OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)
        blocks = tensor._values
        if blocks.ndim < 3 or indices.ndim != 2 or indices.shape[0] != 2:
            raise ValueFault(
                "values must be blocks along their last dim and indices of shape [2, blocks], got "
                f"{list(blocks.shape)} and {list(indices.shape)}"
            )
        if indices.shape[1] != blocks.shape[-1]:
            raise ValueFault(f"there are {blocks.shape[-1]} blocks and {indices.shape[1]} indices")
        return tensor

    def _check_range(self) -> None:
        """Raise an error unless all COO indices are inside the tensor."""
        indices = self._indices[0]
        limits = self._shape if indices.ndim == 2 else (math.prod(self._shape),)
        if indices.size and ((indices < 0).any() or (indices >= np.array(limits)).any()):
            raise ValueFault(f"an index is outside a tensor of shape {list(self._shape)}")

    def _check_rows(self, inner: Array, outer: Array) -> None:
        count = self._values.size
        if len(self._shape) != 2 or self._values.ndim != 1 or inner.shape != (count,):
            raise ValueFault(
                f"a CSR matrix has one column index for each of {count} values, not the "
                f"shape {list(self._shape)} and {list(inner.shape)} column indices"
            )
        rows, columns = self._shape
        # onnxruntime accepts an empty matrix without row offsets.
        if outer.shape != (rows + 1,) and not (count == 0 and outer.size == 0):
            raise ValueFault(f"{rows} rows need {rows + 1} row offsets, got {list(outer.shape)}")
        if outer.size and (outer[0] != 0 or outer[-1] != count or (np.diff(outer) < 0).any()):
            raise ValueFault(f"the row offsets do not ascend from 0 to {count}")
        if count and ((inner < 0).any() or (inner >= columns).any()):
            raise ValueFault(f"a column index is outside a matrix of {columns} columns")

    def values(self) -> Array:
        """Return the values, without a copy: a view that is read-only, as in onnxruntime."""
        return _read_only(self._values)

    def as_coo_view(self) -> SparseCooView:
        """Return the indices of a COO tensor."""
        self._expect(OrtSparseFormat.ORT_SPARSE_COO)
        return SparseCooView(self._indices[0])

    def as_csrc_view(self) -> SparseCsrView:
        """Return the indices of a CSR matrix."""
        self._expect(OrtSparseFormat.ORT_SPARSE_CSRC)
        return SparseCsrView(*self._indices)

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """Return the indices of a block sparse tensor."""
        self._expect(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)
        return SparseBlockSparseView(self._indices[0])

    get_coo_data = as_coo_view
    get_csrc_data = as_csrc_view
    get_blocksparse_data = as_blocksparse_view

    def _expect(self, format: OrtSparseFormat) -> None:
        if self._format is not format:
            raise ValueFault(f"the sparse tensor is {self._format.name}, not {format.name}")

    def to_cuda(self, ort_device: OrtDevice) -> None:
        """Raise an error: sparse tensors are supported on the CPU only."""
        raise ValueFault("sparse tensors are supported on the CPU only, not on CUDA")

    def format(self) -> OrtSparseFormat:
        """Return the layout."""
        return self._format

    def dense_shape(self) -> list[int]:
        """Return the shape of the dense tensor."""
        return list(self._shape)

    def data_type(self) -> str:
        """Return the type as onnxruntime spells it: sparse_tensor(float)."""
        return f"sparse_tensor({self._dtype.ort_name})"

    def device_name(self) -> str:
        """Return the type of the tensor's device."""
        return "cpu"

    def _get_c_tensor(self) -> SparseTensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseTensor, (self._shape, self._values, self._indices, self._format)

    def copied(self) -> SparseTensor:
        """Return a deep copy."""
        indices = tuple(array.copy() for array in self._indices)
        return SparseTensor(self._shape, self._values.copy(), indices, self._format)

    def to_dense(self) -> Array:
        """Return the dense tensor as an array."""
        dense = np.zeros(self._shape, self._values.dtype)
        match self._format:
            case OrtSparseFormat.ORT_SPARSE_COO if self._indices[0].ndim == 2:
                dense[tuple(self._indices[0].T)] = self._values
            case OrtSparseFormat.ORT_SPARSE_COO:
                dense.reshape(-1)[self._indices[0]] = self._values
            case OrtSparseFormat.ORT_SPARSE_CSRC:
                inner, outer = self._indices
                # Row r has as many values as row offset r + 1 is larger than row offset r.
                rows = np.repeat(np.arange(self._shape[0]), np.diff(outer)) if outer.size else inner
                dense[rows, inner] = self._values
            case _:
                raise ValueFault("a block sparse tensor has no unique dense form")
        return dense


def _as_indices(values: Any, what: str, dtype: Any = np.int64) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueFault(f"{what} must be whole numbers, got {array.dtype}")
    return np.ascontiguousarray(array, dtype)
