"""Internal matmul with 2-, 4- and 8-bit weights, quantized in blocks, in any stored layout."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import ShapeError
from sardonyx.graph.const import unpack
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, I8, U8, by_name, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import internal_op, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.elementwise.chain import EPILOGUE, Code, code_type, run_code
from sardonyx.ops.matmul.standard import matmul

REALS: Final = frozenset((F32, F16, BF16))
QUANTIZED: Final = frozenset((U8, I8, *(by_name(n) for n in ("u4", "i4", "u2", "i2"))))
_TYPES: Final = {"T": REALS, "Q": QUANTIZED, "S": REALS, "Z": QUANTIZED | FLOATS}
_WEIGHTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("K", "N", "bits", "block_size"), required("int")),
    **dict.fromkeys(("k_major", "signed", "zero_default"), 0),
}

nbits = internal_op(
    "MatMulNBits",
    "x:T q:Q scale:S zero:Z? operands*",
    "y",
    attrs={**_WEIGHTS, "level": 0, "code": EPILOGUE},
    types=_TYPES,
)


def check_block_size(block: int) -> None:
    """Raise unless a block has a size that onnxruntime allows."""
    if block < 16 or block & (block - 1):
        raise ShapeError(f"block_size must be a power of two and at least 16, got {block}")


def check_weight_sizes(k: int, n: int, block: int) -> None:
    """Raise for sizes of n-bit weights that onnxruntime does not allow."""
    check_block_size(block)
    if k < 1 or n < 1:
        raise ShapeError(f"K and N must be positive, got {k} and {n}")


@frozen
class ScaleStrides:
    """Strides, in elements, of the scales or zero points by block and by column."""

    block_stride: int
    column_stride: int


@frozen
class NBitsLayout:
    """The stored layout of the weights [K, N] of a node."""

    k: int
    n: int
    bits: int
    block: int
    is_k_major: bool
    is_signed: bool
    is_blocked: bool  # [N, blocks, bytes], rows of whole blocks, as in com.microsoft.MatMulNBits

    @property
    def n_blocks(self) -> int:
        """Blocks per column; the last one may be partial."""
        return -(-self.k // self.block) if self.k else 0

    @property
    def row_stride(self) -> int:
        """Elements from one stored row to the next (a row is one k, or one column)."""
        if self.is_k_major:
            return self.n
        return self.n_blocks * self.block if self.is_blocked else self.k

    @property
    def zero_stride(self) -> int:
        """Elements of a row of packed zero points; each row starts at a byte."""
        return -(-self.n_blocks * self.bits // 8) * 8 // self.bits

    def scale_strides(self, shape: tuple[int, ...], what: str) -> ScaleStrides:
        """Return the strides of scales of this shape: per tensor, per column or per block."""
        count = int(np.prod(shape, dtype=np.int64))
        n, blocks = self.n, self.n_blocks
        if count == 1:
            return ScaleStrides(0, 0)
        if shape in ((n,), (1, n) if self.is_k_major else (n, 1)):
            return ScaleStrides(0, 1)
        # Scales have the layout of the weights: [blocks, N], or [N, blocks] which may be flat.
        if self.is_k_major and shape == (blocks, n):
            return ScaleStrides(n, 1)
        if not self.is_k_major and shape in ((n, blocks), (n * blocks,)):
            return ScaleStrides(1, blocks)
        raise ShapeError(
            f"{what} of shape {list(shape)} are neither one number, nor one for each of {n} "
            f"columns, nor one for each of {blocks} blocks of {n} columns"
        )

    def zero_strides(self, shape: tuple[int, ...], is_packed: bool) -> ScaleStrides:
        """Return the strides of zero points, in elements of `bits` bits where they are packed."""
        stride = self.zero_stride
        if self.is_blocked and is_packed:
            if int(np.prod(shape, dtype=np.int64)) * 8 // self.bits == self.n * stride:
                return ScaleStrides(1, stride)
            raise ShapeError(
                f"zero points of shape {list(shape)} are not {self.n} rows of "
                f"{stride * self.bits // 8} bytes"
            )
        return self.scale_strides(shape, "zero points")


def weight_layout(shape: tuple[int, ...], attrs: dict[str, Any]) -> NBitsLayout:
    """Return the layout of weights with this shape; raise a ShapeError if they have none."""
    k, n, bits, block = (int(attrs[a]) for a in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8) or block < 1 or k < 0 or n < 0:
        raise ShapeError(
            f"weights [{k}, {n}] of {bits} bits in blocks of {block}: bits must be 2, 4 or 8, "
            f"and sizes must not be negative"
        )
    is_k_major = bool(attrs["k_major"])
    is_blocked = len(shape) == 3 and not is_k_major
    layout = NBitsLayout(k, n, bits, block, is_k_major, bool(attrs["signed"]), is_blocked)
    expected: tuple[int, ...] = (k, n) if is_k_major else (n, k)
    if is_blocked:
        if block * bits % 8:
            raise ShapeError(f"a block of {block} codes of {bits} bits is not whole bytes")
        expected = (n, layout.n_blocks, block * bits // 8)
    if shape != expected:
        raise ShapeError(f"weights must have shape {list(expected)}, got {list(shape)}")
    return layout


@nbits.infer
def _(
    g: Scope, x: Fact, q: Fact, scale: Fact, zero: Fact | None = None, *_: Fact, **attrs: Any
) -> Fact:
    if x.rank < 1:
        raise ShapeError(f"x must be a matrix, got {x}")
    g.equal(x.dims[-1], attrs["K"], "x must have as many columns as the weights have rows")
    if q.static is not None:
        layout = weight_layout(q.static, attrs)
        if q.dtype.bits != attrs["bits"] and not (layout.is_blocked and q.dtype is U8):
            raise ShapeError(f"weights of {q.dtype} do not have {attrs['bits']} bits")
        if scale.static is not None:
            layout.scale_strides(scale.static, "scales")
        if zero is not None and zero.static is not None:
            layout.zero_strides(zero.static, not zero.dtype.is_float)
    return Fact(code_type(attrs["code"], x.dtype), (*x.dims[:-1], attrs["N"]))


def _unpack_codes(raw: Array, layout: NBitsLayout, count: int) -> Array:
    """Unpack codes to int32."""
    dtype = by_name(f"{'i' if layout.is_signed else 'u'}{layout.bits}")
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if layout.bits == 8:
        return flat.view(dtype.np).astype(np.int32)
    return unpack(flat, dtype, count).astype(np.int32)


def _expand_blocks(values: Array, strides: ScaleStrides, layout: NBitsLayout) -> Array:
    """Expand scales or zero points per block and column to [K, N]."""
    block = np.arange(layout.n_blocks) * strides.block_stride
    column = np.arange(layout.n) * strides.column_stride
    whole = values.reshape(-1)[block[:, None] + column]
    return np.repeat(whole, layout.block, axis=0)[: layout.k]


def dequantized_weights(q: Array, scale: Array, zero: Array | None, attrs: dict[str, Any]) -> Array:
    """Return the weights [K, N] as float32: (code - zero point) * scale."""
    layout = weight_layout(q.shape, attrs)
    if layout.is_blocked:
        codes = _unpack_codes(q, layout, layout.n * layout.row_stride)
        # The last block of a column may be padded.
        codes = codes.reshape(layout.n, layout.row_stride)[:, : layout.k].T
    else:
        codes = q.astype(np.int32)
        codes = codes if layout.is_k_major else codes.T
    centred = codes.astype(np.float32)
    if zero is None:
        centred = centred - np.float32(attrs["zero_default"])
    elif (known := by_numpy(zero.dtype)) is not None and known.is_float:
        strides = layout.zero_strides(zero.shape, False)
        centred = centred - _expand_blocks(zero.astype(np.float32), strides, layout)
    else:
        strides = layout.zero_strides(zero.shape, True)
        # Packed zero points have padding codes at the end of each row.
        count = layout.n * layout.zero_stride
        codes = _unpack_codes(zero, layout, count) if layout.is_blocked else zero.astype(np.int32)
        centred = centred - _expand_blocks(codes.astype(np.float32), strides, layout)
    scales = _expand_blocks(
        scale.astype(np.float32), layout.scale_strides(scale.shape, "scales"), layout
    )
    return np.asarray(centred * scales)


@nbits.reference
def _(
    x: Array,
    q: Array,
    scale: Array,
    zero: Array | None = None,
    *operands: Array,
    code: Code | None,
    **attrs: Any,
) -> Array:
    with np.errstate(all="ignore"):
        y: Array = matmul(wide(x), dequantized_weights(q, scale, zero, attrs))
        return run_code(code, (y, *operands)) if code else y.astype(x.dtype, copy=False)


fused_nbits = internal_op(
    "FusedMatMulNBits",
    "x:T q:Q scale:S zero:Z? gain:T? residual:T? next_gain:T?",
    "y:T",
    attrs={
        **_WEIGHTS,
        "epsilon": 1e-5,
        "gated": 0,  # SwiGLU: silu of the first half of the columns times the second
        "next_epsilon": 1e-5,
        # Also quantize the output for its only readers, FusedMatMulNBits with the norm next_gain.
        "quantizes_output": 0,
    },
    types=_TYPES,
)


@fused_nbits.infer
def _(g: Scope, x: Fact, q: Fact, scale: Fact, *_: Fact | None, **attrs: Any) -> Fact:
    g.equal(x.dims[-1], attrs["K"], "x must have as many columns as the weights have rows")
    return Fact(x.dtype, (*x.dims[:-1], attrs["N"] // (2 if attrs["gated"] else 1)))


@fused_nbits.reference
def _(  # noqa: PLR0913 - the operands of everything that is fused
    x: Array,
    q: Array,
    scale: Array,
    zero: Array | None = None,
    gain: Array | None = None,
    residual: Array | None = None,
    next_gain: Array | None = None,
    *,
    epsilon: float,
    gated: int,
    **attrs: Any,
) -> Array:
    """RMS norm, n-bit matmul, SwiGLU and residual addition of a decoder layer in one op."""
    with np.errstate(all="ignore"):
        rows = wide(x)
        if gain is not None:
            square = np.mean(rows * rows, axis=-1, keepdims=True)
            rows = rows / np.sqrt(square + np.float32(epsilon)) * wide(gain)
        y: Array = matmul(rows, dequantized_weights(q, scale, zero, attrs))
        if gated:
            gate, up = np.split(y, 2, axis=-1)
            y = gate / (1 + np.exp(-gate)) * up
        return (y if residual is None else y + wide(residual)).astype(x.dtype)


OPS: Final = (fused_nbits, nbits)
