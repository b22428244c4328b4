"""Weights of 2, 4 or 8 bits with block scales: dequantization, fused matmuls, gathers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, I8, I32, I64, U8, by_name
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.elementwise.chain import Code
from sardonyx.ops.nbits.internal import QUANTIZED, NBitsLayout, weight_layout
from sardonyx.providers.torch.dtypes import torch_type, unpacked, wide
from sardonyx.providers.torch.elementwise.chain import apply_epilogue, why_no_epilogue
from sardonyx.providers.torch.kernel import PLAIN, Packing, TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable

_REALS: Final = frozenset((F32, F16, BF16))
_CODES: Final = frozenset((U8, I8, *(by_name(n) for n in ("u4", "i4", "u2", "i2"))))
_INDEX: Final = frozenset((I32, I64))
_LAYOUT_ATTRS: Final = ("K", "N", "bits", "block_size", "k_major", "signed")


def dequantized(
    q: Tensor, scale: Tensor, zero: Tensor | float, layout: NBitsLayout, dtype: torch.dtype
) -> Tensor:
    """Return the weights [K, N] in a type, rounded once; a transposed view unless k-major."""
    codes = unpacked(q, layout.bits, layout.is_signed) if layout.is_blocked else q
    # Integer zero points are packed like the codes; float ones are not.
    if isinstance(zero, Tensor) and layout.is_blocked and not zero.is_floating_point():
        zero = unpacked(zero.reshape(layout.n, -1), layout.bits, layout.is_signed)
        zero = zero[:, : layout.n_blocks]
    is_float_zero = isinstance(zero, Tensor) and zero.is_floating_point()
    # Codes minus integer zero points are exact in 16-bit floats; all else is computed in float32.
    kind = dtype if scale.dtype == dtype and not is_float_zero else torch.float32
    scales = _by_block(scale, layout).to(kind)
    shift = _by_block(zero, layout).to(kind) if isinstance(zero, Tensor) else zero
    is_whole = layout.is_blocked or layout.k % layout.block == 0
    # A partial last block: one scale per code instead of an axis of blocks.
    if not is_whole:
        scales = _expand_blocks(scales, layout)
        shift = _expand_blocks(shift, layout) if isinstance(shift, Tensor) else shift
    elif layout.is_k_major:
        codes = codes.reshape(layout.n_blocks, layout.block, layout.n)
    else:
        codes = codes.reshape(layout.n, layout.n_blocks, layout.block)
    weights = codes.to(kind)
    if isinstance(shift, Tensor) or shift:
        weights = weights - shift
    weights = (weights * scales).to(dtype)
    if layout.is_k_major:
        return weights.reshape(layout.k, layout.n)
    return weights.reshape(layout.n, -1)[:, : layout.k].T


def _by_block(values: Tensor, layout: NBitsLayout) -> Tensor:
    """Return scales or zero points, shaped to broadcast to codes by block."""
    if values.numel() == 1:
        return values.reshape(1, 1, 1)
    if layout.is_k_major:
        return values.reshape(-1, 1, layout.n)
    return values.reshape(layout.n, -1, 1)


def _expand_blocks(values: Tensor, layout: NBitsLayout) -> Tensor:
    """Return one value per code, where the last block is partial; or one for all."""
    axis = 0 if layout.is_k_major else 1
    flat = values.squeeze(1 if layout.is_k_major else 2)
    if flat.shape[axis] == 1:
        return flat
    return flat.repeat_interleave(layout.block, axis).narrow(axis, 0, layout.k)


@functools.lru_cache(maxsize=4096)
def _weight_layout(shape: tuple[int, ...], attrs: tuple[int, ...]) -> NBitsLayout:
    return weight_layout(shape, dict(zip(_LAYOUT_ATTRS, attrs, strict=True)))


def matmul_bias(x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x times weights, plus a bias, rounded once."""
    if bias is None:
        return torch.matmul(x, weights)
    y = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weights)
    return y.view(*x.shape[:-1], weights.shape[1])


def matmul_dequantized(
    x: Tensor,
    q: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *operands: Tensor,
    code: Code | None,
    **attrs: Any,
) -> Tensor:
    """Return x times weights of any layout, followed by the fused epilogue."""
    layout = _weight_layout(tuple(q.shape), tuple(attrs[name] for name in _LAYOUT_ATTRS))
    weights = dequantized(
        q, scale, attrs["zero_default"] if zero is None else zero, layout, x.dtype
    )
    return apply_epilogue(matmul_bias(x, weights), operands, code)


def matmul_nbits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    **attrs: Any,
) -> Tensor:
    """Return a times weights; `g_idx` gives the block of each row of K (act-order GPTQ)."""
    n, bits = attrs["N"], attrs["bits"]
    sizes = (attrs["K"], n, bits, attrs["block_size"], 0, 0)
    layout = _weight_layout(tuple(b.shape), sizes)
    points = float(1 << bits - 1) if zero is None else zero
    if g_idx is None:
        weights = dequantized(b, scales, points, layout, a.dtype)
    else:
        weights = _regrouped(b, (scales, points), g_idx, layout).to(a.dtype)
    return matmul_bias(a, weights, bias)


