"""Matmul with n-bit weights, fused with the RMS norm before and the gate or residual after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.nbits.internal import QUANTIZED, WeightLayout, weight_layout
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import Packing, TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable
from sardonyx.providers.torch.nbits.blockwise import dequantized


@frozen(eq=False)
class BlockwiseWeights:
    """Weights in the model's layout: one code per byte, or packed bytes of whole blocks."""

    q: Tensor
    scale: Tensor
    zero: Tensor | float
    form: WeightLayout

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weights [N, K]."""
        return dequantized(self.q, self.scale, self.zero, self.form, dtype).T


def pack(q: Tensor, scale: Tensor, zero: Tensor | None, **attrs: Any) -> Any:
    """Return the weights packed for our kernels where these apply, else unchanged."""
    form = weight_layout(tuple(q.shape), attrs)
    default = attrs["zero_default"]
    if usable(q.device):
        from sardonyx.providers.torch.kernels import nbits_matmul

        if nbits_matmul.fits(form, tuple(scale.shape)):
            return nbits_matmul.pack(q, scale, zero, form, default)
    return BlockwiseWeights(q, scale, default if zero is None else zero, form)


def _matrix(weights: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(weights, BlockwiseWeights):
        return weights.matrix(dtype)
    from sardonyx.providers.torch.kernels.nbits_unpack import dequantize

    return dequantize(weights, dtype)


def _to_tensor(x: Any) -> Any:
    """Return a tensor; of rows in fixed point, their float values."""
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

    is_fixed = isinstance(x, nbits_matmul.FixedPointRows)
    if not is_fixed and not 0 < x.numel() <= nbits_matmul.MAX_ROWS * x.shape[-1]:
        return None
    # Rows in fixed point: the kernel that produced them has applied the norm already.
    norm = None if gain is None or is_fixed else (gain, epsilon)
    if not attrs["quantizes_output"]:
        return partial(nbits_matmul.nbits_gemv, x, weights, norm=norm)
    next_norm = None if next_gain is None else (next_gain, attrs["next_epsilon"])
    return partial(nbits_matmul.nbits_gemv_fixed_point, x, weights, norm=norm, next_norm=next_norm)


_TYPES: Final = frozenset((F32, F16, BF16)) | QUANTIZED | FLOATS
KERNELS: Final[TorchKernels] = {
    (INTERNAL, "FusedMatMulNBits"): TorchKernel(
        few_bits, _TYPES, packing=Packing((1, 2, 3), pack), dependent_launch=True
    ),
}
