"""Which family declares which op: a model imports only the families that it uses."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING

_FAMILIES: Final = {
    (ONNX, "elementwise"): "Abs Neg Ceil Floor Round Sign Sqrt Exp Log Reciprocal Sin Cos Tan Asin "
    "Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Sigmoid Not BitwiseNot Add Sub Mul Div Mod And "
    "Or Xor BitwiseAnd BitwiseOr BitwiseXor Equal Greater Less GreaterOrEqual LessOrEqual Max Min "
    "Sum Mean Pow BitShift IsNaN IsInf Where Clip",
    (ONNX, "activation"): "Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid HardSwish Softplus "
    "Softsign ThresholdedRelu Shrink Mish Swish Gelu SwiGLU",
    (ONNX, "softmax"): "Softmax LogSoftmax Hardmax",
    (ONNX, "cast"): "Cast CastLike BitCast",
    (ONNX, "reduce"): "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin CumSum CumProd",
    (ONNX, "linear"): "MatMul Gemm Einsum Det",
    (ONNX, "conv"): "Conv ConvTranspose DeformConv Col2Im CausalConvWithState",
    (ONNX, "pool"): "MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool "
    "MaxUnpool",
    (ONNX, "roi"): "MaxRoiPool RoiAlign NonMaxSuppression",
    (ONNX, "normalize"): "BatchNormalization InstanceNormalization GroupNormalization "
    "LayerNormalization RMSNormalization LpNormalization LRN MeanVarianceNormalization "
    "SimplifiedLayerNormalization",
    (ONNX, "shape"): "Shape Size Reshape Flatten Squeeze Unsqueeze Identity Expand ConstantOfShape "
    "EyeLike Range",
    (ONNX, "move"): "Transpose Concat Split Slice Tile Pad DepthToSpace SpaceToDepth "
    "ReverseSequence Trilu CenterCropPad",
    (ONNX, "gather"): "Gather GatherElements GatherND ScatterElements ScatterND TensorScatter "
    "OneHot Compress",
    (ONNX, "select"): "TopK NonZero Unique",
    (ONNX, "resize"): "Resize GridSample AffineGrid",
    (ONNX, "attention"): "Attention RotaryEmbedding LinearAttention",
    (ONNX, "recurrent"): "RNN GRU LSTM",
    (ONNX, "quantize"): "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearMatMul "
    "QLinearConv ConvInteger MatMulInteger",
    (ONNX, "signal"): "DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix",
    (ONNX, "random"): "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli "
    "Multinomial Dropout",
    (ONNX, "loss"): "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    (ONNX, "control"): "If Loop Scan SequenceMap",
    (ONNX, "sequence"): "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
    "SequenceLength SplitToSequence ConcatFromSequence Optional OptionalGetElement "
    "OptionalHasElement",
    (ONNX, "text"): "StringConcat StringSplit StringNormalizer RegexFullMatch TfIdfVectorizer "
    "ImageDecoder",
    (ML, "trees"): "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    (ML, "estimators"): "LinearClassifier LinearRegressor SVMClassifier SVMRegressor",
    (ML, "features"): "ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer "
    "FeatureVectorizer Imputer LabelEncoder Normalizer OneHotEncoder Scaler ZipMap",
    (PREVIEW, "attention"): "FlexAttention",
    (TRAINING, "optimizer"): "Adagrad Adam Momentum",
    (MICROSOFT, "microsoft.bnb4"): "MatMulBnb4",
    (INTERNAL, "microsoft.bnb4"): "Bnb4Weights",
    (MICROSOFT, "microsoft.convert"): "DequantizeLinear QuantizeLinear",
    (MICROSOFT, "microsoft.decoder"): "DecoderAttention DecoderMaskedMultiHeadAttention "
    "DecoderMaskedSelfAttention",
    (MICROSOFT, "microsoft.embed"): "EmbedLayerNormalization",
    (MICROSOFT, "microsoft.fused"): "FusedConv FusedGemm FusedMatMul FusedMatMulActivation "
    "NhwcConv NhwcFusedConv",
    (MICROSOFT, "microsoft.gemm8"): "GemmFloat8",
    (MICROSOFT, "microsoft.generation"): "BeamSearch GreedySearch Sampling",
    (MICROSOFT, "microsoft.group_norm"): "GroupNorm SkipGroupNorm",
    (MICROSOFT, "microsoft.gelu"): "Gelu FastGelu BiasGelu QuickGelu",
    (MICROSOFT, "microsoft.hashing"): "MurmurHash3",
    (MICROSOFT, "microsoft.image"): "ConvTransposeWithDynamicPads CropAndResize UnfoldTensor",
    (MICROSOFT, "microsoft.matrix"): "CDist DynamicTimeWarping Inverse",
    (MICROSOFT, "microsoft.moe"): "MoE",
    (MICROSOFT, "microsoft.packed"): "PackedAttention PackedMultiHeadAttention RemovePadding "
    "RestorePadding",
    (MICROSOFT, "microsoft.paged"): "PagedAttention",
    (MICROSOFT, "microsoft.relative"): "GatedRelativePositionBias RelativePositionBias",
    (MICROSOFT, "microsoft.sparse"): "LongformerAttention SparseAttention",
    (MICROSOFT, "microsoft.recurrence"): "CausalConvWithState LinearAttention",
    (MICROSOFT, "microsoft.skip"): "SkipLayerNormalization SkipSimplifiedLayerNormalization",
    (MICROSOFT, "microsoft.qbert"): "QAttention QEmbedLayerNormalization",
    (MICROSOFT, "microsoft.qgemm"): "QGemm",
    (MICROSOFT, "microsoft.qimages"): "NhwcMaxPool QLinearConv",
    (MICROSOFT, "microsoft.qlinear"): "QLinearAdd QLinearAveragePool QLinearConcat "
    "QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid "
    "QLinearSoftmax QLinearWhere",
    (MICROSOFT, "microsoft.qmoe"): "QMoE",
    (MICROSOFT, "microsoft.quantized"): "DynamicQuantizeLSTM DynamicQuantizeMatMul "
    "MatMulIntegerToFloat",
    (MICROSOFT, "microsoft.nbits"): "MatMulNBits GatherBlockQuantized",
    (MICROSOFT, "microsoft.tokens"): "BifurcationDetector NGramRepeatBlock WordConvEmbedding",
    (MICROSOFT, "microsoft.tokenizer"): "Tokenizer",
    (MICROSOFT, "microsoft.group_query"): "GroupQueryAttention",
    (MICROSOFT, "microsoft.multi_head"): "MultiHeadAttention",
    (MICROSOFT, "microsoft.projected"): "Attention",
    (MICROSOFT, "microsoft.rotary"): "MRotaryEmbedding RotaryEmbedding",
    (MICROSOFT, "microsoft.sparse_product"): "SparseToDenseMatMul",
    (MICROSOFT, "microsoft.streams"): "BranchwiseRMSNorm EngramGate HyperConnectionPostMix "
    "HyperConnectionPreMix",
    (GRADIENT, "recurrent_gradient"): "RNNGradient GRUGradient LSTMGradient",
    (INTERNAL, "caches"): "Append Spans",
    (INTERNAL, "chain"): "Chain",
    (INTERNAL, "channels"): "Conv ConvTranspose MaxPool AveragePool LpPool GlobalMaxPool "
    "GlobalAveragePool GlobalLpPool",
    (INTERNAL, "collect"): "Loop",
    (INTERNAL, "deform"): "DeformColumns",
    (INTERNAL, "dequantized"): "GatherDequantized",
    (INTERNAL, "fused_attention"): "Attention Mask",
    (INTERNAL, "internal"): "Copy Sizes",
    (INTERNAL, "nbits"): "FewBits MatMulNBits",
    (INTERNAL, "product"): "MatMul",
    (INTERNAL, "qlstm"): "QLSTM",
    (INTERNAL, "qproducts"): "QAdd QConv QLookup QMatMul QMean",
}  # fmt: skip

FAMILIES: Final[dict[str, list[tuple[str, str]]]] = {}
for (_domain, _family), _names in _FAMILIES.items():
    FAMILIES.setdefault(_family, []).extend((_domain, n) for n in _names.split())
