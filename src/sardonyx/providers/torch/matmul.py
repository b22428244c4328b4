"""Matrix products and Einsum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from sardonyx.graph.dtype import I32, I64
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.elementwise.chain import Code
from sardonyx.ops.matmul.standard import Equation
from sardonyx.providers.torch.constant_layouts import padded
from sardonyx.providers.torch.epilogue import apply_epilogue, why_no_epilogue
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import FLOAT16_TYPES, wide

_LIMB: Final = 16  # bits of the parts that integers are multiplied in


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of stacks of matrices; vectors are rows on the left, columns on the right."""
    return scaled_matmul(a, b, 1.0) if a.is_floating_point() else _whole_matmul(a, b)


def _whole_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of integers, which wraps around: GPUs multiply no matrices of them.

    Parts of 16 bits have products that float64 sums exactly for up to 2^21 terms.
    """
    parts = a.element_size() * 8 // _LIMB
    left, right = (
        [(x.long() >> i * _LIMB & (1 << _LIMB) - 1).double() for i in range(parts)] for x in (a, b)
    )
    total = torch.zeros((), dtype=torch.int64, device=a.device)
    for i in range(parts):
        for j in range(parts - i):
            total = total + (torch.matmul(left[i], right[j]).long() << (i + j) * _LIMB)
    return total.to(a.dtype)


def scaled_matmul(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """alpha * a b, rounded once: halves may hold the result, and not the product before it."""
    is_half = a.dtype in FLOAT16_TYPES
    if alpha == 1 and not (is_half and a.device.type == "cpu"):  # where sums would be halves, too
        whole = _whole_columns(b) if a.dim() > 1 else None
        return torch.matmul(a, b) if whole is None else torch.matmul(a, whole)[..., : b.shape[1]]
    if not is_half or min(a.dim(), b.dim()) < 2 or a.device.type == "cpu":
        return (torch.matmul(wide(a), wide(b)) * alpha).to(a.dtype)
    nothing = a.new_empty(1)
    if b.dim() == 2:
        y = torch.addmm(nothing, a.reshape(-1, a.shape[-1]), b, beta=0, alpha=alpha)
        return y.view(*a.shape[:-1], b.shape[-1])
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (
        x.expand(*lead, *x.shape[-2:]).reshape(math.prod(lead), *x.shape[-2:]) for x in (a, b)
    )
    y = torch.baddbmm(nothing, left, right, beta=0, alpha=alpha)
    return y.view(*lead, *y.shape[1:])


def _whole_columns(b: Tensor) -> Tensor | None:
    """A constant matrix with the few columns behind it that make its rows end well, if it has any.

    Products that write rows of odd lengths are slow.
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
    """alpha * a b + beta * c."""
    a, b = a.T if transA else a, b.T if transB else b
    if not a.is_floating_point():
        y = _scaled(_whole_matmul(a, b), alpha)
        return y if c is None or not beta else y + _scaled(c, beta)
    if c is None or not beta:
        return scaled_matmul(a, b, alpha)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Integers times a float, rounded towards zero."""
    return x if factor == 1 else (x.double() * factor).to(x.dtype)


def einsum(*xs: Tensor, equation: bytes) -> Tensor:
    """Sums of products by index."""
    spelt = _spelt(equation, tuple(x.dim() for x in xs))
    if len(xs) < 3:
        return torch.einsum(spelt, *xs)
    return torch.einsum(spelt, *(wide(x) for x in xs)).to(xs[0].dtype)


@functools.lru_cache(maxsize=1024)
def _spelt(equation: bytes, ranks: tuple[int, ...]) -> str:
    """The equation with a letter for every dim, those of an ellipsis too."""
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
    return (
        f"its equation names {len(used)} dims, and torch has 52 letters" if len(used) > 52 else ""
    )


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
    """alpha * a b, with axes of either moved before."""
    return scaled_matmul(_turned(a, transA, transBatchA), _turned(b, transB, transBatchB), alpha)


def _turned(x: Tensor, is_swapped: int, is_batched: int) -> Tensor:
    if is_batched:
        x = x.movedim(0, -2)
    return x.transpose(-1, -2) if is_swapped and x.dim() > 1 else x


def product(
    a: Tensor,
    b: Tensor,
    *operands: Tensor,
    trans_a: int,
    trans_b: int,
    alpha: float,
    code: Code | None,
    **_: int,  # for the CPU: tensors are multiplied as torch's settings say
) -> Tensor:
    """alpha * a b with either turned, and what follows."""
    left, right = _turned(a, trans_a, 0), _turned(b, trans_b, 0)
    if not a.is_floating_point():
        return apply_epilogue(_scaled(_whole_matmul(left, right), alpha), operands, code)
    if code and alpha == 1 and _is_bias(right, operands, code):
        return F.linear(left, right.T, operands[0])
    return apply_epilogue(scaled_matmul(left, right, alpha), operands, code)


def _is_bias(right: Tensor, operands: Sequence[Tensor], code: Code) -> bool:
    """Whether all that follows a product is the sum with one number for each column."""
    is_sum = len(code) == 1 and code[0].op == (ONNX, "Add")
    return is_sum and right.dim() == 2 and operands[0].dim() == 1


Settings = dict[str, Any]


_ACTIVATIONS: Final[dict[bytes, Callable[[Tensor, Settings], Tensor]]] = {
    b"Relu": lambda x, s: torch.relu(x),
    b"Tanh": lambda x, s: torch.tanh(x),
    b"Sigmoid": lambda x, s: torch.sigmoid(x),
    b"Softplus": lambda x, s: F.softplus(x),
    b"Softsign": lambda x, s: F.softsign(x),
    b"HardSwish": lambda x, s: F.hardswish(x),
    b"LeakyRelu": lambda x, s: F.leaky_relu(x, s["alpha"]),
    b"Elu": lambda x, s: F.elu(x, s["alpha"]),
    b"Celu": lambda x, s: F.celu(x, s["alpha"]),
    b"ThresholdedRelu": lambda x, s: torch.where(x > s["alpha"], x, 0),
    b"HardSigmoid": lambda x, s: (x * s["alpha"] + s["beta"]).clamp(0, 1),
    b"ScaledTanh": lambda x, s: torch.tanh(x * s["beta"]) * s["alpha"],
    b"ParametricSoftplus": lambda x, s: F.softplus(x * s["beta"]) * s["alpha"],
    b"Selu": lambda x, s: s["gamma"] * torch.where(x > 0, x, s["alpha"] * torch.expm1(x)),
}


def activated(y: Tensor, name: bytes | None, attrs: Settings) -> Tensor:
    """What a fused activation makes of a product."""
    if not name:
        return y
    given = {key: attrs[f"activation_{key}"] for key in ("alpha", "beta", "gamma")}
    return _ACTIVATIONS[name](y, given)


def _unknown_activation(node: Node) -> str:
    name = node.attrs["activation"]
    if not name or name in _ACTIVATIONS:
        return ""
    return f"its activation {name.decode(errors='replace')} has no function in torch"


def _apart(attrs: Settings) -> Settings:
    """The attributes that are not those of the activation."""
    return {k: v for k, v in attrs.items() if not k.startswith("activation")}


def fused_gemm(a: Tensor, b: Tensor, c: Tensor | None = None, **attrs: Any) -> Tensor:
    """An activation of `gemm`."""
    y = gemm(wide(a), wide(b), None if c is None else wide(c), **_apart(attrs))
    return activated(y, attrs["activation"], attrs).to(a.dtype)


def fused_matmul_activation(a: Tensor, b: Tensor, **attrs: Any) -> Tensor:
    """An activation of `fused_matmul`."""
    y = fused_matmul(wide(a), wide(b), **_apart(attrs))
    return activated(y, attrs["activation"], attrs).to(a.dtype)


KERNELS: Final[TorchKernels] = {
    (ONNX, "MatMul"): TorchKernel(matmul, REALS | {I32, I64}, columns=(1,)),
    (ONNX, "Gemm"): TorchKernel(gemm, REALS | {I32, I64}, columns=(1,)),
    (ONNX, "Einsum"): TorchKernel(einsum, REALS, refuses=_too_many_labels),
    (INTERNAL, "MatMul"): TorchKernel(product, PLAIN, columns=(1,), refuses=why_no_epilogue),
    (MICROSOFT, "FusedMatMul"): TorchKernel(fused_matmul, REALS),
    (MICROSOFT, "FusedMatMulActivation"): TorchKernel(
        fused_matmul_activation, REALS, refuses=_unknown_activation
    ),
    (MICROSOFT, "FusedGemm"): TorchKernel(fused_gemm, REALS, refuses=_unknown_activation),
}
