"""Cases of convolutions: padding, strides, dilations, groups, transposed, deformable."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, ints, of


def sizes(*numbers: int) -> np.ndarray:
    return of(numbers, np.int64)


X, W = f32(2, 4, 9, 8), f32(6, 4, 3, 2)
AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")

CONV = [
    case("Conv", X, W, ulps=16),
    case("Conv", X, W, f32(6), pads=[1, 2, 0, 1], strides=[2, 3], dilations=[2, 1], ulps=16),
    case("Conv", f32(1, 3, 11, 13), f32(5, 3, 3, 3), f32(5), pads=[3, 0, 1, 2], strides=[1, 2],
         dilations=[3, 2], ulps=16),
    case("Conv", f32(1, 16, 17, 18), f32(16, 16, 3, 3), pads=[0, 2, 3, 1], dilations=[2, 3],
         ulps=32),
    case("Conv", f32(2, 8, 10, 9), f32(8, 1, 3, 3), group=8, pads=[2, 0, 1, 3], dilations=[1, 2],
         ulps=16),
    case("Conv", f32(1, 2, 17), f32(3, 2, 4), pads=[5, 1], dilations=[3], ulps=16),
    case("Conv", X, f32(6, 2, 3, 3), f32(6), group=2, pads=[1, 1, 1, 1], ulps=16),
    case("Conv", X, f32(4, 1, 3, 3), group=4, pads=[1, 1, 1, 1], strides=[2, 2], ulps=16),
    case("Conv", X, f32(8, 1, 5, 3), f32(8), group=4, dilations=[1, 2], ulps=16),
    case("Conv", X, f32(6, 4, 1, 1), f32(6), ulps=16),
    case("Conv", X, f32(6, 4, 1, 1), strides=[2, 3], ulps=16),
    case("Conv", X, f32(6, 4, 1, 1), pads=[1, 0, 2, 1], ulps=16),
    case("Conv", X, f32(6, 2, 1, 1), group=2, kernel_shape=[1, 1], ulps=16),
    *(case("Conv", X, W, auto_pad=a, strides=[2, 3], ulps=16) for a in AUTO),
    *(case("Conv", f32(1, 2, 7), f32(3, 2, 4), auto_pad=a, ulps=16) for a in AUTO),
    case("Conv", f32(2, 3, 17), f32(5, 3, 4), f32(5), strides=[3], pads=[2, 1], ulps=16),
    case("Conv", f32(1, 2, 5, 6, 7), f32(3, 2, 2, 3, 2), pads=[1, 0, 1, 0, 1, 1], ulps=16),
    case("Conv", f32(1, 2, 4, 4, 3, 5), f32(3, 2, 2, 1, 3, 2), oracle="none",
         why="no oracle convolves four axes"),
    case("Conv", f32(1, 3, 40, 30), f32(8, 3, 7, 7), pads=[9, 9, 9, 9], ulps=64),
    case("Conv", f64(1, 2, 5, 5), f64(3, 2, 3, 3), ulps=16),
    case("Conv", f16(1, 2, 5, 5), f16(3, 2, 3, 3), ulps=2, oracle="onnxruntime"),
    case("Conv", bf16(1, 2, 5, 5), bf16(3, 2, 3, 3), oracle="none", why="no oracle has bfloat16"),
    case("Conv", f32(0, 4, 9, 8), W),
    case("Conv", of([[[np.inf, 1, np.nan, 2, 3]]]), of([[[1, 1]]])),
    case("Conv", X, W, f32(6), pads=[1, 1, 1, 1], opset=1, ulps=16),
    case("Conv", X, W, f32(6), pads=[1, 1, 1, 1], opset=11, ulps=16),
    fails("Conv", X, f32(6, 3, 3, 2), match="channels of x.*differ: 4 and 3"),
    fails("Conv", X, f32(6, 4, 3), match="rank 3, and x has 4"),
    fails("Conv", f32(2, 4), f32(6, 4), match="rank 2"),
    fails("Conv", X, f32(5, 2, 3, 2), group=2, match="2 does not divide 5"),
    fails("Conv", X, W, group=0, match="group must be .*got 0"),
    fails("Conv", X, W, f32(5), match="one number per output channel: 5 and 6"),
    fails("Conv", X, W, kernel_shape=[3, 3], match="differs from the weights.*: 2 and 3"),
    fails("Conv", X, W, kernel_shape=[3], match=r"\(3,\) does not match the 2 spatial axes"),
    fails("Conv", X, W, strides=[0, 1], match=r"strides \(0, 1\) has a number outside"),
    fails("Conv", X, W, pads=[1, 1], match=r"pads \(1, 1\) has 2 numbers, and the input needs 4"),
    fails("Conv", X, W, pads=[-1, 0, 0, 0], match="outside"),
    fails("Conv", X, W, auto_pad="SAME", match="auto_pad must be .*got SAME"),
    fails("Conv", X, f32(6, 4, 10, 2), match="kernel does not fit.*: 9 is less than 10"),
]  # fmt: skip

T, V = f32(2, 4, 4, 5), f32(4, 3, 3, 3)
TRANSPOSED = [
    case("ConvTranspose", T, V, ulps=16),
    case("ConvTranspose", T, V, f32(3), strides=[2, 3], pads=[1, 0, 1, 2], ulps=16),
    case("ConvTranspose", T, V, strides=[2, 3], output_padding=[1, 2], ulps=16),
    case("ConvTranspose", T, V, f32(6), group=2, dilations=[2, 1], strides=[2, 2], ulps=16),
    case("ConvTranspose", T, V, f32(3), strides=[2, 1], pads=[1, 0, 2, 3], dilations=[1, 2],
         ulps=16),
    case("ConvTranspose", T, f32(4, 1, 2, 2), group=4, strides=[2, 2], ulps=16),
    *(case("ConvTranspose", T, V, auto_pad=a, strides=[2, 3], ulps=16) for a in AUTO),
    *(case("ConvTranspose", f32(1, 1, 4), f32(1, 1, 4), auto_pad=a, strides=[2],
           output_shape=[n], ulps=16) for a in AUTO[:2] for n in (8, 9, 10)),
    case("ConvTranspose", T, V, strides=[2, 2], output_shape=[8, 10], pads=[1, 1, 1, 1], ulps=16),
    case("ConvTranspose", f32(1, 2, 5), f32(2, 3, 4), strides=[3], kernel_shape=[4], ulps=16),
    case("ConvTranspose", f32(1, 2, 3, 2, 4), f32(2, 3, 2, 3, 2), strides=[1, 2, 1], ulps=16),
    case("ConvTranspose", f32(0, 4, 4, 5), V),
    case("ConvTranspose", f64(1, 2, 4, 4), f64(2, 3, 3, 3), ulps=16),
    case("ConvTranspose", f16(1, 2, 4, 4), f16(2, 3, 3, 3), oracle="none",
         why="oracles round float16 at every step"),
    case("ConvTranspose", T, V, strides=[2, 2], opset=1, ulps=16),
    fails("ConvTranspose", T, f32(3, 3, 3, 3), match="channels of x and of the weights differ"),
    fails("ConvTranspose", T, V, output_padding=[1, 1], match="output_padding.*not smaller"),
    fails("ConvTranspose", T, V, output_padding=[1], match="does not match 2 spatial axes"),
    fails("ConvTranspose", T, V, output_shape=[3], match="output_shape"),
    fails("ConvTranspose", T, V, pads=[9, 9, 9, 9], match="pads remove more"),
]  # fmt: skip

D, K = f32(2, 4, 6, 7), f32(6, 2, 3, 3)
DEFORM = [
    case("DeformConv", D, K, f32(2, 36, 4, 5), f32(6), f32(2, 18, 4, 5), group=2,
         offset_group=2, ulps=64, why="positions are rounded"),
    case("DeformConv", D, f32(3, 4, 2, 2), f32(2, 8, 3, 4), strides=[2, 2], pads=[0, 1, 0, 1],
         ulps=64, why="positions are rounded"),
    case("DeformConv", f32(1, 2, 5, 5), f32(1, 2, 2, 2), np.full((1, 8, 4, 4), np.nan, np.float32),
         expect=(np.zeros((1, 1, 4, 4), np.float32),)),
    case("DeformConv", f64(1, 1, 4, 4), f64(1, 1, 2, 2), f64(1, 8, 3, 3), oracle="none",
         why="the oracle places the taps in float32"),
    case("DeformConv", f32(1, 1, 3, 4, 3), f32(1, 1, 2, 2, 2), np.zeros((1, 24, 2, 3, 2), "f4"),
         oracle="none", why="oracles deform two axes"),
    fails("DeformConv", D, K, f32(2, 36, 4, 4), group=2, offset_group=2, match="axis 3 of offset"),
    fails("DeformConv", D, K, f32(2, 54, 4, 5), group=2, offset_group=3, match="offset_group"),
]  # fmt: skip

COL2IM = [
    case("Col2Im", f32(2, 18, 20), sizes(6, 6), sizes(2, 3)),
    case("Col2Im", f32(1, 45, 9), sizes(5, 5), sizes(3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    case("Col2Im", f32(1, 8, 20), sizes(6, 6), sizes(2, 2), dilations=[1, 2]),
    case("Col2Im", f32(1, 16, 4), sizes(3, 3, 2), sizes(2, 2, 2), oracle="onnx"),
    case("Col2Im", ints(np.int32, 1, 4, 4), sizes(3, 3), sizes(2, 2), oracle="onnx"),
    fails("Col2Im", f32(2, 18, 19), sizes(6, 6), sizes(2, 3), match="19|columns"),
    fails("Col2Im", f32(2, 17, 20), sizes(6, 6), sizes(2, 3), match="17|does not divide"),
    fails("Col2Im", of([[["a"]]], object), sizes(1, 1), sizes(1, 1), match="strings have no sum"),
]  # fmt: skip

B, C = f32(2, 3, 5), f32(3, 1, 4)
CAUSAL = [
    case("CausalConvWithState", B, C, outputs=2, ulps=16),
    case("CausalConvWithState", B, C, f32(3), f32(2, 3, 3), outputs=2, ulps=16),
    *(case("CausalConvWithState", B, C, None, f32(2, 3, 3), activation=a, outputs=2, ulps=16)
      for a in ("none", "silu", "swish")),
    case("CausalConvWithState", f32(2, 3, 2), C, outputs=2, ulps=16),
    case("CausalConvWithState", f32(1, 1, 1), f32(1, 1, 1), outputs=2, ulps=16),
    case("CausalConvWithState", f16(2, 3, 5), f16(3, 1, 4), outputs=2, oracle="none",
         why="the oracle rounds float16 at every step"),
    fails("CausalConvWithState", B, f32(3, 2, 4), match="must be 1: 2 and 1"),
    fails("CausalConvWithState", B, C, None, f32(2, 3, 4), match="past_state does not fit"),
    fails("CausalConvWithState", B, C, activation="relu", match="activation must be .*got b'relu'"),
]  # fmt: skip

CASES = [*CONV, *TRANSPOSED, *DEFORM, *COL2IM, *CAUSAL]
