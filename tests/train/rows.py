"""Rows of gradient tests: a node, its inputs in float64, and which of them are constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.graph.dtype import by_onnx
from tests.rows import Array, Row, case, f64, i64, of

MS = "com.microsoft"
WEIGHTED = ("BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization")


@dataclass(frozen=True)
class Rule:
    """A row, the positions of inputs that are constants, and those that have gradients."""

    row: Row
    fixed: tuple[int, ...] = ()
    by: tuple[int, ...] | None = None  # all inputs of floats that are not fixed
    of: tuple[int, ...] = (0,)  # outputs to differentiate
    weights: tuple[int, ...] = ()  # inputs that are initializers of the model
    is_open: bool = field(default=True)  # sizes may be open too

    def __str__(self) -> str:
        return str(self.row)[:90]


def rule(op: str, *inputs: Any, **options: Any) -> Rule:
    """A row; options that are fields of Rule set them, all others go to `case`."""
    own: dict[str, Any] = {
        k: options.pop(k) for k in ("fixed", "by", "of", "weights", "is_open") if k in options
    }
    if op in WEIGHTED:
        own.setdefault("weights", tuple(i for i in range(1, len(inputs)) if inputs[i] is not None))
    return Rule(case(op, *inputs, **options), **own)


def apart(*shape: int) -> Array:
    """Numbers that differ by more than a step, none of them near 0, in random order."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) - count / 2 + 0.25) * 0.31
    return np.random.default_rng(count).permutation(numbers).reshape(shape)


def pos(*shape: int) -> Array:
    return np.abs(f64(*shape)) + 0.3


def inside(*shape: int) -> Array:
    """Numbers within (-0.9, 0.9)."""
    return np.tanh(f64(*shape)) * 0.9


def lens(*numbers: int) -> Array:
    return of(numbers, np.int32)


def sizes(*numbers: int) -> Array:
    return of(numbers, np.int64)


F64 = 11
assert by_onnx(F64) is not None

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
    rule("Einsum", f64(2, 1, 3, 4), f64(5, 4, 6), equation="...ij,...jk->...ik", is_open=False),
    rule("Einsum", f64(3, 1), f64(5), equation="ij,j->i", is_open=False),
    rule("Einsum", f64(2, 3), equation="ij->ji"),
    rule("Einsum", f64(2, 3), equation="ij->i"),
    rule("Einsum", f64(2, 3), f64(4), equation="ij,k->ik"),
    rule("Einsum", f64(2, 3), f64(3), f64(2), equation="ij,j,i->"),
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
    rule("Compress", f64(4, 3), of([True, False, True, True], bool), by=(0,), axis=0),
    rule("Compress", f64(2, 3), of([True, False, True], bool), by=(0,)),
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
]

