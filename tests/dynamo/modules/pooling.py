"""Pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.dynamo.modules.case import case, f32

IMAGE, LINE, VOLUME = f32(2, 3, 7, 8), f32(2, 3, 11), f32(2, 2, 5, 6, 4)


class Unpooled(nn.Module):
    """A pooling with indices, and its inverse."""

    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: torch.Tensor) -> Any:
        y, indices = self.pool(x)
        return self.unpool(y * 2, indices, output_size=x.shape), indices


_DRAWN = {"aten.fractional_max_pool*": "its windows are drawn numbers"}
CASES = {
    "max 1d": case(lambda: nn.MaxPool1d(3, 2), LINE),
    "max 2d": case(lambda: nn.MaxPool2d(2), IMAGE),
    "max 2d padded": case(lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "max 2d dilated": case(lambda: nn.MaxPool2d((2, 3), 1, dilation=2), IMAGE),
    "max 2d with indices": case(lambda: nn.MaxPool2d(3, 2, return_indices=True), IMAGE),
    "max 3d": case(lambda: nn.MaxPool3d(2, 2, 1), VOLUME),
    "unpooled 1d": case(
        lambda: Unpooled(nn.MaxPool1d(2, return_indices=True), nn.MaxUnpool1d(2)), LINE
    ),
    "unpooled 2d": case(
        lambda: Unpooled(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)), IMAGE
    ),
    "unpooled 3d": case(
        lambda: Unpooled(nn.MaxPool3d(2, return_indices=True), nn.MaxUnpool3d(2)), VOLUME
    ),
    "average 1d": case(lambda: nn.AvgPool1d(3, 2, 1), LINE),
    "average 2d": case(lambda: nn.AvgPool2d(3, 2, 1), IMAGE),
    "average 2d of what is there": case(
        lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE
    ),
    "average 2d by divisor": case(lambda: nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "average 3d": case(lambda: nn.AvgPool3d(2, 2, 1), VOLUME),
    "Lp 1d": case(lambda: nn.LPPool1d(2, 3, 2), LINE),
    "Lp 2d": case(lambda: nn.LPPool2d(2.0, 2), IMAGE),
    "Lp 3d": case(lambda: nn.LPPool3d(2, 2), VOLUME),
    "adaptive average 1d": case(lambda: nn.AdaptiveAvgPool1d(4), LINE),
    "adaptive average 2d": case(lambda: nn.AdaptiveAvgPool2d((3, None)), IMAGE),
    "global average": case(lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive average 3d": case(lambda: nn.AdaptiveAvgPool3d((2, 3, 2)), VOLUME),
    "adaptive max 1d": case(lambda: nn.AdaptiveMaxPool1d(4), LINE),
    "adaptive max 2d": case(lambda: nn.AdaptiveMaxPool2d((3, 5), return_indices=True), IMAGE),
    "adaptive max 3d": case(lambda: nn.AdaptiveMaxPool3d((2, 3, 2)), VOLUME),
    "fractional max 2d": case(
        lambda: nn.FractionalMaxPool2d(2, output_size=(3, 4)), IMAGE, in_torch=_DRAWN
    ),
    "fractional max 2d by ratio": case(
        lambda: nn.FractionalMaxPool2d(2, output_ratio=0.6, return_indices=True),
        IMAGE,
        in_torch=_DRAWN,
    ),
    "fractional max 3d": case(
        lambda: nn.FractionalMaxPool3d(2, output_size=(3, 3, 2)), VOLUME, in_torch=_DRAWN
    ),
}
