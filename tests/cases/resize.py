"""Cases of Resize and Upsample."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, bools, case, f16, f32, f64, fails, ints, of

X = f32(1, 2, 5, 6)


MODES = ("nearest", "linear", "cubic")


TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


LOOSE = {"ulps": 256, "why": "onnxruntime computes positions in float32"}


def scales(*numbers: float) -> np.ndarray:
    return of(numbers)


def sizes(*numbers: int) -> np.ndarray:
    return of(numbers, np.int64)


def to(*numbers: int, x: Any = X, **options: Any) -> Case:
    return case("Resize", x, None, None, sizes(*numbers), **options)


def by(*numbers: float, x: Any = X, **options: Any) -> Case:
    return case("Resize", x, None, scales(*numbers), **options)


def shift(transform: str) -> dict[str, str]:
    return {"coordinate_transformation_mode": transform}


RESIZE = [
    *(to(1, 2, 7, 3, mode=m, **shift(t), **LOOSE) for m in MODES for t in TRANSFORMS),
    *(to(1, 2, 1, 1, mode=m, **shift(t), **LOOSE, oracle="onnxruntime")
      for m in MODES for t in TRANSFORMS),
    *(by(1, 1, 2, 3, mode=m, **shift(t), **LOOSE) for m in MODES for t in TRANSFORMS),
    *(by(1, 1, 0.6, 1.7, mode=m, **shift(t), oracle="onnx", **LOOSE)
      for m in MODES for t in ("half_pixel", "half_pixel_symmetric", "align_corners")),
    *(to(1, 2, 8, 9, nearest_mode=r, **shift(t)) for r in ROUNDINGS for t in TRANSFORMS[::2]),
    *(by(1, 1, 0.5, 1.5, nearest_mode=r, **shift("asymmetric")) for r in ROUNDINGS),
    by(1, 1, 1.5, 0.7, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5, **LOOSE),
    *(by(1, 1, 0.6, 0.45, mode=m, antialias=1, exclude_outside=e, **LOOSE)
      for m in MODES[1:] for e in (0, 1)),
    to(1, 2, 3, 9, mode="linear", antialias=1, **LOOSE),
    by(1.5, 2, 1, 0.7, x=f32(2, 3, 4, 5), mode="linear", oracle="onnx", **LOOSE),
    by(1, 1, 1.5, 2, 0.7, x=f32(1, 2, 3, 4, 5), mode="linear", **LOOSE),
    by(1.5, x=f32(6), mode="cubic", oracle="onnx", **LOOSE),
    *(by(1, 2, s, 1, x=f32(1, 3, 5, 17), mode=m, **LOOSE, oracle="onnx")
      for m in MODES for s in (0.5, 3)),
    *(by(1, 2, s, 1, x=f32(1, 3, 5, c), mode=m, **LOOSE, oracle="onnx")
      for m in MODES for s, c in ((1, 7), (2, 1))),
    *(by(1, 1, 2, s, x=ints(d, 1, 2, 3, 37), **shift("asymmetric"), nearest_mode="floor",
         oracle="onnx")
      for d in (np.uint8, np.int16, np.int32, np.int64) for s in (2, 4, 3, 1)),
    by(1, 2, 3, 0.5, x=f64(1, 2, 3, 8), oracle="onnx"),
    by(1, 1, 1.5, 2, 0.7, x=f32(1, 2, 3, 4, 5), mode="cubic", oracle="onnx", **LOOSE),
    by(1, 1, 1, 1, mode="linear"),
    *(to(7, 9, axes=[2, 3], keep_aspect_ratio_policy=k, mode=m, **LOOSE)
      for k in ("not_larger", "not_smaller") for m in MODES[:2]),
    to(9, 7, axes=[-1, 2], **LOOSE),
    case("Resize", X, of([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3]), None, sizes(1, 2, 4, 5), mode="linear",
         extrapolation_value=7.0, **shift("tf_crop_and_resize"), **LOOSE),
    case("Resize", X, of([0.2, 0.1, 0.8, 1.3]), None, sizes(4, 1), axes=[2, 3],
         **shift("tf_crop_and_resize"), **LOOSE),
    case("Resize", X, of([]), scales(1, 1, 2, 2), of([], np.int64),
         expect=(X.repeat(2, axis=2).repeat(2, axis=3),)),
    to(1, 2, 3, 9, x=ints(np.uint8, 1, 2, 5, 6)),
    to(1, 2, 10, 6, x=bools(1, 2, 5, 6), expect=(bools(1, 2, 5, 6).repeat(2, axis=2),)),
    to(2, 4, x=of([["a", "b"]], object), expect=(of([list("aabb")] * 2, object),)),
    case("Resize", ints(np.uint8, 1, 1, 4, 4, high=200), None, scales(1, 1, 2, 2), mode="linear"),
    case("Resize", ints(np.int32, 1, 1, 4, 4), None, scales(1, 1, 2, 2), mode="cubic",
         oracle="none", why="onnxruntime resizes no integers so"),
    to(1, 2, 7, 3, x=f64(1, 2, 5, 6), mode="linear", oracle="onnx"),
    to(1, 2, 7, 3, x=f16(1, 2, 5, 6), mode="linear", oracle="onnx"),
    to(0, 2, 7, 3, x=f32(0, 2, 5, 6), mode="linear", oracle="none", why="nothing to compare"),
    *(by(1, 1, 2, 1.5, opset=v, mode=m, oracle="onnx", **LOOSE) for v in (13, 18) for m in MODES),
    case("Resize", X, of([]), scales(1, 1, 2, 1.5), opset=11, mode="linear", **LOOSE),
    case("Resize", X, of([]), scales(1, 1, 2, 1.5), opset=11, nearest_mode="floor",
         **shift("tf_half_pixel_for_nn")),
    *(case("Resize", X, scales(1, 1, 2, 1.5), opset=10, mode=m, **LOOSE) for m in MODES[:2]),
    *(case("Upsample", X, scales(1, 1, 2, 3), opset=9, mode=m, **LOOSE) for m in MODES[:2]),
    *(case("Upsample", X, opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode=m, **LOOSE)
      for m in MODES[:2]),
    case("Upsample", X, opset=1, height_scale=2.0, width_scale=3.0, mode="bilinear", oracle="none",
         why="no oracle is that old"),
    *(case("Resize", x, of([0.1, 0.6, 1.2, 0.1]), None, sizes(*to), axes=[1, 2], mode=m,
           extrapolation_value=-3.0, **shift("tf_crop_and_resize"), oracle="none",
           why="onnxruntime crops whole tensors only")
      for m in MODES for x in (f32(2, 6, 5), f32(2, 6, 5, 3)) for to in ((4, 7), (1, 20))),
    *(by(0.3, x=f32(37), mode=m, antialias=1, oracle="onnx", **LOOSE) for m in MODES[1:]),
    *(to(5, axes=[1], x=f32(2, 17, 9), mode=m, antialias=1, exclude_outside=e, oracle="onnx",
         **LOOSE) for m in MODES[1:] for e in (0, 1)),
    fails("Resize", X, None, scales(1, 1, 2, 2), sizes(1, 2, 3, 4), match="either scales or sizes"),
    fails("Resize", X, match="either scales or sizes"),
    fails("Resize", X, None, scales(), sizes(), match="either scales or sizes"),
    fails("Resize", X, None, scales(2, 2), match="resized axis: 2 and 4|2 scales .* 4 axes"),
    fails("Resize", X, None, scales(1, 1, -1, 1), match="-1(.0)? is not a positive number"),
    fails("Resize", X, None, None, sizes(1, 2, -3, 4), match="negative|cannot become"),
    fails("Resize", X, None, None, sizes(1, 2, 1 << 50, 4), match="number over|cannot become"),
    fails("Resize", f32(1, 0), None, None, sizes(1, 2), match="axis of 0 cannot become one of 2"),
    fails("Resize", X, None, scales(1, 1, 2, 2), mode="lanczos", match="mode .*got lanczos"),
]  # fmt: skip


CASES = [
    *RESIZE,
]
