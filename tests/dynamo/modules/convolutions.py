"""Convolutions, upsampling, shuffles and folds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.dynamo.modules.case import case, f32, function

IMAGE, LINE, VOLUME = f32(2, 4, 7, 9), f32(2, 4, 11), f32(1, 4, 5, 6, 4)
resize = nn.functional.interpolate

CASES = {
    "conv1d": case(lambda: nn.Conv1d(4, 6, 3), LINE),
    "conv1d stride": case(lambda: nn.Conv1d(4, 6, 4, stride=3, padding=2), LINE),
    "conv1d causal": case(lambda: nn.Conv1d(4, 4, 3, padding=4, dilation=2, groups=4), LINE),
    "conv1d without batch": case(lambda: nn.Conv1d(4, 6, 3), f32(4, 11)),
    "conv2d": case(lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGE),
    "conv2d 1x1": case(lambda: nn.Conv2d(4, 6, 1, bias=False), IMAGE),
    "conv2d uneven": case(lambda: nn.Conv2d(4, 5, (3, 2), (2, 1), (0, 1), (1, 2)), IMAGE),
    "conv2d grouped": case(lambda: nn.Conv2d(4, 6, 3, groups=2), IMAGE),
    "conv2d depthwise": case(lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1, stride=2), IMAGE),
    "conv2d dilated": case(lambda: nn.Conv2d(4, 3, 3, dilation=2, padding=2), IMAGE),
    "conv2d same": case(lambda: nn.Conv2d(4, 3, (4, 3), padding="same"), IMAGE),
    "conv2d valid": case(lambda: nn.Conv2d(4, 3, 3, padding="valid"), IMAGE),
    "conv2d reflect": case(lambda: nn.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), IMAGE),
    "conv2d replicate": case(
        lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate"), IMAGE
    ),
    "conv2d circular": case(lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), IMAGE),
    "conv2d channels last": case(
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 4, 7, 9).to(memory_format=torch.channels_last).requires_grad_(),
    ),
    "conv2d weight norm": case(lambda: parametrizations.weight_norm(nn.Conv2d(4, 3, 3)), IMAGE),
    "conv3d": case(lambda: nn.Conv3d(4, 3, 3, padding=1), VOLUME),
    "conv3d grouped": case(lambda: nn.Conv3d(4, 4, 2, stride=2, groups=2, bias=False), VOLUME),
    "transposed 1d": case(lambda: nn.ConvTranspose1d(4, 3, 4, 2, 1), LINE),
    "transposed 2d": case(lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), IMAGE),
    "transposed 2d grouped": case(lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), IMAGE),
    "transposed 2d dilated": case(lambda: nn.ConvTranspose2d(4, 3, 2, dilation=2), IMAGE),
    "transposed 3d": case(lambda: nn.ConvTranspose3d(4, 2, 3, 2, 1), VOLUME),
    "two convolutions": case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Conv2d(6, 2, 1)
        ),
        IMAGE,
    ),
    "nearest": case(lambda: nn.Upsample(scale_factor=2), IMAGE),
    "nearest 1d": case(lambda: nn.Upsample(size=17), LINE),
    "nearest 3d": case(lambda: nn.Upsample(scale_factor=2), VOLUME),
    "nearest exact": case(lambda: nn.Upsample((5, 13), mode="nearest-exact"), IMAGE),
    "linear": case(lambda: nn.Upsample(scale_factor=2, mode="linear"), LINE),
    "bilinear": case(lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), IMAGE),
    "bilinear corners": case(lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGE),
    "bicubic": case(lambda: nn.Upsample((9, 5), mode="bicubic"), IMAGE),
    "trilinear": case(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), VOLUME),
    "area": function(lambda x: resize(x, size=(3, 4), mode="area"), IMAGE),
    "pixel shuffle": case(lambda: nn.PixelShuffle(2), IMAGE),
    "pixel unshuffle": case(lambda: nn.PixelUnshuffle(3), f32(2, 2, 6, 9)),
    "channel shuffle": case(lambda: nn.ChannelShuffle(2), IMAGE),
    "unfold": case(lambda: nn.Unfold(3, padding=1, stride=2), IMAGE),
    "fold": case(lambda: nn.Fold((6, 7), (2, 3), padding=1, stride=2), f32(2, 12, 16)),
    "flatten, unflatten": case(
        lambda: nn.Sequential(nn.Flatten(1, 2), nn.Unflatten(1, (2, 14))), IMAGE
    ),
    "affine grid": function(
        lambda t, x: nn.functional.grid_sample(
            x, nn.functional.affine_grid(t, [2, 4, 5, 6], align_corners=False), align_corners=False
        ),
        f32(2, 2, 3),
        IMAGE,
    ),
}
