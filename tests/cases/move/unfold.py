"""Rows for the ops of com.microsoft on whole matrices, windows and pieces of images."""

from __future__ import annotations

from typing import Any

from tests.rows import Row, case, f16, f32, fails, i64

DOMAIN = "com.microsoft"


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


CROP_MOVE = [
    ms("UnfoldTensor", f32(2, 7), size=3, step=2),
    ms("UnfoldTensor", i64(7, 2, 3), size=4, dim=0),
    ms("UnfoldTensor", f32(2, 5, 3), size=5, dim=-2),
    ms("UnfoldTensor", f16(6), size=1, step=4, oracle="none", why="onnxruntime lacks the type"),
    no("UnfoldTensor", f32(2, 3), size=4, match="longer than the dim"),
    no("UnfoldTensor", f32(2, 3), size=0, match="1 or more"),
    no("UnfoldTensor", f32(2, 3), size=1, dim=2, match="dim 2"),
]


CASES = [
    *CROP_MOVE,
]
