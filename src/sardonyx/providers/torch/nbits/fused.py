"""Products with weights of few bits, between the norm before them and what decoders do next."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.nbits.internal import STEPS, Form, form_of
from sardonyx.providers.torch.kernel import Packing, TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable
from sardonyx.providers.torch.nbits.blockwise import dequantized
from sardonyx.providers.torch.precision import wide


@frozen(eq=False)
class Plain:
    """Weights as the model has them, one number to a byte or in whole blocks."""

    q: Tensor
    scale: Tensor
    zero: Tensor | float
    form: Form

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The weights [N, K]."""
        return dequantized(self.q, self.scale, self.zero, self.form, dtype).T


def pack(q: Tensor, scale: Tensor, zero: Tensor | None, **attrs: Any) -> Any:
    """Weights as kernels of ours read them, where there are any; else as they are."""
    form = form_of(tuple(q.shape), attrs)
    default = attrs["zero_default"]
    if usable(q.device):
        from sardonyx.providers.torch.kernels import nbits_matmul

        if nbits_matmul.fits(form, tuple(scale.shape)):
            return nbits_matmul.pack(q, scale, zero, form, default)
    return Plain(q, scale, default if zero is None else zero, form)


def _matrix(weights: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(weights, Plain):
        return weights.matrix(dtype)
    from sardonyx.providers.torch.kernels.nbits_unpack import matrix

    return matrix(weights, dtype)


def _floats(x: Any) -> Any:
    """A tensor, or the one that digits are of."""
    return x if x is None or isinstance(x, Tensor) else x.value


def few_bits(
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
    leads: bool = False,
    **attrs: Any,
) -> Any:
    """One launch for few rows; else a product with the weights as a matrix, and the rest by torch.

    Weights that are no constants come with their scale and zero points. Between such products few
    rows go as digits, of which `x` and `residual` may then be some.
    """
    if isinstance(weights, Tensor):
        assert scale is not None
        default = attrs["zero_default"] if zero is None else zero
        weights = Plain(weights, scale, default, form_of(tuple(weights.shape), attrs))
    residual = _floats(residual)
    if isinstance(weights, Plain):
        x = _floats(x)
    else:
        from sardonyx.providers.torch.kernels import nbits_matmul

        if (
            isinstance(x, nbits_matmul.Digits)
            or 0 < x.numel() <= nbits_matmul.MOST_ROWS * x.shape[-1]
        ):
            is_normal = gain is None or isinstance(x, nbits_matmul.Digits)
            fused = {
                "norm": None if is_normal else (gain, epsilon),
                "residual": residual,
                "gated": bool(gated),
                "leads": leads,
            }
            if not attrs["makes_digits"]:
                return nbits_matmul.rows_product(x, weights, **fused)
            then = None if next_gain is None else (next_gain, attrs["next_epsilon"])
            return nbits_matmul.rows_digits(x, weights, then=then, **fused)
    rows = x
    if gain is not None:
        rows = torch.rms_norm(wide(x), (x.shape[-1],), wide(gain), epsilon).to(x.dtype)
    y = F.linear(rows, _matrix(weights, x.dtype))
    if gated:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual


_TYPES: Final = frozenset((F32, F16, BF16)) | STEPS | FLOATS
KERNELS: Final[TorchKernels] = {
    (INTERNAL, "FewBits"): TorchKernel(
        few_bits, _TYPES, packing=Packing((1, 2, 3), pack), leads=True
    ),
}
