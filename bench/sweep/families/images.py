"""Convolutions, pooling and sampling of feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bench.sweep.case import OPSET, WIDELY_RUN, Array, Case
from bench.sweep.draw import MICROSOFT, Draw, Family, fixed, rows

MOSTLY_FLOAT32: Final = ("float32", "float32", "float32", "float16")


def _image_op(d: Draw, op: str, types: Sequence[str] = MOSTLY_FLOAT32, **attrs: Any) -> Case:
    opset = WIDELY_RUN if op == "GlobalLpPool" else OPSET
    return Case(op, [d.array(d.image(), d.pick(types))], attrs, opset=opset)


def conv(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    dims = d.pick((2, 2, 2, 2, 1, 3))
    space = {1: (h * w,), 2: (h, w), 3: (4, h, max(w // 4, 1))}[dims]
    kernel = d.pick((1, 1, 3, 3, 3, 5, 7))
    groups = d.pick([g for g in (1, 1, 1, c, c, 2, 4, 8, 32) if c % g == 0])
    most = 1 << (31 if d.size == "large" else 29)  # multiplications
    out = min(
        d.pick((c, c, 2 * c, 64)),
        max(1, most // (n * int(np.prod(space)) * c // groups * kernel**dims)),
    )
    out = max(groups, out // groups * groups)
    stride, dilation = d.pick((1, 1, 1, 2)), d.pick((1, 1, 1, 1, 2))
    if min(space) < dilation * (kernel - 1) + 1 and min(space) < 4:
        kernel = 1
    pad = dilation * (kernel - 1) // 2
    attrs = {"group": groups, "strides": [stride] * dims, "dilations": [dilation] * dims,
             "pads": [pad] * 2 * dims, "kernel_shape": [kernel] * dims}  # fmt: skip
    dtype = d.pick(("float32", "float32", "float32", "float16"))
    weights = (c, out // groups) if op == "ConvTranspose" else (out, c // groups)
    operands = [d.array((n, c, *space), dtype), d.array((*weights, *[kernel] * dims), dtype)]
    if d.chance(0.7):
        operands.append(d.array((out,), dtype))
    return Case(op, operands, attrs, frozenset(range(1, len(operands))))


def _pool(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    space = d.pick([(h, w), (h, w), (h, w), (h * w,), (4, h, max(w // 4, 1))])
    shape, dims = (n, c, *space), len(space)
    kernel = d.pick((2, 3, 3, 5)) if min(space) >= 5 else min(2, *space)
    pad = d.pick((0, kernel // 2))
    attrs: dict[str, Any] = {"kernel_shape": [kernel] * dims, "strides": [d.pick((1, 2, 2))] * dims,
                             "pads": [pad] * 2 * dims, "ceil_mode": d.pick((0, 0, 1))}  # fmt: skip
    types = (
        ("float32", "float32", "float16", "uint8", "int8")
        if op == "MaxPool"
        else ("float32", "float16")
    )
    n_outputs = 2 if op == "MaxPool" and d.chance(0.2) else 1
    if op == "LpPool":
        attrs["p"] = d.pick((1, 2, 3))
    return Case(op, [d.array(shape, d.pick(types))], attrs, n_outputs=n_outputs)


def _resize(d: Draw, op: str) -> Case:
    shape = d.image()
    mode = d.pick(("nearest", "linear", "linear", "cubic"))
    scale = d.pick((2.0, 2.0, 0.5, 1.5))
    how = d.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attrs["nearest_mode"] = d.pick(("floor", "round_prefer_floor"))
    dtype = d.pick(("float32", "float32", "float32", "float16", "uint8"))
    return Case(
        op,
        [d.array(shape, dtype), None, np.array([1, 1, scale, scale], np.float32)],
        attrs,
        frozenset({2}),
    )


def _grid_sample(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    attrs = {"mode": d.pick(("linear", "nearest", "cubic")), "align_corners": d.pick((0, 1)),
             "padding_mode": d.pick(("zeros", "border"))}  # fmt: skip
    return Case(op, [d.array((n, c, h, w)), d.array((n, h, w, 2), "float32", -1, 1)], attrs)


def _roi_align(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    count = {"tiny": 2, "typical": 100, "large": 500}[d.size]
    corner = d.array((count, 2), "float32", 0, min(h, w) / 2)
    boxes = np.concatenate([corner, corner + min(h, w) / 3], -1)
    attrs = {
        "output_height": 7,
        "output_width": 7,
        "sampling_ratio": d.pick((0, 2)),
        "mode": d.pick(("avg", "max")),
    }
    operands = [d.array((n, c, h, w)), boxes, d.array((count,), "int64", 0, n)]
    return Case(op, operands, attrs, opset=WIDELY_RUN)


def _depth_space(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    shape = (n, c * 4, h, w) if op == "DepthToSpace" else (n, c, h * 2, w * 2)
    attrs: dict[str, Any] = {"blocksize": 2}
    if op == "DepthToSpace":
        attrs["mode"] = d.pick(("DCR", "CRD"))
    return Case(op, [d.array(shape)], attrs)


def _known_conv(d: Draw, op: str) -> Case:
    """An unusual layer of a known network: few channels, long rows, many groups."""
    x, w, stride, pad, group = d.pick([
        ((1, 1, 16000), (512, 1, 10), 5, 0, 1),  # wav2vec2
        ((1, 512, 3199), (512, 512, 3), 2, 0, 1),
        ((1, 80, 3000), (384, 80, 3), 1, 1, 1),  # whisper
        ((1, 768, 49), (768, 48, 128), 1, 64, 16),  # wav2vec2's positions
        ((1, 3, 224, 224), (768, 3, 16, 16), 16, 0, 1),  # vit
        ((1, 3, 224, 224), (96, 3, 4, 4), 4, 0, 1),  # convnext, swin
        ((1, 96, 56, 56), (96, 1, 7, 7), 1, 3, 96),
        ((1, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1),  # resnet
        ((1, 3, 224, 224), (32, 3, 3, 3), 2, 1, 1),  # mobilenet
        ((1, 128, 56, 56), (128, 4, 3, 3), 1, 1, 32),  # resnext
        ((1, 240, 28, 28), (60, 80, 1, 1), 1, 0, 3),  # shufflenet
        ((1, 128, 1, 400), (128, 1, 1, 3), 1, 0, 128),  # keyword spotting
        ((1, 1, 100, 40), (64, 1, 10, 4), 2, 0, 1),
        ((1, 128, 17, 17), (192, 128, 1, 7), 1, 0, 1),  # inception
        ((1, 128, 17, 17), (192, 128, 7, 1), 1, 0, 1),
        ((1, 64, 56, 56), (64, 64, 1, 3), 1, 0, 1),
        ((1, 16, 112, 112), (16, 1, 3, 3), 1, 1, 16),
    ])  # fmt: skip
    dims = len(x) - 2
    attrs = {"group": group, "strides": [stride] * dims, "pads": [pad] * 2 * dims}
    if dims == 2 and x[2] == 1:
        attrs["strides"] = [1, stride]
    scale = np.float32(0.1)
    return Case(op, [d.array(x), d.array(w) * scale, d.array(w[:1])], attrs, frozenset({1, 2}))


def _deform_conv(d: Draw, op: str) -> Case:
    n, c, h, w = d.pick([(1, 64, 28, 28), (1, 128, 14, 14), (1, 16, 56, 56)])
    offset = d.array((n, 18, h, w))
    return Case(op, [d.array((n, c, h, w)), d.array((c, c, 3, 3)), offset], {"pads": [1] * 4},
                frozenset({1}))  # fmt: skip


def _unpool(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    count = h * w * 4
    index = d.array((n, c, h, w), "int64", 0, count)
    return Case(op, [d.array((n, c, h, w)), index], {"kernel_shape": [2, 2], "strides": [2, 2]})


def _col2im(d: Draw, op: str) -> Case:
    n, c, h, w = d.pick([(1, 16, 28, 28), (4, 8, 14, 14), (1, 64, 56, 56)])
    x = d.array((n, c * 9, h * w))
    sizes = [np.array([h, w], np.int64), np.array([3, 3], np.int64)]
    return Case(op, [x, *sizes], {"pads": [1] * 4}, frozenset({1, 2}))


def _fused_conv(d: Draw, op: str) -> Case:
    made = conv(d, "Conv")
    operands = [None if x is None else x.astype(np.float32) for x in made.operands]
    attrs = {**made.attrs, "activation": d.pick(("Relu", "Sigmoid", "Tanh"))}
    return Case(op, operands, attrs, made.constants, MICROSOFT)


def _boxes(d: Draw, count: int, images: int, size: float) -> Array:
    """Rows of (image, x1, y1, x2, y2)."""
    corner = d.array((count, 2), "float32", 0, size / 2)
    which = d.array((count, 1), "int64", 0, images).astype(np.float32)
    return np.concatenate([which, corner, corner + np.float32(size / 3)], -1)


def _max_roi(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    count = {"tiny": 2, "typical": 50, "large": 200}[d.size]
    attrs = {"pooled_shape": [7, 7], "spatial_scale": 1.0}
    operands = [d.array((n, c, h, w)), _boxes(d, count, n, min(h, w))]
    return Case(op, operands, attrs, opset=WIDELY_RUN)


def _crop_and_resize(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    count = {"tiny": 2, "typical": 50, "large": 200}[d.size]
    boxes = _boxes(d, count, n, 1.0)
    operands = [d.array((n, c, h, w)), boxes[:, 1:].copy(), boxes[:, 0].astype(np.int32)]
    operands.append(np.array([14, 14], np.int32))
    attrs = {"mode": d.pick(("bilinear", "nearest"))}
    return Case(op, operands, attrs, frozenset({3}), MICROSOFT)


def _affine_grid(d: Draw, op: str) -> Case:
    n, c, h, w = d.image()
    size = np.array([n, c, h, w], np.int64)
    return Case(op, [d.array((n, 2, 3)), size], {"align_corners": d.pick((0, 1))}, frozenset({1}))


FAMILIES: Final[dict[str, Family]] = {
    **rows("GlobalAveragePool GlobalMaxPool GlobalLpPool", _image_op),
    "MeanVarianceNormalization": fixed(_image_op, types=("float32",), axes=[0, 2, 3]),
    "LRN": fixed(_image_op, size=5),
    "Conv": lambda d, op: _known_conv(d, op) if d.chance(0.3) else conv(d, op),
    "ConvTranspose": conv,
    **rows("MaxPool AveragePool LpPool", _pool),
    "Resize": _resize, "GridSample": _grid_sample, "RoiAlign": _roi_align,
    "FusedConv": _fused_conv, "MaxRoiPool": _max_roi, "CropAndResize": _crop_and_resize,
    "AffineGrid": _affine_grid,
    "DeformConv": _deform_conv, "MaxUnpool": _unpool, "Col2Im": _col2im,
    **rows("DepthToSpace SpaceToDepth", _depth_space),
}  # fmt: skip
