"""Cases of ops over tensors: arithmetic, products, reductions, movement."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f64, i64, of
from tests.train.gradient_cases import F64, apart, inside, pos, rule, sizes

_UNARY = (
    ("Abs", apart), ("Neg", f64), ("Sqrt", pos), ("Exp", f64), ("Log", pos), ("Reciprocal", pos),
    ("Sin", f64), ("Cos", f64), ("Tan", inside), ("Asin", inside), ("Acos", inside), ("Atan", f64),
    ("Sinh", f64), ("Cosh", f64), ("Tanh", f64), ("Asinh", f64), ("Atanh", inside), ("Erf", f64),
    ("Sigmoid", f64), ("Relu", apart), ("Softplus", f64), ("Softsign", apart), ("Identity", f64),
    ("HardSwish", apart), ("Mish", f64), ("Swish", f64), ("Gelu", f64), ("LeakyRelu", apart),
    ("Elu", apart), ("Celu", apart), ("Selu", apart), ("HardSigmoid", apart),
    ("ThresholdedRelu", apart), ("Shrink", apart), ("Softmax", f64), ("LogSoftmax", f64),
    ("Floor", f64), ("Flatten", f64), ("GlobalAveragePool", f64), ("GlobalMaxPool", apart),
)  # fmt: skip

ELEMENTWISE = [
    *(rule(op, make(2, 3, 4)) for op, make in _UNARY if op != "Floor"),
    rule("Acosh", pos(2, 3) + 1),
    rule("Gelu", f64(2, 3), approximate="tanh"),
    rule("LeakyRelu", apart(2, 3), alpha=0.3),
    rule("Elu", apart(2, 3), alpha=0.3),
    rule("Celu", apart(2, 3), alpha=0.3),
    rule("Swish", f64(2, 3), alpha=1.7),
    rule("PRelu", apart(2, 3, 4), f64(3, 1)),
    rule("Softmax", f64(2, 3, 4), axis=1),
    rule("LogSoftmax", f64(2, 3), axis=0),
    *(rule(op, f64(2, 3), f64(2, 3)) for op in ("Add", "Sub", "Mul")),
    *(rule(op, f64(2, 3), f64(3)) for op in ("Add", "Sub", "Mul")),
    *(rule(op, f64(2, 1, 4), f64(3, 1)) for op in ("Add", "Sub", "Mul")),
    *(rule(op, f64(), f64(2, 1)) for op in ("Add", "Mul")),
    rule("Div", f64(2, 3), pos(3)),
    rule("Div", f64(3), pos(2, 3)),
    rule("Pow", pos(2, 3), f64(3)),
    rule("Pow", f64(2, 3), of(2.0, np.float64), fixed=(1,)),
    rule("Pow", pos(2, 3), of(1.5, np.float64), fixed=(1,)),
    rule("Pow", f64(2, 3), of([3], np.int64), by=(0,)),
    rule("Mod", pos(2, 3) * 5, pos(3) + 1, fmod=1),
    rule("Sum", f64(2, 3), f64(3), f64(2, 1)),
    rule("Mean", f64(2, 3), f64(3), f64(2, 1)),
    rule("Max", apart(2, 3), apart(2, 3).T.reshape(2, 3) + 0.1, f64(3)),
    rule("Min", apart(2, 3), f64(3)),
    rule("Max", apart(2, 3)),
    rule("Where", of([[True, False, True]], bool), f64(2, 3), f64(2, 1)),
    rule("Clip", apart(3, 4), of(-0.7, np.float64), of(0.6, np.float64)),
    rule("Clip", apart(3, 4), None, of(0.6, np.float64)),
    rule("Clip", apart(3, 4)),
    rule("Clip", apart(3, 4), of(0.5, np.float64), of(-0.5, np.float64)),
    rule("SwiGLU", f64(2, 3), f64(2, 3), alpha=1.3),
    rule("Cast", f64(2, 3), to=F64),
    rule("CastLike", f64(2, 3), f64(1), by=(0,)),
]

LINEAR = [
    rule("MatMul", f64(2, 3), f64(3, 4)),
    rule("MatMul", f64(5, 2, 3), f64(3, 4)),
    rule("MatMul", f64(5, 2, 3), f64(5, 3, 4)),
    rule("MatMul", f64(2, 1, 2, 3), f64(5, 3, 4)),
    rule("MatMul", f64(3), f64(3, 4)),
    rule("MatMul", f64(2, 3), f64(3)),
    rule("MatMul", f64(3), f64(3)),
    rule("MatMul", f64(5, 2, 3), f64(3)),
    rule("MatMul", f64(3), f64(5, 3, 4)),
    *(
        rule(
            "Gemm",
            f64(3, 2) if a else f64(2, 3),
            f64(4, 3) if b else f64(3, 4),
            f64(4),
            transA=a,
            transB=b,
            alpha=0.5,
            beta=1.5,
        )
        for a in (0, 1)
        for b in (0, 1)
    ),
    rule("Gemm", f64(2, 3), f64(3, 4)),
    rule("Einsum", f64(2, 3), f64(3, 4), equation="ij,jk->ik"),
    rule("Einsum", f64(2, 3, 4), f64(2, 4, 5), equation="bij,bjk"),
    rule("Einsum", f64(2, 5, 3, 4), f64(5, 4, 6), equation="...ij,...jk->...ik"),
    rule("Einsum", f64(2, 1, 3, 4), f64(5, 4, 6), equation="...ij,...jk->...ik"),
    rule("Einsum", f64(3, 1), f64(5), equation="ij,j->i"),
    rule("Einsum", f64(1, 5), f64(3), equation="...k,...->..."),
    rule("Einsum", f64(1, 5), f64(3, 1), equation="...k,...j->..."),
    rule("Einsum", f64(1, 5), f64(3, 1), equation="ij,ij->i"),
    rule("Einsum", f64(2, 3), equation="ij->ji"),
    rule("Einsum", f64(2, 3), equation="ij->i"),
    rule("Einsum", f64(2, 3), f64(4), equation="ij,k->ik"),
    rule("Einsum", f64(2, 3), f64(3), f64(2), equation="ij,j,i->"),
    rule("Einsum", f64(3, 3), equation="ii"),
    rule("Einsum", f64(2, 3, 3), f64(3, 4), equation="...ii,ij->...j"),
    rule("Einsum", f64(3, 2, 3, 3), f64(2, 2), equation="ijii,jj->i"),
    rule("Det", f64(3, 3), is_open=False),
    rule("Det", f64(2, 4, 4), is_open=False),
    rule("Det", f64(2, 1, 1), is_open=False),
    rule("Det", of([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float64)),
    rule("Det", np.zeros((2, 2))),
    rule("Det", np.eye(33) + f64(33, 33) * 0.1, is_open=False),
]

_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMin",
)
# Rows of one zero, of two, and of none.
_ZEROS = of([[[2, 0, 3, 1], [0, 0, 5, 1], [2, 3, 4, 0.5]]], np.float64)
REDUCE = [
    *(rule(op, apart(2, 3, 4), sizes(1), fixed=(1,)) for op in _REDUCTIONS),
    *(rule(op, apart(2, 3, 4), sizes(0, -1), fixed=(1,), keepdims=0) for op in _REDUCTIONS),
    *(rule(op, apart(2, 3), keepdims=0) for op in _REDUCTIONS),
    rule("ReduceLogSum", pos(2, 3), sizes(1), fixed=(1,)),
    rule("ReduceSum", f64(2, 3), noop_with_empty_axes=1),
    *(
        rule("CumSum", f64(3, 4), of(1, np.int64), fixed=(1,), exclusive=e, reverse=r)
        for e in (0, 1)
        for r in (0, 1)
    ),
    *(
        rule("ReduceProd", x, sizes(*a), fixed=(1,), keepdims=k)
        for x in (f64(2, 3, 4), _ZEROS)
        for a, k in (((1,), 1), ((0, 2), 0), ((), 1))
    ),
    *(
        rule("CumProd", x, of(1, np.int64), fixed=(1,), exclusive=e, reverse=r)
        for x in (f64(2, 7), _ZEROS)
        for e in (0, 1)
        for r in (0, 1)
    ),
    rule("TopK", apart(3, 5), sizes(2), fixed=(1,), outputs=2),
    rule("TopK", apart(3, 5), sizes(2), fixed=(1,), outputs=2, axis=0, largest=0),
]

MOVE = [
    rule("Reshape", f64(2, 6), sizes(3, -1), fixed=(1,)),
    rule("Squeeze", f64(2, 1, 3), sizes(1), fixed=(1,)),
    rule("Unsqueeze", f64(2, 3), sizes(0, -1), fixed=(1,)),
    rule("Expand", f64(3, 1), sizes(2, 3, 4), fixed=(1,)),
    rule("Transpose", f64(2, 3, 4), perm=[2, 0, 1]),
    rule("Transpose", f64(2, 3, 4)),
    rule("Concat", f64(2, 3), f64(2, 1), f64(2, 2), axis=-1),
    rule("Concat", f64(2, 3), axis=0),
    rule("Split", f64(2, 6), sizes(1, 2, 3), fixed=(1,), axis=1, outputs=3, of=(0, 2)),
    rule("Split", f64(4, 2), num_outputs=2, outputs=2, of=(0, 1)),
    rule("Slice", f64(5, 6), sizes(1, -4), sizes(4, 100), fixed=(1, 2)),
    rule("Slice", f64(5, 6), sizes(-100), sizes(-1), sizes(1), fixed=(1, 2, 3)),
    rule(
        "Slice", f64(5, 6), sizes(4, 1), sizes(-9, 6), sizes(0, 1), sizes(-2, 3), fixed=(1, 2, 3, 4)
    ),
    rule("Tile", f64(2, 3), sizes(3, 2), fixed=(1,)),
    rule("Pad", f64(2, 3), sizes(1, 0, 2, 1), of(0.5, np.float64), fixed=(1,)),
    rule("Pad", f64(3, 4), sizes(1, -1, 0, 2), fixed=(1,)),
    rule("Pad", f64(3, 4), sizes(2, 1), None, sizes(1), fixed=(1, 3)),
    *(
        rule("Pad", f64(3, 4), sizes(2, 1, 1, 2), fixed=(1,), mode=m)
        for m in ("reflect", "edge", "wrap")
    ),
    rule("Trilu", f64(3, 4), of(1, np.int64), fixed=(1,)),
    rule("Trilu", f64(2, 3, 4), upper=0),
    rule("DepthToSpace", f64(2, 8, 2, 3), blocksize=2),
    rule("DepthToSpace", f64(2, 8, 2, 3), blocksize=2, mode="CRD"),
    rule("SpaceToDepth", f64(2, 3, 4, 6), blocksize=2),
    rule("SpaceToDepth", f64(2, 3, 4, 6), blocksize=2, mode="CRD"),
    rule("ReverseSequence", f64(4, 3, 2), sizes(4, 1, 3), fixed=(1,)),
    rule("ReverseSequence", f64(3, 4), sizes(0, 2, 4), batch_axis=0, time_axis=1, fixed=(1,)),
    rule("CenterCropPad", f64(5, 4, 3), sizes(2, 7, 3), fixed=(1,)),
    rule("CenterCropPad", f64(5, 4, 3), sizes(4, 4), axes=[-1, 0], fixed=(1,)),
    rule("Gather", f64(5, 3), i64(2, 2, low=-5, high=5), by=(0,)),
    rule("Gather", f64(2, 5, 3), i64(2, 2, low=0, high=5), by=(0,), axis=1),
    rule("Gather", f64(2, 3, 5), of(2, np.int64), by=(0,), axis=-1),
    rule("GatherElements", f64(4, 3), i64(2, 3, low=0, high=4), by=(0,)),
    rule("GatherElements", f64(2, 5), i64(2, 3, low=-5, high=5), by=(0,), axis=1),
    rule("GatherND", f64(3, 4, 2), of([[0, 1], [2, 3], [0, 1]], np.int64), by=(0,), is_open=False),
    rule(
        "GatherND",
        f64(2, 3, 4),
        of([[[1], [1]], [[0], [2]]], np.int64),
        by=(0,),
        batch_dims=1,
        is_open=False,
    ),
    rule("ScatterElements", f64(4, 3), of([[0, 2, 1]], np.int64), f64(1, 3), by=(0, 2)),
    rule(
        "ScatterElements",
        f64(4, 3),
        of([[0, 1], [0, 0]], np.int64),
        f64(2, 2),
        by=(0, 2),
        axis=1,
        reduction="add",
    ),
    rule("ScatterND", f64(4, 3), of([[2], [0]], np.int64), f64(2, 3), by=(0, 2)),
    rule("ScatterND", f64(4, 3), of([[2], [2]], np.int64), f64(2, 3), by=(0, 2), reduction="add"),
    *(
        rule(
            "ScatterElements",
            x,
            of([[0, 1], [0, 0]], np.int64),
            apart(2, 2),
            by=(0, 2),
            axis=1,
            reduction=r,
        )
        for x in (apart(4, 3), np.zeros((4, 3)))
        for r in ("max", "min", "mul")
    ),
    *(
        rule(
            "ScatterND",
            apart(4, 3) + 0.1,
            of([[2], [2]], np.int64),
            apart(2, 3),
            by=(0, 2),
            reduction=r,
        )
        for r in ("max", "min", "mul")
    ),
    rule(
        "ScatterElements",
        f64(3),
        of([1, 1, 2, 0], np.int64),
        of([0, 2, 0, 3], np.float64),
        by=(0, 2),
        reduction="mul",
    ),
    rule("TensorScatter", f64(2, 5, 3), f64(2, 2, 3), of([1, 3], np.int64), by=(0, 1)),
    rule("TensorScatter", f64(2, 5, 3), f64(2, 2, 3)),
    rule(
        "TensorScatter",
        f64(2, 3, 4),
        f64(2, 3, 2),
        of([3, 1], np.int64),
        by=(0, 1),
        axis=2,
        mode="circular",
    ),
    rule("Unique", apart(3, 4), outputs=4),
    rule("Unique", apart(3, 4), axis=1, sorted=0, outputs=2),
    rule("Compress", f64(4, 3), of([True, False, True, True], bool), by=(0,), axis=0),
    rule("Compress", f64(2, 3), of([True, False, True], bool), by=(0,)),
    rule("OneHot", of([1, 5, -2, 0], np.int64), of(4, np.int64), f64(2), fixed=(1,)),
    rule("OneHot", of([[1.0, 3.0]], np.float64), of(4, np.int64), f64(2), by=(2,), axis=0),
    rule("Range", f64(), f64() + 5, of(0.31, np.float64), by=(0, 2)),
    *(
        rule("Resize", f64(1, 2, 4, 5), None, None, sizes(1, 2, 7, 3), fixed=(3,), mode=mode)
        for mode in ("nearest", "linear", "cubic")
    ),
    rule(
        "Resize",
        f64(1, 2, 3, 4),
        None,
        of([1, 1, 2, 1.5], np.float32),
        fixed=(2,),
        by=(0,),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    rule(
        "Resize",
        f64(2, 3, 4),
        None,
        None,
        sizes(2),
        fixed=(3,),
        mode="linear",
        antialias=1,
        axes=[1],
    ),
    *(
        rule(
            "Resize",
            f64(1, 2, 4, 5),
            of([0.1, 0.2, 0.9, 1.3], np.float64),
            None,
            sizes(4, 3),
            fixed=(1, 3),
            mode=mode,
            axes=[2, 3],
            coordinate_transformation_mode="tf_crop_and_resize",
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        rule(
            "Resize",
            f64(1, 2, 4, 5),
            None,
            None,
            sizes(7, 7),
            fixed=(3,),
            mode="linear",
            axes=[2, 3],
            keep_aspect_ratio_policy=policy,
            is_open=False,
        )
        for policy in ("not_larger", "not_smaller")
    ),
]

SIGNAL = [
    *(
        rule("DFT", f64(2, 6, parts), *length, inverse=inverse, onesided=onesided, fixed=fixed)
        for length, fixed in (((), ()), ((of(5, np.int64),), (1,)), ((of(9, np.int64),), (1,)))
        for parts, inverse, onesided in ((1, 0, 0), (2, 0, 0), (2, 1, 0), (1, 0, 1), (2, 1, 1))
    ),
    rule("DFT", f64(4, 3, 2), None, of(0, np.int64), fixed=(2,)),
    rule("DFT", f64(4, 3, 1), None, of(-3, np.int64), fixed=(2,), inverse=1, onesided=1),
    *(
        rule("STFT", f64(2, 11, parts), of(3, np.int64), window, length, fixed=(1, 3), onesided=o)
        for parts in (1, 2)
        for o in (0, 1)
        for window, length in ((f64(5), None), (None, of(4, np.int64)), (f64(6), of(6, np.int64)))
    ),
    rule("STFT", f64(2, 11), of(4, np.int64), f64(5), fixed=(1,)),
]

RULES = [*ELEMENTWISE, *LINEAR, *REDUCE, *MOVE, *SIGNAL]
