"""Rows for the ops of com.microsoft on whole matrices, windows and pieces of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Row, case, f16, f32, f64, fails, i64, ints, of

DOMAIN = "com.microsoft"


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


SQUARE = np.eye(4, dtype=np.float32) * 2 + f32(3, 4, 4) * np.float32(0.3)
MATRIX = [
    ms("Inverse", SQUARE, ulps=16),
    ms("Inverse", SQUARE[0].astype(np.float64), ulps=16),
    ms("Inverse", SQUARE.astype(np.float16), ulps=8),
    ms("Inverse", f32(2, 0, 0)),
    ms("Inverse", f32(1, 1)),
    no("Inverse", f32(2, 3), match="square"),
    no("Inverse", f32(3), match="square"),
    no("Inverse", np.zeros((2, 2), np.float32), match="singular"),
    ms("CDist", f32(5, 3), f32(4, 3), ulps=64, why="a difference of squares and products"),
    ms("CDist", f32(5, 3), f32(4, 3), metric="euclidean", ulps=64),
    ms("CDist", f64(5, 17), f64(7, 17), metric="euclidean", ulps=64),
    ms("CDist", f32(0, 3), f32(4, 3)),
    no("CDist", f32(5, 3), f32(4, 2), match="different lengths"),
    no("CDist", f32(5, 3), f32(4, 3), metric="cosine", match="none of sqeuclidean"),
    ms("DynamicTimeWarping", f32(5, 7)),
    ms("DynamicTimeWarping", f32(1, 7, 4)),
    ms("DynamicTimeWarping", ints(np.float32, 6, 6, low=0, high=3)),
    ms("DynamicTimeWarping", f32(1, 1)),
    no("DynamicTimeWarping", f32(3), match="matrix"),
    no("DynamicTimeWarping", f32(0, 3), match="empty"),
]

IMAGE = f32(2, 3, 5, 6)
BOXES = of([[0, 0, 1, 1], [0.2, 0.1, 0.9, 1.2], [0.9, 0.8, 0.1, 0.3], [-0.5, 0.5, 0.4, 0.5]])
WHICH = of([0, 1, 1, 0], np.int32)
CROP = [
    ms("CropAndResize", IMAGE, BOXES, WHICH, of([4, 3], np.int32), ulps=32),
    ms("CropAndResize", IMAGE, BOXES, WHICH, of([1, 5], np.int32), ulps=32, mode="nearest"),
    ms(
        "CropAndResize",
        *(IMAGE, BOXES, WHICH, of([3, 1], np.int32)),
        extrapolation_value=-2.5,
        ulps=32,
    ),
    ms("CropAndResize", IMAGE, f32(0, 4), ints(np.int32, 0), of([2, 2], np.int32)),
    no("CropAndResize", IMAGE, BOXES, WHICH + 1, of([2, 2], np.int32), match="batch index 2"),
    no("CropAndResize", IMAGE, BOXES, WHICH, of([0, 2], np.int32), match="1 or more"),
    no("CropAndResize", IMAGE, BOXES, WHICH, of([2, 2], np.int32), mode="cubic", match="cubic"),
    ms("UnfoldTensor", f32(2, 7), size=3, step=2),
    ms("UnfoldTensor", i64(7, 2, 3), size=4, dim=0),
    ms("UnfoldTensor", f32(2, 5, 3), size=5, dim=-2),
    ms("UnfoldTensor", f16(6), size=1, step=4, oracle="none", why="onnxruntime lacks the type"),
    no("UnfoldTensor", f32(2, 3), size=4, match="longer than the dim"),
    no("UnfoldTensor", f32(2, 3), size=0, match="1 or more"),
    no("UnfoldTensor", f32(2, 3), size=1, dim=2, match="dim 2"),
]

WINDOWS = [
    ms(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3), of([1, 1, 0, 0], np.int64), f32(3)),
        strides=[2, 2],
        ulps=16,
    ),
    ms(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3)),
        oracle="none",
        why="onnxruntime wants pads, which the schema lets be left out",
    ),
    no(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3), of([1, 1], np.int64)),
        match="ads",
    ),
]

CASES = [*MATRIX, *CROP, *WINDOWS]
