"""Which family lowers which op; families are imported when a model has one of their ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Final

import sardonyx._native as native
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT, ML, ONNX
from sardonyx.ops.elementwise.chain import ELEMENTWISE
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
    "conv": (
        (INTERNAL, "Conv"),
        (INTERNAL, "ConvTranspose"),
        (INTERNAL, "DeformColumns"),
        (ONNX, "Col2Im"),
    ),
    "elementwise": (
        (INTERNAL, "Chain"),
        *ELEMENTWISE,
    ),
    "estimators": (
        (ML, "LinearClassifier"),
        (ML, "LinearRegressor"),
        (ML, "SVMClassifier"),
        (ML, "SVMRegressor"),
    ),
    "features": (
        (ML, "ArrayFeatureExtractor"),
        (ML, "Binarizer"),
        (ML, "CategoryMapper"),
        (ML, "FeatureVectorizer"),
        (ML, "Imputer"),
        (ML, "LabelEncoder"),
        (ML, "Normalizer"),
        (ML, "OneHotEncoder"),
        (ML, "Scaler"),
        (ML, "ZipMap"),
    ),
    "gather": (
        (ONNX, "Compress"),
        (ONNX, "Gather"),
        (ONNX, "GatherElements"),
        (ONNX, "GatherND"),
        (ONNX, "OneHot"),
        (ONNX, "ScatterElements"),
        (ONNX, "ScatterND"),
        (ONNX, "TensorScatter"),
    ),
    "matmul": (
        (INTERNAL, "MatMul"),
        (ONNX, "MatMul"),
    ),
    "moe": (
        (MICROSOFT, "MoE"),
        (MICROSOFT, "QMoE"),
    ),
    "move": (
        (ONNX, "CenterCropPad"),
        (ONNX, "Concat"),
        (ONNX, "DepthToSpace"),
        (ONNX, "Pad"),
        (ONNX, "ReverseSequence"),
        (ONNX, "Slice"),
        (ONNX, "SpaceToDepth"),
        (ONNX, "Split"),
        (ONNX, "Tile"),
        (ONNX, "Transpose"),
        (ONNX, "Trilu"),
    ),
    "nbits": (
        (INTERNAL, "GatherDequantized"),
        (INTERNAL, "MatMulNBits"),
    ),
    "normalize": (
        (MICROSOFT, "SkipLayerNormalization"),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"),
        (ONNX, "BatchNormalization"),
        (ONNX, "GroupNormalization"),
        (ONNX, "InstanceNormalization"),
        (ONNX, "LRN"),
        (ONNX, "LayerNormalization"),
        (ONNX, "LpNormalization"),
        (ONNX, "MeanVarianceNormalization"),
        (ONNX, "RMSNormalization"),
        (ONNX, "SimplifiedLayerNormalization"),
    ),
    "pooling": (
        (INTERNAL, "AveragePool"),
        (INTERNAL, "GlobalAveragePool"),
        (INTERNAL, "GlobalLpPool"),
        (INTERNAL, "GlobalMaxPool"),
        (INTERNAL, "LpPool"),
        (INTERNAL, "MaxPool"),
    ),
    "quantize": (
        (INTERNAL, "QAdd"),
        (INTERNAL, "QConv"),
        (INTERNAL, "QLookup"),
        (INTERNAL, "QMatMul"),
        (INTERNAL, "QMean"),
        (MICROSOFT, "MatMulIntegerToFloat"),
        (ONNX, "DequantizeLinear"),
        (ONNX, "DynamicQuantizeLinear"),
        (ONNX, "MatMulInteger"),
        (ONNX, "QLinearMatMul"),
        (ONNX, "QuantizeLinear"),
    ),
    "recurrent": (
        (INTERNAL, "QLSTM"),
        (ONNX, "GRU"),
        (ONNX, "LSTM"),
        (ONNX, "RNN"),
    ),
    "reduce": (
        (ONNX, "ArgMax"),
        (ONNX, "ArgMin"),
        (ONNX, "CumProd"),
        (ONNX, "CumSum"),
        (ONNX, "ReduceL1"),
        (ONNX, "ReduceL2"),
        (ONNX, "ReduceLogSum"),
        (ONNX, "ReduceLogSumExp"),
        (ONNX, "ReduceMax"),
        (ONNX, "ReduceMean"),
        (ONNX, "ReduceMin"),
        (ONNX, "ReduceProd"),
        (ONNX, "ReduceSum"),
        (ONNX, "ReduceSumSquare"),
    ),
    "resize": ((ONNX, "Resize"),),
    "sample": (
        (ONNX, "AffineGrid"),
        (ONNX, "GridSample"),
        (ONNX, "MaxRoiPool"),
        (ONNX, "RoiAlign"),
    ),
    "select": (
        (ONNX, "NonMaxSuppression"),
        (ONNX, "NonZero"),
        (ONNX, "TopK"),
    ),
    "shape": (
        (INTERNAL, "Sizes"),
        (ONNX, "ConstantOfShape"),
        (ONNX, "Expand"),
        (ONNX, "EyeLike"),
        (ONNX, "Flatten"),
        (ONNX, "Identity"),
        (ONNX, "Range"),
        (ONNX, "Reshape"),
        (ONNX, "Shape"),
        (ONNX, "Size"),
        (ONNX, "Squeeze"),
        (ONNX, "Unsqueeze"),
    ),
    "signal": (
        (ONNX, "BlackmanWindow"),
        (ONNX, "DFT"),
        (ONNX, "HammingWindow"),
        (ONNX, "HannWindow"),
        (ONNX, "MelWeightMatrix"),
        (ONNX, "STFT"),
    ),
    "softmax": (
        (ONNX, "Hardmax"),
        (ONNX, "LogSoftmax"),
        (ONNX, "Softmax"),
    ),
    "text": (
        (MICROSOFT, "MurmurHash3"),
        (ONNX, "TfIdfVectorizer"),
    ),
    "trees": (
        (ML, "TreeEnsemble"),
        (ML, "TreeEnsembleClassifier"),
        (ML, "TreeEnsembleRegressor"),
    ),
}
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
