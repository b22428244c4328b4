"""Determinants, inverses, and distances between the rows of two matrices."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F16, F32, F64
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.providers.torch.dtypes import in_wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels

_FLOATS: Final = frozenset((F16, F32, F64))


def _inverse(x: Tensor) -> Tensor:
    # NaN for singular matrices: an error would require waiting for the device.
    inverse, info = torch.linalg.inv_ex(x)
    singular: Tensor = (info != 0)[..., None, None]
    return torch.masked_fill(inverse, singular, torch.nan)


def _distances(a: Tensor, b: Tensor, *, metric: bytes) -> Tensor:
    # Not |a|^2 - 2 a b + |b|^2 by a matmul, which cancels for close points.
    distances = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return distances if metric == b"euclidean" else distances.square()


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "Inverse"): TorchKernel(in_wide(_inverse), _FLOATS),
    (MICROSOFT, "CDist"): TorchKernel(_distances, _FLOATS),
    (ONNX, "Det"): TorchKernel(
        lambda x: torch.linalg.det(x.double()).to(x.dtype), REALS, syncs=True
    ),
}
