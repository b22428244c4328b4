"""Products with weights of 2, 4 or 8 bits, as models store them: in blocks with a scale each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import ShapeError
from sardonyx.graph.const import unpack
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, I8, U8, by_name, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.elementwise.chain import EPILOGUE, Code, code_type, run_code
from sardonyx.ops.matmul.standard import matmul

REALS: Final = frozenset((F32, F16, BF16))
STEPS: Final = frozenset((U8, I8, *(by_name(n) for n in ("u4", "i4", "u2", "i2"))))

nbits = Op(
    "MatMulNBits",
    1,
    "x:T q:Q scale:S zero:Z? operands*",
    "y",
    attrs={
        "K": required("int"),
        "N": required("int"),
        "bits": required("int"),
        "block_size": required("int"),
        "k_major": 0,
        "signed": 0,
        "zero_default": 0,
        "level": 0,
        "code": EPILOGUE,
    },
    types={"T": REALS, "Q": STEPS, "S": REALS, "Z": STEPS | FLOATS},
    domain=INTERNAL,
)


@frozen
class Grid:
    """Where what belongs to a block of a column lies: strides in elements of the stored tensor."""

    block_stride: int
    column_stride: int


@frozen
class Form:
    """How the weights [K, N] of a node are stored."""

    k: int
    n: int
    bits: int
    block: int
    is_k_major: bool
    is_signed: bool
    is_blocked: bool  # rows of whole blocks, as com.microsoft.MatMulNBits has them

    @property
    def n_blocks(self) -> int:
        """Blocks of a column; the last one may be shorter."""
        return -(-self.k // self.block) if self.k else 0

    @property
    def row_stride(self) -> int:
        """Elements from one stored row to the next: the columns of all k, or k of all columns."""
        if self.is_k_major:
            return self.n
        return self.n_blocks * self.block if self.is_blocked else self.k

    @property
    def zero_stride(self) -> int:
        """Elements of a row of packed zero points, which begins with a byte of its own."""
        return -(-self.n_blocks * self.bits // 8) * 8 // self.bits

    def grid(self, shape: tuple[int, ...], what: str) -> Grid:
        """How numbers of this shape go with blocks and columns."""
        count = int(np.prod(shape, dtype=np.int64))
        n, blocks = self.n, self.n_blocks
        if count == 1:
            return Grid(0, 0)
        if shape in ((n,), (1, n) if self.is_k_major else (n, 1)):
            return Grid(0, 1)
        if self.is_k_major and shape == (blocks, n):
            return Grid(n, 1)
        if not self.is_k_major and shape in ((n, blocks), (n * blocks,)):
            return Grid(1, blocks)
        raise ShapeError(
            f"{what} of shape {list(shape)} fits neither {blocks} blocks of {n} columns, "
            f"nor columns, nor is it one number"
        )

    def zero_grid(self, shape: tuple[int, ...], is_packed: bool) -> Grid:
        """The same for zero points, in elements of `bits` bits where they are packed."""
        stride = self.zero_stride
        if self.is_blocked and is_packed:
            if int(np.prod(shape, dtype=np.int64)) * 8 // self.bits == self.n * stride:
                return Grid(1, stride)
            raise ShapeError(
                f"zero points of shape {list(shape)} are not {self.n} rows of "
                f"{stride * self.bits // 8} bytes"
            )
        return self.grid(shape, "zero points")


def form_of(shape: tuple[int, ...], attrs: dict[str, Any]) -> Form:
    """The form of weights with this shape; a ShapeError if there is none."""
    k, n, bits, block = (int(attrs[a]) for a in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8) or block < 1 or k < 0 or n < 0:
        raise ShapeError(
            f"weights [{k}, {n}] of {bits} bits in blocks of {block}: bits are 2, 4 or 8, "
            f"and sizes are not negative"
        )
    is_k_major = bool(attrs["k_major"])
    is_blocked = len(shape) == 3 and not is_k_major
    form = Form(k, n, bits, block, is_k_major, bool(attrs["signed"]), is_blocked)
    expected: tuple[int, ...] = (k, n) if is_k_major else (n, k)
    if is_blocked:
        if block * bits % 8:
            raise ShapeError(f"a block of {block} numbers of {bits} bits is not whole bytes")
        expected = (n, form.n_blocks, block * bits // 8)
    if shape != expected:
        raise ShapeError(f"weights have shape {list(shape)}, not {list(expected)}")
    return form


@nbits.infer
def _(
    g: Scope, x: Fact, q: Fact, scale: Fact, zero: Fact | None = None, *_: Fact, **attrs: Any
) -> Fact:
    """One row of columns for each row of x; operands of the epilogue broadcast to that."""
    if x.rank < 1:
        raise ShapeError(f"x is no matrix: {x}")
    g.equal(x.dims[-1], attrs["K"], "x has not as many columns as the weights have rows")
    if q.static is not None:
        form = form_of(q.static, attrs)
        if q.dtype.bits != attrs["bits"] and not (form.is_blocked and q.dtype is U8):
            raise ShapeError(f"weights of {q.dtype} do not have {attrs['bits']} bits")
        if scale.static is not None:
            form.grid(scale.static, "scales")
        if zero is not None and zero.static is not None:
            form.zero_grid(zero.static, not zero.dtype.is_float)
    return Fact(code_type(attrs["code"], x.dtype), (*x.dims[:-1], attrs["N"]))


def _fields(raw: Array, form: Form, count: int) -> Array:
    """Packed elements as int32."""
    dtype = by_name(f"{'i' if form.is_signed else 'u'}{form.bits}")
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if form.bits == 8:
        return flat.view(dtype.np).astype(np.int32)
    return unpack(flat, dtype, count).astype(np.int32)


def _spread(values: Array, grid: Grid, form: Form) -> Array:
    """Numbers for blocks and columns as [K, N]."""
    block = np.arange(form.n_blocks) * grid.block_stride
    column = np.arange(form.n) * grid.column_stride
    whole = values.reshape(-1)[block[:, None] + column]
    return np.repeat(whole, form.block, axis=0)[: form.k]


def weights_of(q: Array, scale: Array, zero: Array | None, attrs: dict[str, Any]) -> Array:
    """The weights [K, N] as float32."""
    form = form_of(q.shape, attrs)
    if form.is_blocked:
        steps = _fields(q, form, form.n * form.row_stride)
        steps = steps.reshape(form.n, form.row_stride)[:, : form.k].T
    else:
        steps = q.astype(np.int32)
        steps = steps if form.is_k_major else steps.T
    centred = steps.astype(np.float32)
    if zero is None:
        centred = centred - np.float32(attrs["zero_default"])
    elif (known := by_numpy(zero.dtype)) is not None and known.is_float:
        grid = form.zero_grid(zero.shape, False)
        centred = centred - _spread(zero.astype(np.float32), grid, form)
    else:
        grid = form.zero_grid(zero.shape, True)
        count = form.n * form.zero_stride
        steps = _fields(zero, form, count) if form.is_blocked else zero.astype(np.int32)
        centred = centred - _spread(steps.astype(np.float32), grid, form)
    scales = _spread(scale.astype(np.float32), form.grid(scale.shape, "scales"), form)
    made: Array = centred * scales
    return made


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
        y: Array = matmul(wide(x), weights_of(q, scale, zero, attrs))
        return run_code(code, (y, *operands)) if code else y.astype(x.dtype, copy=False)


few_bits = Op(
    "FewBits",
    1,
    "x:T q:Q scale:S zero:Z? gain:T? residual:T? next_gain:T?",
    "y:T",
    attrs={
        "K": required("int"),
        "N": required("int"),
        "bits": required("int"),
        "block_size": required("int"),
        "k_major": 0,
        "signed": 0,
        "zero_default": 0,
        "epsilon": 1e-5,
        "gated": 0,  # silu of the first half of the columns times the second
        "next_epsilon": 1e-5,
        "makes_digits": 0,  # only such products read it, whose norm is that by next_gain
    },
    types={"T": REALS, "Q": STEPS, "S": REALS, "Z": STEPS | FLOATS},
    domain=INTERNAL,
)


@few_bits.infer
def _(g: Scope, x: Fact, q: Fact, scale: Fact, *_: Fact | None, **attrs: Any) -> Fact:
    g.equal(x.dims[-1], attrs["K"], "x has not as many columns as the weights have rows")
    return Fact(x.dtype, (*x.dims[:-1], attrs["N"] // (2 if attrs["gated"] else 1)))


@few_bits.reference
def _(  # noqa: PLR0913 - what is fused
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
    """A product with weights of few bits between the norm before it and what decoders do next."""
    with np.errstate(all="ignore"):
        rows = wide(x)
        if gain is not None:
            square = np.mean(rows * rows, axis=-1, keepdims=True)
            rows = rows / np.sqrt(square + np.float32(epsilon)) * wide(gain)
        y: Array = matmul(rows, weights_of(q, scale, zero, attrs))
        if gated:
            gate, up = np.split(y, 2, axis=-1)
            y = gate / (1 + np.exp(-gate)) * up
        return (y if residual is None else y + wide(residual)).astype(x.dtype)


OPS: Final = (few_bits, nbits)
