"""Cases of layers: images, normalizations, losses, recurrent layers, attention."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f64, i64, of
from tests.train.gradient_cases import MS, apart, lens, pos, rule

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
    rule(
        "Conv",
        f64(1, 2, 7, 6),
        f64(2, 1, 3, 2),
        group=2,
        pads=[0, 1, 1, 2],
        strides=[2, 3],
        dilations=[1, 2],
    ),
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
    *(
        rule(
            "ConvTranspose", f64(1, 2, 4, 5), f64(2, 3, 3, 2), strides=[2, 3], is_open=False, **size
        )
        for size in (
            {"auto_pad": "SAME_UPPER"},
            {"auto_pad": "SAME_LOWER"},
            {"output_shape": [7, 13]},
            {"output_shape": [10, 16]},
            {"output_shape": [8, 15], "auto_pad": "SAME_UPPER", "output_padding": [1, 0]},
        )
    ),
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
    rule("AveragePool", f64(2, 2, 5, 7), kernel_shape=[2, 3], strides=[2, 3]),
    rule("AveragePool", f64(2, 3, 4, 4), kernel_shape=[4, 4], is_open=False),
    *(
        rule("AveragePool", f64(1, 2, 4, 5), kernel_shape=k, strides=k, ceil_mode=1, is_open=False)
        for k in ([9, 9], [3, 2], [2, 9])
    ),
    rule("GlobalAveragePool", f64(2, 3, 4, 5)),
    rule("GlobalMaxPool", apart(2, 3, 4, 5)),
    *(rule("GlobalLpPool", apart(2, 3, 4, 5), p=p) for p in (1, 2, 3)),
    *(
        rule("LpPool", apart(2, 2, 6, 5), kernel_shape=[3, 2], p=p, **window)
        for p in (1, 2, 3)
        for window in ({}, {"strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1})
    ),
    rule("LpPool", apart(1, 2, 7), kernel_shape=[3], dilations=[2]),
    rule("LpPool", apart(1, 2, 7), kernel_shape=[3], auto_pad="SAME_UPPER", is_open=False),
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
    *(rule("LpNormalization", apart(2, 3, 4), p=p, axis=axis) for p in (1, 2) for axis in (-1, 1)),
    *(rule("LRN", f64(2, 5, 3, 2), size=size, alpha=0.3, beta=0.6) for size in (1, 2, 3, 7)),
    rule("LRN", f64(2, 4), size=3, bias=2.0),
    rule("MeanVarianceNormalization", f64(2, 3, 4, 2)),
    rule("MeanVarianceNormalization", f64(2, 3, 4), axes=[-1]),
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
    rule(
        "Attention",
        f64(2, 3, 4, 8),
        f64(2, 3, 6, 8),
        f64(2, 3, 6, 5),
        f64(4, 11),
        f64(2, 3, 7, 8),
        f64(2, 3, 7, 5),
        is_causal=1,
        outputs=3,
        of=(0, 1, 2),
        is_open=False,
    ),
    rule(
        "Attention",
        f64(2, 3, 4, 8),
        f64(2, 3, 6, 8),
        f64(2, 3, 6, 5),
        None,
        None,
        None,
        of([5, 4], np.int64),
        left_window_size=2,
        is_causal=1,
        is_open=False,
    ),
    *(
        rule(
            "Attention",
            f64(1, 2, 3, 4),
            f64(1, 2, 3, 4),
            f64(1, 2, 3, 4),
            qk_matmul_output_mode=mode,
            softcap=2.0,
            outputs=4,
            of=(0, 3),
            is_open=False,
        )
        for mode in range(4)
    ),
]

OTHERS = [
    rule("Dropout", f64(2, 3)),
    rule("Dropout", f64(2, 3), of(0.3, np.float64), of(False, bool), fixed=(1, 2), by=(0,)),
    rule("Gelu", f64(2, 3), domain=MS),
    rule("FastGelu", f64(2, 3), f64(3), domain=MS),
    rule("BiasGelu", f64(2, 3), f64(3), domain=MS),
    rule("QuickGelu", f64(2, 3), domain=MS),
    rule("SwiGLU", f64(2, 3), f64(2, 3), alpha=1.7),
    rule(
        "FusedConv",
        f64(2, 3, 5, 6),
        f64(4, 3, 3, 2),
        f64(4),
        f64(2, 4, 3, 5),
        domain=MS,
        activation="LeakyRelu",
        activation_params=[0.2],
        weights=(1, 2),
    ),
    rule(
        "FusedConv",
        apart(1, 2, 4, 4),
        f64(2, 2, 1, 1),
        domain=MS,
        activation="Clip",
        activation_params=[-0.6, 0.7],
        weights=(1,),
    ),
    rule("NhwcConv", f64(2, 5, 6, 3), f64(4, 3, 3, 2), f64(4), domain=MS, weights=(1, 2)),
    rule("FusedMatMul", f64(3, 2), f64(4, 3), domain=MS, transA=1, transB=1, alpha=0.5),
]

RULES = [*IMAGES, *NORMALIZE, *LOSS, *RECURRENT, *ATTENTION, *OTHERS]
