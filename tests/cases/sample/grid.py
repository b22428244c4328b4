"""Cases of GridSample and AffineGrid."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, f16, f32, f64, fails, ints, of

X = f32(1, 2, 5, 6)


MODES = ("nearest", "linear", "cubic")


PADDINGS = ("zeros", "border", "reflection")


LOOSE = {"ulps": 256, "why": "onnxruntime computes positions in float32"}


def sizes(*numbers: int) -> np.ndarray:
    return of(numbers, np.int64)


def grid(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return rng.uniform(-1.4, 1.4, (*shape, len(shape) - 1)).astype(np.float32)


GRID = [
    *(case("GridSample", f32(2, 3, 5, 6), grid(2, 4, 3), opset=20, mode=m, padding_mode=p,
           align_corners=a, **LOOSE)
      for m in ("linear", "nearest", "cubic") for p in PADDINGS for a in (0, 1)),
    *(case("GridSample", f32(2, 2, 4, 5, 3), grid(2, 3, 2, 2), opset=20, mode=m, padding_mode=p,
           **LOOSE) for m in ("linear", "nearest") for p in PADDINGS),
    *(case("GridSample", f32(1, 2, 5, 6), grid(1, 4, 3), opset=16, mode=m, **LOOSE)
      for m in ("bilinear", "nearest", "bicubic")),
    case("GridSample", f32(1, 2, 5, 6), grid(1, 4, 3), opset=16, **LOOSE),
    case("GridSample", f32(1, 2, 7), grid(1, 4), oracle="onnx", **LOOSE),
    case("GridSample", f64(1, 2, 3, 3), grid(1, 2, 2).astype(np.float64), oracle="none",
         why="the oracle places points in float32"),
    case("GridSample", ints(np.int32, 1, 1, 4, 4), grid(1, 2, 2), mode="nearest", oracle="onnx"),
    case("GridSample", of([[[["a", "b"]]]], object), of([[[[-1, 0], [9, 9]]]]), mode="nearest",
         expect=(of([[[["a", ""]]]], object),)),
    *(case("GridSample", f32(1, 2, 5, 4, 3), grid(1, 3, 2, 4), mode="cubic", padding_mode=p,
           oracle="onnx", **LOOSE) for p in PADDINGS[::2]),
    case("GridSample", f32(1, 2, 5, 4, 3), grid(1, 3, 2, 4), mode="cubic", padding_mode="border",
         oracle="none", ulps=64, why="onnx's reference clamps points and not neighbours"),
    *(case("GridSample", f32(2, 3, 17, 19), grid(2, 13, 11), mode=m, oracle="onnx", **LOOSE)
      for m in MODES),
    *(case("GridSample", f16(1, 2, 5, 6), g, mode=m, oracle="none", why="no oracle takes halves")
      for m in MODES for g in (grid(1, 4, 3), grid(1, 4, 3).astype(np.float16))),
    *(case("GridSample", ints(d, 1, 2, 4, 4), grid(1, 3, 5), mode="nearest", oracle="onnx")
      for d in (np.uint8, np.int16, np.int64)),
    case("GridSample", f32(0, 2, 3, 3), grid(0, 2, 2), oracle="none", why="nothing to compare"),
    case("GridSample", np.full((1, 1, 2, 2), np.inf, np.float32), of([[[[-3, 0], [9, 0]]]]),
         expect=(np.zeros((1, 1, 1, 2), np.float32),)),
    fails("GridSample", f32(1, 1, 0, 3), of([[[[0, 0]]]]), match="nothing to sample"),
    case("GridSample", f32(1, 1, 3, 3), of([[[[np.nan, 0], [np.inf, 0]]]]),
         expect=(np.zeros((1, 1, 1, 2), np.float32),)),
    fails("GridSample", X, grid(2, 4, 3), match="differ in batch"),
    fails("GridSample", X, grid(1, 4, 3, 2), match="the same rank"),
    fails("GridSample", X, grid(1, 4, 3), mode="bilinear", match="mode must be .*got bilinear"),
    fails("GridSample", X, grid(1, 4, 3), padding_mode="wrap", match="mode .*got wrap"),
]  # fmt: skip


AFFINE = [
    *(case("AffineGrid", f32(2, 2, 3), sizes(2, 3, 4, 5), align_corners=a, **LOOSE)
      for a in (0, 1)),
    *(case("AffineGrid", f32(2, 3, 4), sizes(2, 3, 4, 5, 6), align_corners=a, **LOOSE)
      for a in (0, 1)),
    case("AffineGrid", f64(1, 2, 3), sizes(1, 3, 1, 5), oracle="none", why="oracles make float32"),
    fails("AffineGrid", f32(2, 2, 3), sizes(2, 3, 4, 5, 6), match="5 and 4|does not map 3 axes"),
    fails("AffineGrid", f32(2, 2, 3), sizes(2, 3, -4, 5), match="negative|asks for|not possible"),
]  # fmt: skip


CASES = [
    *GRID,
    *AFFINE,
]
