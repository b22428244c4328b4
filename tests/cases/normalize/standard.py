"""Cases of the normalizations."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, of, pos

X = f32(2, 6, 5, 4)
ROWS = (f32(6), f32(6) + 1, f32(6) - 1, pos(6))
LOOSE = {"ulps": 32, "why": "sums in another order"}


def local_response(x: np.ndarray, size: int) -> np.ndarray:
    """LRN with alpha 0.5, channel by channel."""
    y = np.empty(x.shape)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64)
        y[:, c] = x[:, c] / (1 + 0.5 / size * (near**2).sum(axis=1)) ** 0.75
    return y.astype(np.float32)


BATCH = [
    case("BatchNormalization", X, *ROWS, **LOOSE),
    case("BatchNormalization", X, *ROWS, training_mode=1, momentum=0.7, epsilon=0.01, outputs=3,
         **LOOSE),
    case("BatchNormalization", f32(3, 6), *ROWS, **LOOSE),
    case("BatchNormalization", f32(5), f32(1), f32(1), f32(1), pos(1), **LOOSE),
    case("BatchNormalization", f64(2, 3, 4), f64(3), f64(3), f64(3), f64(3) ** 2, **LOOSE),
    case("BatchNormalization", f16(2, 6, 5), *ROWS, oracle="onnx", ulps=4),
    case("BatchNormalization", bf16(2, 6, 5), *ROWS, oracle="none", why="no oracle has bfloat16"),
    case("BatchNormalization", f32(0, 6, 5), *ROWS),
    *(case("BatchNormalization", X, *ROWS, opset=v, **LOOSE) for v in (7, 9, 14)),
    case("BatchNormalization", X, *ROWS, opset=6, is_test=1, oracle="none",
         why="no oracle is that old"),
    case("BatchNormalization", X, *ROWS, opset=9, outputs=5, oracle="none",
         why="no oracle trains in version 9"),
    case("BatchNormalization", f32(2, 3, 2), *(r.reshape(3, 2) for r in ROWS), opset=7, spatial=0,
         oracle="none", why="no oracle has it"),
    case("BatchNormalization", f32(2, 3, 2), *(r.reshape(3, 2) for r in ROWS), opset=7, spatial=0,
         outputs=5, oracle="none", why="no oracle has it"),
    fails("BatchNormalization", X, f32(5), *ROWS[1:], match="scale.*per channel: 5 and 6"),
    fails("BatchNormalization", X, f32(6, 1), *ROWS[1:], match="must be a vector, got rank 2"),
    fails("BatchNormalization", X, *ROWS, outputs=3, match="1 outputs here, but the node names 3"),
]  # fmt: skip

INSTANCE = [
    case("InstanceNormalization", X, *ROWS[:2], **LOOSE),
    case("InstanceNormalization", f32(2, 6, 7), *ROWS[:2], epsilon=0.1, **LOOSE),
    case("InstanceNormalization", f64(1, 2, 3), f64(2), f64(2), **LOOSE),
    case("InstanceNormalization", X, *ROWS[:2], opset=6, **LOOSE),
    case("InstanceNormalization", X, *ROWS[:2], opset=1, consumed_inputs=[0, 0, 0], oracle="none",
         why="no oracle is that old"),
    fails("InstanceNormalization", X, f32(5), f32(6), match="scale.*5 and 6"),
]  # fmt: skip

GROUP = [
    *(case("GroupNormalization", X, *ROWS[:2], num_groups=n, **LOOSE) for n in (1, 2, 3, 6)),
    case("GroupNormalization", f32(2, 6), *ROWS[:2], num_groups=2, epsilon=0.1, **LOOSE),
    case("GroupNormalization", f16(2, 6, 3), f16(6), f16(6), num_groups=2, oracle="none",
         why="oracles round float16 in between"),
    case("GroupNormalization", X, f32(3), f32(3), num_groups=3, opset=18, **LOOSE),
    fails("GroupNormalization", X, *ROWS[:2], num_groups=4, match="4 does not divide 6"),
    fails("GroupNormalization", X, *ROWS[:2], num_groups=0, match="num_groups must be .*got 0"),
]  # fmt: skip

LAYER = [
    *(case("LayerNormalization", X, f32(*X.shape[a:]), f32(*X.shape[a:]), axis=a, outputs=3,
           **LOOSE) for a in (-1, 2, 1, 0)),
    case("LayerNormalization", X, f32(4), epsilon=0.5, **LOOSE),
    case("LayerNormalization", X, f32(5, 1), axis=2, oracle="onnx", **LOOSE),
    case("LayerNormalization", f64(3, 5), f64(5), f64(5), **LOOSE),
    case("LayerNormalization", f16(3, 5), f16(5), f16(5), outputs=3, ulps=4),
    case("LayerNormalization", bf16(3, 5), bf16(5), stash_type=16, outputs=3, oracle="none",
         why="no oracle has bfloat16 statistics"),
    case("LayerNormalization", f32(0, 5), f32(5)),
    case("LayerNormalization", f32(4, 1), f32(1), outputs=3),
    fails("LayerNormalization", X, f32(3), match="Scale does not broadcast.*3"),
    fails("LayerNormalization", X, f32(4), axis=4, match="axis 4 is outside"),
    fails("LayerNormalization", X, f32(4), stash_type=7, match="stash_type must be .*got 7"),
]  # fmt: skip

RMS = [
    *(case("RMSNormalization", X, f32(*X.shape[a:]), axis=a, **LOOSE) for a in (-1, 2, 1, 0)),
    case("RMSNormalization", f32(3, 5), f16(5), oracle="none", why="onnx gives it x's type"),
    case("RMSNormalization", f16(3, 5), f16(5), ulps=4),
    fails("RMSNormalization", X, f32(3), match="scale does not broadcast"),
    case("SimplifiedLayerNormalization", X, f32(4), outputs=2, opset=17, **LOOSE),
    case("SimplifiedLayerNormalization", X, f32(5, 4), axis=2, epsilon=0.1, opset=17, **LOOSE),
    case("SimplifiedLayerNormalization", X, f32(4), domain="com.microsoft", oracle="none"),
]  # fmt: skip

OTHER = [
    *(case("LpNormalization", X, p=p, axis=a, ulps=16) for p in (1, 2) for a in (0, 1, -1)),
    case("LpNormalization", of([[0, 0], [3, 4]]), expect=(of([[0, 0], [0.6, 0.8]]),)),
    case("LpNormalization", f16(3, 4), oracle="none", why="oracles round float16 in between"),
    case("LpNormalization", X, opset=1, ulps=16),
    fails("LpNormalization", X, p=3, match="p must be .*got 3"),
    *(case("LRN", X, size=n, alpha=0.5, beta=0.6, bias=1.5, ulps=16) for n in (1, 3, 5)),
    *(case("LRN", X, size=n, alpha=0.5, ulps=16, expect=(local_response(X, n),))
      for n in (2, 4, 99)),
    case("LRN", X, size=3, opset=1, ulps=16),
    fails("LRN", X, size=0, match="size must be .*got 0"),
    case("MeanVarianceNormalization", X, **LOOSE),
    case("MeanVarianceNormalization", X, axes=[1, -1], **LOOSE),
    case("MeanVarianceNormalization", np.full((2, 3, 2, 2), 7, np.float32),
         expect=(np.zeros((2, 3, 2, 2), np.float32),)),
    case("MeanVarianceNormalization", X, opset=9, **LOOSE),
    fails("MeanVarianceNormalization", f32(2, 3), match="outside"),
]  # fmt: skip

LENGTHS = (1, 15, 16, 17, 65, 768, 5000)
HALF = {"oracle": "none", "why": "oracles round halves in between"}

KERNELS = [
    *(case("LayerNormalization", f32(3, n), f32(n), f32(n), outputs=3, **LOOSE) for n in LENGTHS),
    *(case("LayerNormalization", t(9, 70), t(70), t(70), outputs=3, **LOOSE) for t in (f32, f64)),
    case("LayerNormalization", np.r_["1", np.full((5, 1), 1e3, np.float32), f32(5, 2098)],
         f32(2099), outputs=3, oracle="none", why="rounds otherwise far from 0", ulps=64),
    case("LayerNormalization", np.r_["0", f32(5, 70), np.full((2, 70), np.inf, np.float32),
                                     np.full((1, 70), np.nan, np.float32)], f32(70)),
    case("LayerNormalization", np.r_["1", np.full((5, 1), 1e19, np.float32), f32(5, 99)], f32(100),
         outputs=3, **LOOSE),
    *(case("RMSNormalization", f32(3, n), f32(n), **LOOSE) for n in LENGTHS),
    case("LayerNormalization", f32(5, 70) + 100, f32(70), ulps=256, oracle="none",
         why="the reference rounds the mean to float32"),
    case("LayerNormalization", f32(2, 3, 4, 5), f32(3, 1, 5), f32(1), axis=1, oracle="onnx",
         **LOOSE),
    *(case("LayerNormalization", t(3, 70), t(70), t(70), **HALF) for t in (f16, bf16)),
    *(case("BatchNormalization", f32(2, n, 3), *(f32(n),) * 3, pos(n), **LOOSE) for n in (1, 40)),
    *(case("BatchNormalization", f32(3, n), *(f32(n),) * 3, pos(n), **LOOSE) for n in LENGTHS),
    case("BatchNormalization", f32(1, 2, 70, 71), *(f32(2),) * 3, pos(2), **LOOSE),
    *(case("InstanceNormalization", f32(2, 3, n), f32(3), f32(3), **LOOSE) for n in LENGTHS[1:]),
    *(case("LpNormalization", f32(3, n), p=p, ulps=16) for n in LENGTHS for p in (1, 2)),
    *(case("LpNormalization", f32(3, 5, n), axis=1, ulps=16) for n in LENGTHS),
    *(case("LpNormalization", t(3, 70), axis=a, **HALF) for t in (f16, bf16) for a in (0, 1)),
    *(case("LRN", f32(2, 7, 1, n), size=3, beta=beta, ulps=16)
      for n in (1, 17, 70) for beta in (0.75, 0.5)),
    case("LRN", f16(2, 7, 40), size=3, **HALF),
    *(case("MeanVarianceNormalization", f32(2, 3, 4, 35), axes=a, **LOOSE)
      for a in ([1], [0, 1], [3], [1, 2, 3], [0, 2])),
]  # fmt: skip

CASES = [*KERNELS, *BATCH, *INSTANCE, *GROUP, *LAYER, *RMS, *OTHER]
