"""Quantized weights as a model stores them: codes, scales and zero points, in the layout of an op.

Constants of a weight that needs no calibration are computed when they are written: a file is made
by reading each weight once, and memory holds one of them. Those of calibrated weights are in an
unnamed file that is mapped.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.const import COPY_BELOW, ArrayConst, Const, Source, SourceConst
from sardonyx.graph.dtype import U8, DType, by_name, by_numpy
from sardonyx.ort.matmul_nbits_quantizer import packed_codes

Array = np.ndarray[Any, Any]
Type = tuple[DType, tuple[int, ...]]


@frozen
class Codes:
    """A quantized weight [K, N]: codes [N, blocks, block] with a scale per block and column."""

    codes: Array  # uint8
    scale: Array  # [N, blocks], of the type of the weight
    zero: Array | None  # [N, blocks]: uint8, or floats; None: the code of 0 is the middle one


@frozen
class StoredLayout:
    """Sizes of a quantized weight, and how its op stores it."""

    rows: int  # K
    columns: int  # N
    bits: int  # of a stored code
    block: int
    zero: str  # "": no zero points, "codes" or "floats"
    is_qdq: bool  # for DequantizeLinear; else for MatMulNBits
    dtype: DType  # of scales

    @property
    def blocks(self) -> int:
        """The number of blocks of a column."""
        return -(-self.rows // self.block)

    def types(self) -> list[Type]:
        """Return type and shape of codes, scales and zero points if there are any."""
        n, k, blocks, per_byte = self.columns, self.rows, self.blocks, 8 // self.bits
        floats = self.dtype, (n, blocks)
        if self.is_qdq:
            # Signed codes where 0 is the middle one.
            integers = by_name(f"{'u' if self.zero else 'i'}{self.bits}")
            found: list[Type] = [
                (integers, (k, n)),
                (self.dtype, (blocks, n)),
                (integers, (blocks, n)),
            ]
        else:
            rows = U8, (n, -(-blocks // per_byte))
            found = [
                (U8, (n, blocks, self.block // per_byte)),
                floats,
                rows if self.zero == "codes" else floats,
            ]
        return found if self.zero else found[:2]

    def arrays(self, weight: Codes) -> list[Array]:
        """Return codes, scales and zero points as their op stores them."""
        zeros = [] if weight.zero is None else [weight.zero]
        if not self.is_qdq:
            packed = [z if self.zero == "floats" else self._packed_rows(z) for z in zeros]
            return [packed_codes(weight.codes, self.bits), weight.scale, *packed]
        codes = weight.codes.reshape(self.columns, -1)[:, : self.rows].T
        matrices = [codes, *(z.T for z in zeros)]
        if not zeros:  # from offset binary to two's complement
            middle = np.int16(1 << (self.bits - 1))
            matrices = [(codes.astype(np.int16) - middle).astype(np.int8)]
        kind = self.types()[0][0].np
        integers = [np.ascontiguousarray(m).astype(kind) for m in matrices]
        return [integers[0], np.ascontiguousarray(weight.scale.T), *integers[1:]]

    def _packed_rows(self, zero: Array) -> Array:
        return packed_codes(zero, self.bits, 1 << (self.bits - 1))


class LazyArrays:
    """Constants that are computed together when one is read; writing reads them in a row."""

    _last: tuple[LazyArrays, list[Array]] | None = None  # those that were read last

    def __init__(self, types: Sequence[Type], make: Callable[[], list[Array]]) -> None:
        self._types: Final = types
        self._make: Final = make

    def array(self, index: int) -> Array:
        """Return the array of one constant."""
        last = LazyArrays._last
        if last is None or last[0] is not self:
            LazyArrays._last = last = None  # frees the arrays of the last ones first
            last = LazyArrays._last = (self, self._make())
        return last[1][index]

    def consts(self) -> list[Const]:
        """Return the constants, none of which is computed yet."""
        return [_LazyConst(self, i, *t) for i, t in enumerate(self._types)]


def lazy_weight(layout: StoredLayout, make: Callable[[], Codes]) -> list[Const]:
    """Return the constants of a weight that is quantized when they are read."""
    return LazyArrays(layout.types(), lambda: layout.arrays(make())).consts()


class _LazyConst(Const):
    """One of the constants of a weight."""

    __slots__ = ("index", "weight")

    def __init__(
        self, weight: LazyArrays, index: int, dtype: DType, shape: tuple[int, ...]
    ) -> None:
        super().__init__(dtype, shape)
        self.weight: Final = weight
        self.index: Final = index

    def _compute(self) -> Array:
        return self.weight.array(self.index)

    def describe(self) -> str:
        return "quantized when it is read"


class Spool:
    """An unnamed file for the constants of weights that are quantized before they are written."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # the mappings stay

    def consts(self, layout: StoredLayout, weight: Codes) -> list[Const]:
        """Store a weight; return its constants, which are mapped."""
        pairs = zip(layout.types(), layout.arrays(weight), strict=True)
        return [self._add(dtype, array) for (dtype, _), array in pairs]

    def _add(self, dtype: DType, array: Array) -> Const:
        const = ArrayConst(array)
        assert by_numpy(array.dtype) is dtype
        if const.size_bytes < COPY_BELOW:
            return const
        data = const.stored().reshape(-1).view(np.uint8)
        self._file.seek(self._end)
        self._file.write(data.data)
        self._file.flush()
        mapping = mmap.mmap(
            self._file.fileno(), data.nbytes, offset=self._end, access=mmap.ACCESS_READ
        )
        self._end += -(-data.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        source = Source(memoryview(mapping), "a temporary file", is_fixed=True)
        return SourceConst(source, 0, data.nbytes, dtype, array.shape)
