"""Which family lowers which op; families are imported when a model has one of their ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Final

import sardonyx._native as native
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT, ML, ONNX
from sardonyx.ops.chain import ELEMENTWISE
from sardonyx.place.lowered import Lowered
from sardonyx.place.provider import No

Lowering = Callable[[Node], Lowered | No]
MULTIPLIES_BF16: Final = native.multiplies_bf16

# Each family is a module here with a table LOWERINGS: (domain, op) -> Lowering.
FAMILIES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "attention": (
        (INTERNAL, "Append"),
        (INTERNAL, "Attention"),
        (INTERNAL, "Spans"),
        (MICROSOFT, "LinearAttention"),
        (MICROSOFT, "RotaryEmbedding"),
        (ONNX, "LinearAttention"),
        (ONNX, "RotaryEmbedding"),
    ),
    "categories": (
        (ML, "CategoryMapper"),
        (ML, "LabelEncoder"),
        (ML, "OneHotEncoder"),
        (ML, "ZipMap"),
    ),
    "chain": (*ELEMENTWISE, (INTERNAL, "Chain")),
    "conv": (("", "Col2Im"), (INTERNAL, "Conv"), (INTERNAL, "ConvTranspose")),
    "dequantized": ((INTERNAL, "GatherDequantized"),),
    "experts": ((MICROSOFT, "MoE"), (MICROSOFT, "QMoE"),),
    "gather": (
        ("", "Gather"), ("", "GatherElements"), ("", "GatherND"), ("", "ScatterElements"),
        ("", "ScatterND"), ("", "TensorScatter"), ("", "OneHot"), ("", "Compress"),
    ),
    "gemm": (("", "MatMul"), ("sardonyx", "MatMul")),
    "linear_ml": (
        (ML, "ArrayFeatureExtractor"),
        (ML, "Binarizer"),
        (ML, "FeatureVectorizer"),
        (ML, "Imputer"),
        (ML, "LinearClassifier"),
        (ML, "LinearRegressor"),
        (ML, "Normalizer"),
        (ML, "SVMClassifier"),
        (ML, "SVMRegressor"),
        (ML, "Scaler"),
    ),
    "move": (
        ("", "Transpose"), ("", "Concat"), ("", "Split"), ("", "Slice"), ("", "Tile"), ("", "Pad"),
        ("", "CenterCropPad"), ("", "DepthToSpace"), ("", "SpaceToDepth"),
        ("", "ReverseSequence"), ("", "Trilu"),
    ),
    "nbits": ((INTERNAL, "MatMulNBits"),),
    "normalize": (
        ("", "BatchNormalization"),
        ("", "GroupNormalization"),
        ("", "InstanceNormalization"),
        ("", "LayerNormalization"),
        ("", "LpNormalization"),
        ("", "LRN"),
        ("", "MeanVarianceNormalization"),
        ("", "RMSNormalization"),
        ("", "SimplifiedLayerNormalization"),
        ("com.microsoft", "SkipLayerNormalization"),
        ("com.microsoft", "SkipSimplifiedLayerNormalization"),
    ),
    "pool": (
        (INTERNAL, "MaxPool"),
        (INTERNAL, "AveragePool"),
        (INTERNAL, "LpPool"),
        (INTERNAL, "GlobalMaxPool"),
        (INTERNAL, "GlobalAveragePool"),
        (INTERNAL, "GlobalLpPool"),
    ),
    "qgemm": (
        (INTERNAL, "QAdd"),
        (INTERNAL, "QConv"),
        (INTERNAL, "QMatMul"),
        (INTERNAL, "QMean"),
        (MICROSOFT, "MatMulIntegerToFloat"),
        (ONNX, "MatMulInteger"),
        (ONNX, "QLinearMatMul"),
    ),
    "quantize": (
        (INTERNAL, "QLookup"),
        (ONNX, "DequantizeLinear"),
        (ONNX, "DynamicQuantizeLinear"),
        (ONNX, "QuantizeLinear"),
    ),
    "recurrent": (("", "GRU"), ("", "LSTM"), ("", "RNN"), (INTERNAL, "QLSTM")),
    "reduce": (
        ("", "ArgMax"),
        ("", "ArgMin"),
        ("", "CumProd"),
        ("", "CumSum"),
        ("", "ReduceL1"),
        ("", "ReduceL2"),
        ("", "ReduceLogSum"),
        ("", "ReduceLogSumExp"),
        ("", "ReduceMax"),
        ("", "ReduceMean"),
        ("", "ReduceMin"),
        ("", "ReduceProd"),
        ("", "ReduceSum"),
        ("", "ReduceSumSquare"),
    ),
    "resize": (("", "Resize"),),
    "sample": (
        (INTERNAL, "DeformColumns"),
        ("", "AffineGrid"),
        ("", "GridSample"),
        ("", "MaxRoiPool"),
        ("", "RoiAlign"),
    ),
    "select": (("", "NonMaxSuppression"), ("", "NonZero"), ("", "TopK")),
    "shape": (
        (INTERNAL, "Sizes"), ("", "Shape"), ("", "Size"), ("", "Reshape"), ("", "Flatten"),
        ("", "Squeeze"), ("", "Unsqueeze"), ("", "Identity"), ("", "Expand"),
        ("", "ConstantOfShape"), ("", "EyeLike"), ("", "Range"),
    ),
    "signal": (
        ("", "BlackmanWindow"),
        ("", "DFT"),
        ("", "HammingWindow"),
        ("", "HannWindow"),
        ("", "MelWeightMatrix"),
        ("", "STFT"),
    ),
    "softmax": (("", "Hardmax"), ("", "LogSoftmax"), ("", "Softmax")),
    "text": (("", "TfIdfVectorizer"), (MICROSOFT, "MurmurHash3")),
    "trees": (
        (ML, "TreeEnsemble"),
        (ML, "TreeEnsembleClassifier"),
        (ML, "TreeEnsembleRegressor"),
    ),
}  # fmt: skip
_FAMILY_OF: Final = {key: family for family, keys in FAMILIES.items() for key in keys}


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op are lowered; None for ops without kernels."""
    family = _FAMILY_OF.get(key)
    if family is None:
        return None
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    made: Lowering = module.LOWERINGS[key]
    return made


def text_lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op that have to do with strings are lowered; None for ops without kernels."""
    from sardonyx.providers.cpu.text import TEXT_LOWERINGS  # few models have strings

    return TEXT_LOWERINGS.get(key)