IMAGES = [
    rule("Conv", f64(2, 3, 5, 6), f64(4, 3, 3, 2), f64(4)),
    rule("Conv", f64(2, 3, 5, 6), f64(4, 3, 1, 1)),
    rule("Conv", f64(2, 3, 8, 7), f64(4, 3, 3, 3), strides=[2, 3], pads=[1, 0, 1, 2]),
    rule(
        "Conv",
        f64(1, 2, 9, 8),
        f64(2, 2, 3, 2),
        dilations=[2, 3],
        strides=[2, 1],
        pads=[1, 2, 3, 0],
    ),
    rule("Conv", f64(2, 4, 6), f64(6, 2, 3), group=2, pads=[1, 1], strides=[2]),
    rule("Conv", f64(2, 3, 5, 5), f64(3, 1, 3, 3), group=3, pads=[1, 1, 1, 1]),
    rule("Conv", f64(1, 2, 4, 4), f64(2, 2, 1, 1), pads=[1, 1, 1, 1], strides=[2, 2]),
    rule(
        "Conv",
        f64(1, 2, 7, 5),
        f64(2, 2, 3, 2),
        auto_pad="SAME_UPPER",
        strides=[2, 2],
        is_open=False,
    ),
    rule("Conv", f64(1, 2, 7, 5), f64(2, 2, 3, 2), auto_pad="SAME_LOWER", is_open=False),
    rule("Conv", f64(1, 2, 3, 4, 3), f64(2, 2, 2, 2, 2)),
    rule("ConvTranspose", f64(2, 3, 4, 5), f64(3, 2, 3, 2), f64(2)),
    rule(
        "ConvTranspose",
        f64(1, 4, 4, 3),
        f64(4, 2, 3, 3),
        group=2,
        strides=[2, 3],
        pads=[1, 0, 1, 2],
        output_padding=[1, 2],
    ),
    rule("ConvTranspose", f64(1, 2, 4), f64(2, 3, 3), dilations=[2], strides=[2]),
    rule("MaxPool", apart(2, 2, 5, 6), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    rule("MaxPool", apart(1, 2, 7), kernel_shape=[2], dilations=[2], ceil_mode=1, strides=[2]),
    *(
        rule(
            "AveragePool",
            f64(2, 2, 6, 5),
            kernel_shape=[3, 2],
            strides=[2, 2],
            pads=[1, 0, 1, 1],
            count_include_pad=p,
            ceil_mode=c,
        )
        for p in (0, 1)
        for c in (0, 1)
    ),
    rule("AveragePool", f64(1, 2, 7), kernel_shape=[3], dilations=[2]),
    rule("GlobalAveragePool", f64(2, 3, 4, 5)),
    rule("GlobalMaxPool", apart(2, 3, 4, 5)),
]

NORMALIZE = [
    rule("LayerNormalization", f64(2, 3, 4), f64(4), f64(4)),
    rule("LayerNormalization", f64(2, 3, 4), f64(3, 4), axis=1, epsilon=0.1),
    rule("RMSNormalization", f64(2, 3, 4), f64(4)),
    rule("RMSNormalization", f64(2, 3, 4), f64(3, 4), axis=-2, epsilon=0.1),
    rule("BatchNormalization", f64(2, 3, 4, 5), f64(3), f64(3), f64(3), pos(3)),
    rule("BatchNormalization", f64(4, 3), f64(3), f64(3), f64(3), pos(3), epsilon=0.1),
    rule(
        "BatchNormalization",
        f64(3, 3, 4),
        f64(3),
        f64(3),
        f64(3),
        pos(3),
        training_mode=1,
        outputs=3,
        by=(0, 1, 2),
    ),
    rule("InstanceNormalization", f64(2, 3, 4), f64(3), f64(3)),
    rule("GroupNormalization", f64(2, 4, 3, 2), f64(4), f64(4), num_groups=2),
]

_WEIGHTS = of([0.5, 1.5, 1.0], np.float64)
LOSS = [
    *(
        rule(op, f64(4, 3), of([0, 2, 1, 2], np.int64), *more, by=(0,), reduction=r, ignore_index=i)
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
        for r in ("none", "sum", "mean")
        for more in ((), (_WEIGHTS,))
        for i in (None, 2)
    ),
    rule(
        "SoftmaxCrossEntropyLoss",
        f64(2, 3, 4),
        i64(2, 4, low=0, high=3),
        by=(0,),
        outputs=2,
        of=(0, 1),
    ),
]

RECURRENT = [
    rule("RNN", f64(4, 2, 3), f64(1, 5, 3), f64(1, 5, 5) * 0.4, f64(1, 10), outputs=2, of=(0, 1)),
    rule(
        "RNN",
        f64(4, 2, 3),
        f64(2, 5, 3),
        f64(2, 5, 5) * 0.4,
        None,
        lens(3, 4),
        f64(2, 2, 5),
        direction="bidirectional",
        outputs=2,
        of=(0, 1),
        activations=["Sigmoid", "Softsign"],
    ),
    *(
        rule(
            "GRU",
            f64(4, 2, 3),
            f64(1, 15, 3),
            f64(1, 15, 5) * 0.4,
            f64(1, 30),
            None,
            f64(1, 2, 5),
            outputs=2,
            of=(0, 1),
            linear_before_reset=linear,
            direction=direction,
        )
        for linear in (0, 1)
        for direction in ("forward", "reverse")
    ),
    rule(
        "GRU",
        f64(2, 4, 3),
        f64(2, 15, 3),
        f64(2, 15, 5) * 0.4,
        f64(2, 30),
        lens(2, 4),
        layout=1,
        direction="bidirectional",
        outputs=2,
        of=(0, 1),
    ),
    rule(
        "LSTM",
        f64(4, 2, 3),
        f64(1, 20, 3),
        f64(1, 20, 5) * 0.4,
        f64(1, 40),
        outputs=3,
        of=(0, 1, 2),
    ),
    rule(
        "LSTM",
        f64(4, 2, 3),
        f64(2, 20, 3),
        f64(2, 20, 5) * 0.4,
        f64(2, 40),
        lens(4, 2),
        f64(2, 2, 5),
        f64(2, 2, 5),
        f64(2, 15),
        direction="bidirectional",
        outputs=3,
        of=(0, 1, 2),
    ),
    rule(
        "LSTM",
        f64(2, 4, 3),
        f64(1, 20, 3),
        f64(1, 20, 5) * 0.4,
        None,
        None,
        f64(2, 1, 5),
        layout=1,
        direction="reverse",
        input_forget=1,
        outputs=3,
        of=(0, 2),
    ),
    rule("LSTM", f64(3, 2, 3), f64(1, 20, 3), f64(1, 20, 5), clip=0.8, outputs=3, of=(1,)),
]

ATTENTION = [
    rule(
        "Attention",
        f64(2, 3, 8),
        f64(2, 4, 8),
        f64(2, 4, 6),
        q_num_heads=2,
        kv_num_heads=2,
        scale=0.4,
    ),
    rule(
        "Attention", f64(2, 4, 3, 4), f64(2, 2, 3, 4), f64(2, 2, 3, 5), is_causal=1, is_open=False
    ),
    rule(
        "Attention",
        f64(2, 3, 8),
        f64(2, 3, 8),
        f64(2, 3, 8),
        f64(3, 3),
        q_num_heads=4,
        kv_num_heads=4,
        scale=0.3,
        softcap=2.0,
        is_open=False,
    ),
    rule(
        "Attention",
        f64(1, 2, 3, 4),
        f64(1, 2, 3, 4),
        f64(1, 2, 3, 4),
        of([[True, False, True], [False, False, False], [True, True, True]], bool),
        is_open=False,
    ),
]

OTHERS = [
    rule("Dropout", f64(2, 3)),
    rule("Dropout", f64(2, 3), of(0.3, np.float64), of(False, bool), fixed=(1, 2), by=(0,)),
    rule("Gelu", f64(2, 3), domain=MS),
    rule("FastGelu", f64(2, 3), f64(3), domain=MS),
    rule("BiasGelu", f64(2, 3), f64(3), domain=MS),
    rule("QuickGelu", f64(2, 3), domain=MS),
    rule("FusedMatMul", f64(3, 2), f64(4, 3), domain=MS, transA=1, transB=1, alpha=0.5),
]

RULES = [
    *ELEMENTWISE,
    *LINEAR,
    *REDUCE,
    *MOVE,
    *IMAGES,
    *NORMALIZE,
    *LOSS,
    *RECURRENT,
    *ATTENTION,
    *OTHERS,
]