def _regrouped(
    b: Tensor, blocks: tuple[Tensor, Tensor | float], g_idx: Tensor, layout: NBitsLayout
) -> Tensor:
    """Return float32 weights [K, N] whose rows have explicit block numbers."""
    scales, zero = blocks
    # Act-order GPTQ permutes rows, so that a block's rows are not contiguous.
    # An index out of range would abort the CUDA context, so it is clamped.
    group = g_idx[: layout.k].long().clamp(0, layout.n_blocks - 1)
    codes = unpacked(b, layout.bits).reshape(layout.n, -1)[:, : layout.k].float()
    if isinstance(zero, Tensor):
        rows = zero.reshape(layout.n, -1)
        zero = (rows if zero.is_floating_point() else unpacked(rows, layout.bits))[:, group].float()
    return ((codes - zero) * scales.reshape(layout.n, -1)[:, group].float()).T


def gather_blocks(
    data: Tensor, indices: Tensor, scales: Tensor, *rest: Any, **attrs: Any
) -> Tensor:
    """Return gathered rows of a quantized table, in the type of its scales."""
    rank, bits, shapes = data.dim(), attrs["bits"], attrs["shapes"]
    axis, at = attrs["gather_axis"] % rank, attrs["quantize_axis"] % rank
    is_packed = axis < rank - 1 and shapes[0][-1] != data.shape[-1]
    # Codes in bytes are unsigned, and centred without zero points.
    is_bytes = data.dtype is torch.uint8 and (is_packed or bits == 8)
    return gather_dequantized(
        data, indices, scales, *rest, shapes=shapes, axis=axis, quantize_axis=at, bits=bits,
        block_size=attrs["block_size"], zero_default=1 << bits - 1 if is_bytes else 0,
    ).to(scales.dtype)  # fmt: skip


def gather_dequantized(
    data: Tensor, indices: Tensor, scale: Tensor, zero: Tensor | None = None, **attrs: Any
) -> Tensor:
    """Return gathered rows of a quantized table; scales are per tensor, index or block."""
    axis, at, block = attrs["axis"], attrs["quantize_axis"], attrs["block_size"]
    is_packed = axis < data.dim() - 1 and attrs["shapes"][0][-1] != data.shape[-1]
    if scale.numel() == 1 or not block:
        shape = [1] * data.dim()
        shape[at] = scale.numel()
        scale = scale.reshape(shape)
        zero = None if zero is None else zero.reshape(shape)
        block = 1 if scale.numel() > 1 else 0
    rows = (data, scale, attrs["zero_default"] if zero is None else zero)
    y = _gathered(rows, indices, (axis, at, block), attrs["bits"] * is_packed)
    return y.to(torch_type(attrs["dtype"])) if "dtype" in attrs else y


def _gathered(
    rows: tuple[Tensor, Tensor, Tensor | float],
    indices: Tensor,
    spec: tuple[int, int, int],
    packed_bits: int,
) -> Tensor:
    """Return dequantized float32 values at indices along an axis; an index out of range gives 0."""
    data, scale, zero = rows
    axis, at, _ = spec
    size = data.shape[axis]
    # Dequantized after the gather: only the rows that are read.
    index = torch.where(indices < 0, indices + size, indices).reshape(-1)
    is_inside = (index >= 0) & (index < size)
    index = index.clamp(0, max(size - 1, 0))
    codes = data.index_select(axis, index)
    if packed_bits:
        codes = unpacked(codes, packed_bits)
        zero = unpacked(zero, packed_bits) if isinstance(zero, Tensor) else zero
    if isinstance(zero, Tensor):
        zero = _per_element(zero.narrow(-1, 0, scale.shape[-1]), index, spec, codes.shape[at])
    y = (codes.float() - zero) * _per_element(scale, index, spec, codes.shape[at])
    y = torch.where(is_inside.reshape(-1, *(1,) * (data.dim() - 1 - axis)), y, 0)
    return y.reshape(*y.shape[:axis], *indices.shape, *y.shape[axis + 1 :])


def _per_element(values: Tensor, index: Tensor, spec: tuple[int, int, int], size: int) -> Tensor:
    """Return the scales or zero points of gathered elements, expanded from blocks."""
    axis, at, block = spec
    if values.shape[axis] > 1:
        own = torch.div(index, block, rounding_mode="floor") if axis == at and block else index
        values = values.index_select(axis, own)
    if at != axis and values.shape[at] > 1 and block > 1:
        values = values.repeat_interleave(block, at).narrow(at, 0, size)
    return values.float()


