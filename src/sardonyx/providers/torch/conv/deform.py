"""Deformable convolution: every tap reads at a position of its own, between the elements."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F32
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.sliding_window import WindowGeometry
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.sample.grid import linear_taps, weigh
from sardonyx.providers.torch.sliding_window import torch_window


def deform_columns(x: Tensor, offset: Tensor, mask: Tensor | None = None, **attrs: Any) -> Tensor:
    """What every tap reads for all outputs: [batch, channels * taps, *outputs]."""
    path = torch_window(tuple(attrs["kernel_shape"]), x.shape[2:], attrs).path
    return _columns(x, offset, mask, path, attrs["offset_group"])


def _columns(
    x: Tensor, offset: Tensor, mask: Tensor | None, path: WindowGeometry, groups: int
) -> Tensor:
    n, channels = x.shape[:2]
    taps, rank, outs = path.n_taps, len(path.outs), path.outs
    if not offset.numel() or not x.numel():
        return x.new_zeros((n, channels * taps, *outs))
    shifts = offset.reshape(n * groups, taps, rank, *outs)
    axes = []
    for i in range(rank):
        place = _starts(path, i, x).reshape(taps, *(1,) * i, -1, *(1,) * (rank - 1 - i))
        axes.append(linear_taps((shifts[:, :, i] + place).flatten(1), path.ins[i]))
    image = x.reshape(n * groups, channels // groups, *x.shape[2:])
    read = weigh(image, axes)
    if mask is not None:
        read = read * mask.reshape(n * groups, 1, -1)
    return read.reshape(n, channels * taps, *outs)


def _starts(path: WindowGeometry, i: int, x: Tensor) -> Tensor:
    """Where taps read along one axis before they are shifted: [taps, outputs]."""
    out = torch.arange(path.outs[i], device=x.device) * path.strides[i] - path.front[i]
    inner = 1
    for k in path.kernel[i + 1 :]:
        inner *= k
    tap = torch.arange(path.n_taps, device=x.device) // inner % path.kernel[i]
    return (tap[:, None] * path.dilations[i] + out).to(x.dtype)


KERNELS: Final[TorchKernels] = {
    (INTERNAL, "DeformColumns"): TorchKernel(deform_columns, frozenset((F32,))),
}
