"""Cases of QOrderedLayerNormalization, which onnxruntime has on CUDA only."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, case, f16, f32, fails, ints, of

OP, DOMAIN = "QOrderedLayerNormalization", "com.microsoft"
X = ints(np.int8, 2, 3, 40, low=-128, high=127)


def norm(*inputs: Any, **options: Any) -> Case:
    return case(OP, *inputs, domain=DOMAIN, oracle="none", **options)


CASES = [
    case(
        OP,
        of([[-2, 0, 2, 0]], np.int8),
        of(0.5),
        of([1, 2, 3, 4]),
        of([0, 0, 0, 1]),
        of(1 / 64),
        epsilon=0.5,
        expect=(of([[-64, 0, 127, 64]], np.int8),),
        domain=DOMAIN,
    ),
    norm(X, of(0.05), f32(40), None, of(0.031)),
    norm(X, of([0.05]), f16(40), f16(40), of([0.031]), epsilon=0.1),
    norm(X, of(0.05), f32(3, 40), f32(3, 40), of(0.031), axis=1),
    fails(OP, X, of(1), f32(40), None, of(1), domain=DOMAIN, order_X=2, match="row major"),
    fails(OP, X, of(1), f32(1, 40), None, of(1), domain=DOMAIN, match="does not have the axes"),
]
