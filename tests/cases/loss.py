"""Cases of the losses."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, i64, ints, of, pos

NLL, SCE = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"
LABELS = i64(3, low=0, high=5)
MAP = i64(2, 4, 3, low=0, high=5)
HOLES = of([1, -1, 4], np.int64)
# A class that cannot be: ignored labels have no part in its -inf.
MASKED = np.where(np.arange(5) == 0, np.float32(-np.inf), f32(3, 5))

CASES = [
    *(
        case(op, f32(3, 5), LABELS, reduction=reduction, ulps=16)
        for op in (NLL, SCE)
        for reduction in ("none", "sum", "mean")
    ),
    *(
        case(op, f32(3, 5), LABELS, pos(5), reduction=reduction, ulps=16)
        for op in (NLL, SCE)
        for reduction in ("none", "sum", "mean")
    ),
    *(case(op, f32(2, 5, 4, 3), MAP, pos(5), ulps=16) for op in (NLL, SCE)),
    *(case(op, f32(3, 5), HOLES, ignore_index=-1, ulps=16) for op in (NLL, SCE)),
    *(case(op, f32(3, 5), HOLES, pos(5), ignore_index=-1, ulps=16) for op in (NLL, SCE)),
    *(case(op, f32(3, 5), LABELS, reduction="none", ignore_index=2) for op in (NLL, SCE)),
    case(NLL, MASKED, HOLES, ignore_index=-1, ulps=16),
    case(SCE, MASKED, HOLES, pos(5), ignore_index=-1, ulps=16),
    case(SCE, f32(3, 5), LABELS, outputs=2, ulps=16),
    case(SCE, f64(2, 5, 4, 3), MAP, outputs=2, reduction="sum", ulps=32),
    case(SCE, f16(3, 5), LABELS, oracle="onnx", ulps=4),
    case(SCE, of([[1000.0, 0.0]]), of([1], np.int64), expect=(of(1000.0),)),
    # The sum of the losses is beyond float16, their mean is not.
    case(
        SCE,
        of([[64.0, 0.0]] * 2048, np.float16),
        np.ones(2048, np.int64),
        ignore_index=-1,
        expect=(of(64.0, np.float16),),
    ),
    case(NLL, bf16(3, 5), LABELS, oracle="onnx", ulps=4),
    case(NLL, f32(3, 5), LABELS.astype(np.int32), ulps=16),
    case(NLL, f32(3, 5), LABELS, opset=12, ulps=16),
    case(NLL, f32(0, 5), i64(0), reduction="sum"),
    case(NLL, f32(2, 5), of([7, 7], np.int64), ignore_index=7, expect=(of(np.nan),)),
    fails(NLL, f32(2, 5), of([1, 5], np.int64), match=r"the label 5 is outside \[0, 5\)"),
    fails(SCE, f32(2, 5), of([1, -1], np.int64), match="the label -1 is outside"),
    fails(NLL, f32(2, 5), i64(3), match="scores and labels differ: 2 and 3"),
    fails(NLL, f32(5), i64(), match=r"labels \(N, ...\), got f32"),
    fails(SCE, f32(2, 5), ints(np.int64, 2), pos(4), match="one weight per class: 4 and 5"),
    fails(SCE, f32(2, 5), i64(2), reduction="max", match="sum or mean, got max"),
]
