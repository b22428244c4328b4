"""Ops that PyTorch does not have, written in it: its autograd differentiates them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
Pair = tuple[int, int]


def roi_align(
    x: Tensor, rois: Tensor, numbers: Any, mode: str, sizes: tuple[int, int], ratio: int
) -> Tensor:
    """RoiAlign (half_pixel), sample by sample."""
    y = []
    for roi, number in zip(rois, numbers, strict=True):
        start, extent = roi[:2] - 0.5, roi[2:] - roi[:2]
        steps = [extent[1] / sizes[0], extent[0] / sizes[1]]
        counts = [ratio or math.ceil(float(step.detach())) for step in steps]
        for cell in itertools.product(range(sizes[0]), range(sizes[1])):
            samples = []
            for place in itertools.product(*map(range, counts)):
                at = [
                    start[1 - i] + steps[i] * (cell[i] + (place[i] + 0.5) / counts[i])
                    for i in (0, 1)
                ]
                samples.append(_neighbours(x[number], at))
            terms = torch.stack(samples)  # [samples, neighbours, channels]
            y.append(terms.amax((0, 1)) if mode == "max" else terms.sum(1).mean(0))
    return torch.stack(y).reshape(len(rois), *sizes, -1).permute(0, 3, 1, 2)


def _neighbours(image: Tensor, at: list[Tensor]) -> Tensor:
    """The four weighted neighbours of a position, clamped up to 1 outside the image."""
    sizes = image.shape[1:]
    if any(not -1 <= float(p.detach()) <= size for p, size in zip(at, sizes, strict=True)):
        return image.new_zeros(4, len(image))
    axes = []
    for position, size in zip(at, sizes, strict=True):
        inside = position.clamp(0, size - 1)
        low = min(int(inside.detach()), size - 2)
        axes.append(((low, 1 - (inside - low)), (low + 1, inside - low)))
    return torch.stack([image[:, i, j] * (v * w) for (i, v), (j, w) in itertools.product(*axes)])


def deform_conv(
    inputs: tuple[Tensor, ...], groups: tuple[int, int], stride: Pair, pad: Pair
) -> Tensor:
    """DeformConv of images, tap by tap, without dilations; groups of weights and of offsets."""
    x, w, offset, bias, mask = inputs
    group, offset_group = groups
    n, channels, height, width = x.shape
    kernel, outs = w.shape[2:], offset.shape[2:]
    taps = kernel[0] * kernel[1]
    offset = offset.reshape(n, offset_group, taps, 2, *outs)
    mask = mask.reshape(n, offset_group, taps, *outs)
    rows, columns = torch.meshgrid(*map(torch.arange, outs), indexing="ij")
    sampled = []
    for tap, (i, j) in enumerate(itertools.product(*map(range, kernel))):
        down = rows * stride[0] - pad[0] + i + offset[:, :, tap, 0]
        across = columns * stride[1] - pad[1] + j + offset[:, :, tap, 1]
        # In pixels, as grid_sample counts them with aligned corners.
        points = torch.stack((2 * across / (width - 1) - 1, 2 * down / (height - 1) - 1), -1)
        images = x.reshape(n * offset_group, -1, height, width)
        values = torch.nn.functional.grid_sample(
            images, points.reshape(n * offset_group, *outs, 2), align_corners=True
        )
        weighted = values.reshape(n, offset_group, -1, *outs) * mask[:, :, None, tap]
        sampled.append(weighted.reshape(n, channels, *outs))
    patches = torch.stack(sampled, 2).reshape(n, group, -1, *outs)
    weights = w.reshape(group, w.shape[0] // group, -1)
    y = torch.einsum("gmk,ngkhw->ngmhw", weights, patches).reshape(n, -1, *outs)
    return y + bias[:, None, None]


def rotary(x: Tensor, cos: Tensor, sin: Tensor, ids: Tensor, interleaved: bool) -> Tensor:
    """RotaryEmbedding of [batch, heads, rows, features]."""
    half = cos.shape[1]
    cos, sin = cos[ids][:, None], sin[ids][:, None]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = rotated[..., ::2], rotated[..., 1::2]
        pairs = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = rotated[..., :half], rotated[..., half:]
        pairs = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((pairs, rest), -1)


def linear_attention(
    inputs: tuple[Tensor, ...], decay: Tensor | None, beta: Tensor | None, heads: tuple[int, int]
) -> Tensor:
    """LinearAttention, token by token."""
    q, k, v, state = inputs
    q, k, v = (
        x.reshape(*x.shape[:2], n, -1)
        for x, n in zip((q, k, v), (heads[0], heads[1], heads[1]), strict=True)
    )
    outs = []
    for t in range(q.shape[1]):
        if decay is not None:
            gate = decay[:, t].reshape(len(q), heads[1], -1).exp()
            state = state * gate[..., None]
        write = v[:, t]
        if beta is not None:
            write = beta[:, t, :, None] * (write - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t, :, :, None] * write[:, :, None]
        shared = state.repeat_interleave(heads[0] // heads[1], 1)
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], shared) / np.sqrt(k.shape[-1]))
    return torch.stack(outs, 1).flatten(2)


def product(factors: Sequence[Tensor]) -> Tensor:
    """The product by multiplications alone, whose gradients of any order exist at zeros."""
    return functools.reduce(torch.mul, factors)


def determinant(x: Tensor) -> Tensor:
    """The determinant of a matrix of three rows by Sarrus's rule."""
    rows = torch.arange(3)
    forward = sum(product(x[rows, (rows + k) % 3].unbind()) for k in range(3))
    backward = sum(product(x[rows, (k - rows) % 3].unbind()) for k in range(3))
    return torch.as_tensor(forward - backward)