@frozen(eq=False)
class BlockwiseWeights:
    """Weights in the model's layout: one code per byte, or packed bytes of whole blocks."""

    q: Tensor
    scale: Tensor
    zero: Tensor | float
    layout: NBitsLayout

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weights [N, K]."""
        return dequantized(self.q, self.scale, self.zero, self.layout, dtype).T


def pack(q: Tensor, scale: Tensor, zero: Tensor | None, **attrs: Any) -> Any:
    """Return the weights packed for the Triton kernels where these apply, else unchanged."""
    layout = weight_layout(tuple(q.shape), attrs)
    default = attrs["zero_default"]
    if usable(q.device):
        from sardonyx.providers.torch.kernels import nbits_matmul

        if nbits_matmul.fits(layout, tuple(scale.shape)):
            return nbits_matmul.pack(q, scale, zero, layout, default)
    return BlockwiseWeights(q, scale, default if zero is None else zero, layout)


def _matrix(weights: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(weights, BlockwiseWeights):
        return weights.matrix(dtype)
    from sardonyx.providers.torch.kernels import nbits_matmul

    return nbits_matmul.dequantize(weights, dtype)


def _to_tensor(x: Any) -> Any:
    """Return a tensor; of rows in fixed point, their float values."""
    return x if x is None or isinstance(x, Tensor) else x.value


def fused_matmul_nbits(
    x: Any,
    weights: Any,
    scale: Tensor | None,
    zero: Tensor | None,
    gain: Tensor | None = None,
    residual: Any = None,
    next_gain: Tensor | None = None,
    *,
    epsilon: float,
    gated: int,
    next_waits: bool = False,
    **attrs: Any,
) -> Any:
    """Return the fused matmul: one GEMV launch for a few rows, else dequantization and torch.

    Weights that are not constant come with their scales and zero points. Between consecutive nodes
    of this op, a few rows are passed in fixed point: `x` and `residual` may be FixedPointRows.
    """
    if isinstance(weights, Tensor):
        assert scale is not None
        default = attrs["zero_default"] if zero is None else zero
        weights = BlockwiseWeights(
            weights, scale, default, weight_layout(tuple(weights.shape), attrs)
        )
    residual = _to_tensor(residual)
    if isinstance(weights, BlockwiseWeights):
        x = _to_tensor(x)
    elif (gemv := _gemv(x, weights, gain, epsilon, next_gain, attrs)) is not None:
        return gemv(residual=residual, gated=bool(gated), next_waits=next_waits)
    # Prefill: dequantize the weights once, then a matmul on matrix units.
    rows = x
    if gain is not None:
        rows = torch.rms_norm(wide(x), (x.shape[-1],), wide(gain), epsilon).to(x.dtype)
    y = F.linear(rows, _matrix(weights, x.dtype))
    if gated:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual


def _gemv(
    x: Any,
    weights: Any,
    gain: Tensor | None,
    epsilon: float,
    next_gain: Tensor | None,
    attrs: dict[str, Any],
) -> Callable[..., Any] | None:
    """Return the GEMV launch for x with its norms; None if x has too many rows for it."""
    from sardonyx.providers.torch.kernels import nbits_matmul

    # Decode: a few rows, bound by the bandwidth of reading the weights once.
    is_fixed = isinstance(x, nbits_matmul.FixedPointRows)
    if not is_fixed and not 0 < x.numel() <= nbits_matmul.MAX_ROWS * x.shape[-1]:
        return None
    # Rows in fixed point: the kernel that produced them has applied the norm already.
    norm = None if gain is None or is_fixed else (gain, epsilon)
    if not attrs["quantizes_output"]:
        return partial(nbits_matmul.nbits_gemv, x, weights, norm=norm)
    next_norm = None if next_gain is None else (next_gain, attrs["next_epsilon"])
    return partial(nbits_matmul.nbits_gemv_fixed_point, x, weights, norm=norm, next_norm=next_norm)


_TYPES: Final = _REALS | QUANTIZED | FLOATS


KERNELS: Final[TorchKernels] = {
    (INTERNAL, "MatMulNBits"): TorchKernel(
        matmul_dequantized, PLAIN | _CODES, refuses=why_no_epilogue
    ),
    (MICROSOFT, "MatMulNBits"): TorchKernel(matmul_nbits, _REALS | {U8, I32}),
    (MICROSOFT, "GatherBlockQuantized"): TorchKernel(
        gather_blocks, _REALS | _CODES | _INDEX, sized=True
    ),
    (INTERNAL, "GatherDequantized"): TorchKernel(
        gather_dequantized, _REALS | _CODES | _INDEX, sized=True
    ),
    (INTERNAL, "FusedMatMulNBits"): TorchKernel(
        fused_matmul_nbits, _TYPES, packing=Packing((1, 2, 3), pack), dependent_launch=True
    ),
}
