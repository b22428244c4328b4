"""Weights of 2, 4 or 8 bits with block scales: dequantization, matmul, gathers from tables."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I8, I32, I64, U8, by_name
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.elementwise.chain import Code
from sardonyx.ops.nbits.internal import WeightLayout, weight_layout
from sardonyx.providers.torch.dtypes import torch_type
from sardonyx.providers.torch.elementwise.chain import apply_epilogue, why_no_epilogue
from sardonyx.providers.torch.kernel import PLAIN, TorchKernel, TorchKernels

_REALS: Final = frozenset((F32, F16, BF16))
_CODES: Final = frozenset((U8, I8, *(by_name(n) for n in ("u4", "i4", "u2", "i2"))))
_INDEX: Final = frozenset((I32, I64))


def unpacked(packed: Tensor, bits: int, is_signed: bool = False) -> Tensor:
    """Return the n-bit codes in bytes along the last axis, low bits first."""
    if bits == 8:
        return packed.view(torch.int8) if is_signed else packed
    low = (1 << bits) - 1
    codes = [packed >> shift & low for shift in range(0, 8 - bits, bits)]
    codes.append(packed >> 8 - bits)  # the highest code needs no mask
    numbers = torch.stack(codes, -1).flatten(-2)
    if is_signed:  # sign extension: flip the sign bit, then subtract its weight
        half = 1 << bits - 1
        return (numbers ^ half).view(torch.int8) - half
    return numbers


def dequantized(
    q: Tensor, scale: Tensor, zero: Tensor | float, form: WeightLayout, dtype: torch.dtype
) -> Tensor:
    """Return the weights [K, N] in a type, rounded once; a transposed view unless k-major."""
    codes = unpacked(q, form.bits, form.is_signed) if form.is_blocked else q
    if isinstance(zero, Tensor) and form.is_blocked and not zero.is_floating_point():
        zero = unpacked(zero.reshape(form.n, -1), form.bits, form.is_signed)
        zero = zero[:, : form.n_blocks]
    is_float_zero = isinstance(zero, Tensor) and zero.is_floating_point()
    # Codes minus integer zero points are exact in 16-bit floats; all else is computed in float32.
    kind = dtype if scale.dtype == dtype and not is_float_zero else torch.float32
    scales = _by_block(scale, form).to(kind)
    shift = _by_block(zero, form).to(kind) if isinstance(zero, Tensor) else zero
    is_whole = form.is_blocked or form.k % form.block == 0
    if not is_whole:
        scales = _expand_blocks(scales, form)
        shift = _expand_blocks(shift, form) if isinstance(shift, Tensor) else shift
    elif form.is_k_major:
        codes = codes.reshape(form.n_blocks, form.block, form.n)
    else:
        codes = codes.reshape(form.n, form.n_blocks, form.block)
    weights = codes.to(kind)
    if isinstance(shift, Tensor) or shift:
        weights = weights - shift
    weights = (weights * scales).to(dtype)
    if form.is_k_major:
        return weights.reshape(form.k, form.n)
    return weights.reshape(form.n, -1)[:, : form.k].T


def _by_block(values: Tensor, form: WeightLayout) -> Tensor:
    """Return scales or zero points, shaped to broadcast to codes by block."""
    if values.numel() == 1:
        return values.reshape(1, 1, 1)
    if form.is_k_major:
        return values.reshape(-1, 1, form.n)
    return values.reshape(form.n, -1, 1)


def _expand_blocks(values: Tensor, form: WeightLayout) -> Tensor:
    """Return one value per code, where the last block is partial; or one for all."""
    axis = 0 if form.is_k_major else 1
    if values.shape[axis] == 1:
        return values.squeeze(1 if form.is_k_major else 2)
    flat = values.squeeze(1 if form.is_k_major else 2)
    return flat.repeat_interleave(form.block, axis).narrow(axis, 0, form.k)


@functools.lru_cache(maxsize=4096)
def _form(shape: tuple[int, ...], attrs: tuple[int, ...]) -> WeightLayout:
    names = ("K", "N", "bits", "block_size", "k_major", "signed")
    return weight_layout(shape, dict(zip(names, attrs, strict=True)))


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
    names = ("K", "N", "bits", "block_size", "k_major", "signed")
    form = _form(tuple(q.shape), tuple(attrs[name] for name in names))
    weights = dequantized(q, scale, attrs["zero_default"] if zero is None else zero, form, x.dtype)
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
    form = _form(tuple(b.shape), sizes)
    points = float(1 << bits - 1) if zero is None else zero
    if g_idx is None:
        weights = dequantized(b, scales, points, form, a.dtype)
    else:
        weights = _regrouped(b, (scales, points), g_idx, form).to(a.dtype)
    return matmul_bias(a, weights, bias)


def _regrouped(
    b: Tensor, blocks: tuple[Tensor, Tensor | float], g_idx: Tensor, form: WeightLayout
) -> Tensor:
    """Return float32 weights [K, N] whose rows have explicit block numbers."""
    scales, zero = blocks
    # An index out of range would abort the CUDA context, so it is clamped.
    group = g_idx[: form.k].long().clamp(0, form.n_blocks - 1)
    codes = unpacked(b, form.bits).reshape(form.n, -1)[:, : form.k].float()
    if isinstance(zero, Tensor):
        rows = zero.reshape(form.n, -1)
        zero = (rows if zero.is_floating_point() else unpacked(rows, form.bits))[:, group].float()
    return ((codes - zero) * scales.reshape(form.n, -1)[:, group].float()).T


def gather_blocks(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero: Tensor | None = None,
    *,
    shapes: Any,
    **attrs: Any,
) -> Tensor:
    """Return gathered rows of a quantized table, in the type of its scales."""
    rank = data.dim()
    axis, at = attrs["gather_axis"] % rank, attrs["quantize_axis"] % rank
    is_packed = axis < rank - 1 and shapes[0][-1] != data.shape[-1]
    is_bytes = data.dtype is torch.uint8 and (is_packed or attrs["bits"] == 8)
    default = 1 << attrs["bits"] - 1 if is_bytes else 0
    rows = (data, scales, default if zero is None else zero)
    y = _gathered(rows, indices, (axis, at, attrs["block_size"]), attrs["bits"] * is_packed)
    return y.to(scales.dtype)


def gather_dequantized(
    data: Tensor,
    indices: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    shapes: Any,
    **attrs: Any,
) -> Tensor:
    """As `gather_blocks`, for the internal op: scales may also be per tensor or per index."""
    axis, at, block = attrs["axis"], attrs["quantize_axis"], attrs["block_size"]
    is_packed = axis < data.dim() - 1 and shapes[0][-1] != data.shape[-1]
    if scale.numel() == 1 or not block:
        shape = [1] * data.dim()
        shape[at] = scale.numel()
        scale = scale.reshape(shape)
        zero = None if zero is None else zero.reshape(shape)
        block = 1 if scale.numel() > 1 else 0
    rows = (data, scale, attrs["zero_default"] if zero is None else zero)
    y = _gathered(rows, indices, (axis, at, block), attrs["bits"] * is_packed)
    return y.to(torch_type(attrs["dtype"]))


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
}
