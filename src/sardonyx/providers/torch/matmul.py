"""MatMul, Gemm, Einsum and their fused forms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from sardonyx.graph.dtype import I32, I64
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.elementwise.chain import Code
from sardonyx.ops.matmul.standard import Equation
from sardonyx.providers.torch.dtypes import FLOAT16_TYPES, wide
from sardonyx.providers.torch.elementwise.chain import apply_epilogue, why_no_epilogue
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels, padded

_LIMB: Final = 16  # bits of the limbs of integer matmuls


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the (batched) matrix product; vectors are rows on the left, columns on the right."""
    return scaled_matmul(a, b, 1.0) if a.is_floating_point() else _integer_matmul(a, b)


def _integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of integer matrices, which wraps; torch has none on GPUs.

    Operands are split into 16-bit limbs, whose products float64 sums exactly for up to 2^21 terms.
    """
    n_limbs = a.element_size() * 8 // _LIMB
    left, right = (
        [(x.long() >> i * _LIMB & (1 << _LIMB) - 1).double() for i in range(n_limbs)]
        for x in (a, b)
    )
    total = torch.zeros((), dtype=torch.int64, device=a.device)
    for i in range(n_limbs):
        for j in range(n_limbs - i):  # higher limbs are beyond the type's width
            total = total + (torch.matmul(left[i], right[j]).long() << (i + j) * _LIMB)
    return total.to(a.dtype)


def scaled_matmul(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return alpha * a b, rounded once: a 16-bit product may overflow before it is scaled."""
    is_half = a.dtype in FLOAT16_TYPES
    if alpha == 1 and not (is_half and a.device.type == "cpu"):  # the CPU accumulates in 16 bits
        with_padding = _with_padding_columns(b) if a.dim() > 1 else None
        if with_padding is None:
            return torch.matmul(a, b)
        return torch.matmul(a, with_padding)[..., : b.shape[1]]
    if not is_half or min(a.dim(), b.dim()) < 2 or a.device.type == "cpu":
        return (torch.matmul(wide(a), wide(b)) * alpha).to(a.dtype)
    # addmm and baddbmm scale their float32 accumulators; with beta 0 the addend is not read.
    unused = a.new_empty(1)
    if b.dim() == 2:
        y = torch.addmm(unused, a.reshape(-1, a.shape[-1]), b, beta=0, alpha=alpha)
        return y.view(*a.shape[:-1], b.shape[-1])
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (
        x.expand(*lead, *x.shape[-2:]).reshape(math.prod(lead), *x.shape[-2:]) for x in (a, b)
    )
    y = torch.baddbmm(unused, left, right, beta=0, alpha=alpha)
    return y.view(*lead, *y.shape[1:])


def _with_padding_columns(b: Tensor) -> Tensor | None:
    """Return a constant column-major matrix with its padding columns; None if it has none.

    Matmuls whose result rows are not aligned are slow; the caller slices the padding off.
    """
    if b.dim() != 2 or b.stride(0) != 1 or b.stride(1) != b.shape[0]:
        return None
    k, n = b.shape
    width = padded(n, b.dtype)
    holds = b.untyped_storage().nbytes() // b.element_size() - b.storage_offset() >= k * width
    return b.as_strided((k, width), (1, k)) if width != n and holds else None


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    *,
    alpha: float,
    beta: float,
    transA: int,  # noqa: N803 - names of attributes
    transB: int,  # noqa: N803
) -> Tensor:
    """Return alpha * a b + beta * c."""
    a, b = a.T if transA else a, b.T if transB else b
    if not a.is_floating_point():
        y = _scaled(_integer_matmul(a, b), alpha)
        return y if c is None or not beta else y + _scaled(c, beta)
    if c is None or not beta:
        return scaled_matmul(a, b, alpha)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Return integers times a float, truncated."""
    return x if factor == 1 else (x.double() * factor).to(x.dtype)


def einsum(*xs: Tensor, equation: bytes) -> Tensor:
    """Return the Einstein summation."""
    equation_ = _explicit_equation(equation, tuple(x.dim() for x in xs))
    # Intermediate results of three or more operands are not rounded to 16 bits.
    if len(xs) < 3:
        return torch.einsum(equation_, *xs)
    return torch.einsum(equation_, *(wide(x) for x in xs)).to(xs[0].dtype)


@functools.lru_cache(maxsize=1024)
def _explicit_equation(equation: bytes, ranks: tuple[int, ...]) -> str:
    """Return the equation with a letter for every axis, those of an ellipsis included."""
    parsed = Equation(equation, ranks)
    labels = dict.fromkeys(label for term in parsed.terms for label in term)
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    letters = dict(zip(labels, alphabet, strict=False))
    terms = ("".join(letters[c] for c in term) for term in (*parsed.terms, parsed.output))
    *left, right = terms
    return f"{','.join(left)}->{right}"


def _too_many_labels(node: Node) -> str:
    ranks = tuple(v.tensor.rank for v in node.inputs if v is not None)
    used = {c for term in Equation(node.attrs["equation"], ranks).terms for c in term}
    return f"the equation has {len(used)} labels, and torch supports 52" if len(used) > 52 else ""


def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float,
    transA: int,  # noqa: N803
    transB: int,  # noqa: N803
    transBatchA: int,  # noqa: N803
    transBatchB: int,  # noqa: N803
) -> Tensor:
    """Return alpha * a b, with either operand transposed."""
    left, right = _transposed(a, transA, transBatchA), _transposed(b, transB, transBatchB)
    return scaled_matmul(left, right, alpha)


def _transposed(x: Tensor, is_swapped: int, is_batched: int) -> Tensor:
    if is_batched:
        x = x.movedim(0, -2)
    return x.transpose(-1, -2) if is_swapped and x.dim() > 1 else x


def matmul_epilogue(
    a: Tensor,
    b: Tensor,
    *operands: Tensor,
    trans_a: int,
    trans_b: int,
    alpha: float,
    code: Code | None,
    **_: int,  # attributes for the CPU provider
) -> Tensor:
    """Return alpha * a b with either operand transposed, followed by the fused epilogue."""
    left, right = _transposed(a, trans_a, 0), _transposed(b, trans_b, 0)
    if not a.is_floating_point():
        return apply_epilogue(_scaled(_integer_matmul(left, right), alpha), operands, code)
    if code and alpha == 1 and _is_bias(right, operands, code):
        return F.linear(left, right.T, operands[0])
    return apply_epilogue(scaled_matmul(left, right, alpha), operands, code)


def _is_bias(right: Tensor, operands: Sequence[Tensor], code: Code) -> bool:
    """Return whether the epilogue is the addition of one value per column."""
    is_sum = len(code) == 1 and code[0].op == (ONNX, "Add")
    return is_sum and right.dim() == 2 and operands[0].dim() == 1


KERNELS: Final[TorchKernels] = {
    (ONNX, "MatMul"): TorchKernel(matmul, REALS | {I32, I64}, columns=(1,)),
    (ONNX, "Gemm"): TorchKernel(gemm, REALS | {I32, I64}, columns=(1,)),
    (ONNX, "Einsum"): TorchKernel(einsum, REALS, refuses=_too_many_labels),
    (INTERNAL, "MatMul"): TorchKernel(
        matmul_epilogue, PLAIN, columns=(1,), refuses=why_no_epilogue
    ),
    (MICROSOFT, "FusedMatMul"): TorchKernel(fused_matmul, REALS),
}
