"""Determinants, inverses, and distances between the rows of two matrices."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F16, F32, F64
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import in_wide

_FLOATS: Final = frozenset((F16, F32, F64))


def _inverse(x: Tensor) -> Tensor:
    """NaN where a matrix has none: to say so in an error would take waiting for the device."""
    made: tuple[Tensor, Tensor] = torch.linalg.inv_ex(x)
    inverse, info = made
    return inverse.masked_fill((info != 0)[..., None, None], torch.nan)


def _distances(a: Tensor, b: Tensor, *, metric: bytes) -> Tensor:
    # Differences first: the sum of squares less twice the product loses what is close.
    apart = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return apart if metric == b"euclidean" else apart.square()


def det(x: Tensor) -> Tensor:
    """Determinants, by float64."""
    y: Tensor = torch.linalg.det(x.double())
    return y.to(x.dtype)


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "Inverse"): TorchKernel(in_wide(_inverse), _FLOATS),
    (MICROSOFT, "CDist"): TorchKernel(_distances, _FLOATS),
    (ONNX, "Det"): TorchKernel(det, REALS, syncs=True),
}
