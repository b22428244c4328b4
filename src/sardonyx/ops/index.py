"""Which module declares which op: a model imports only the modules that it uses.

Written by tools/make_index.py.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING

_MODULES: Final = {
    (INTERNAL, "attention.cache"): "Append Spans",
    (MICROSOFT, "attention.decoder"): (
        "DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention"
    ),
    (ONNX, "attention.dot_product"): "Attention",
    (PREVIEW, "attention.flex"): "FlexAttention",
    (INTERNAL, "attention.fused"): "Attention Mask",
    (MICROSOFT, "attention.group_query"): "GroupQueryAttention",
    (ONNX, "attention.linear"): "LinearAttention",
    (MICROSOFT, "attention.linear_contrib"): "LinearAttention",
    (MICROSOFT, "attention.multi_head"): "MultiHeadAttention",
    (MICROSOFT, "attention.packed"): (
        "PackedAttention PackedMultiHeadAttention RemovePadding RestorePadding"
    ),
    (MICROSOFT, "attention.paged"): "PagedAttention",
    (MICROSOFT, "attention.projected"): "Attention",
    (MICROSOFT, "attention.quantized"): "QAttention",
    (MICROSOFT, "attention.relative_bias"): "GatedRelativePositionBias RelativePositionBias",
    (ONNX, "attention.rotary"): "RotaryEmbedding",
    (MICROSOFT, "attention.rotary_contrib"): "MRotaryEmbedding RotaryEmbedding",
    (MICROSOFT, "attention.sparse"): "LongformerAttention SparseAttention",
    (INTERNAL, "control.collect"): "Loop",
    (ONNX, "control.standard"): "If Loop Scan SequenceMap",
    (MICROSOFT, "conv.causal_contrib"): "CausalConvWithState",
    (INTERNAL, "conv.channels_last"): "Conv ConvTranspose",
    (INTERNAL, "conv.deform_columns"): "DeformColumns",
    (MICROSOFT, "conv.dynamic_pads"): "ConvTransposeWithDynamicPads",
    (MICROSOFT, "conv.fused"): "FusedConv NhwcConv NhwcFusedConv",
    (ONNX, "conv.standard"): "CausalConvWithState Col2Im Conv ConvTranspose DeformConv",
    (MICROSOFT, "conv.word_embedding"): "WordConvEmbedding",
    (ONNX, "elementwise.activation"): (
        "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Softplus "
        "Softsign SwiGLU Swish ThresholdedRelu"
    ),
    (ONNX, "elementwise.arithmetic"): (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot "
        "BitwiseOr BitwiseXor Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater "
        "GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow "
        "Reciprocal Round Sigmoid Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where Xor"
    ),
    (ONNX, "elementwise.cast"): "BitCast Cast CastLike",
    (INTERNAL, "elementwise.chain"): "Chain",
    (MICROSOFT, "elementwise.gelu"): "BiasGelu FastGelu Gelu QuickGelu",
    (ML, "estimators.linear_svm"): "LinearClassifier LinearRegressor SVMClassifier SVMRegressor",
    (ML, "features.categories"): "CategoryMapper LabelEncoder OneHotEncoder",
    (ML, "features.maps"): "CastMap DictVectorizer ZipMap",
    (ML, "features.scale"): (
        "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer Normalizer Scaler"
    ),
    (ONNX, "gather.standard"): (
        "Compress Gather GatherElements GatherND OneHot ScatterElements ScatterND TensorScatter"
    ),
    (MICROSOFT, "generation.declarations"): "BeamSearch GreedySearch Sampling",
    (MICROSOFT, "generation.tokens"): "BifurcationDetector NGramRepeatBlock",
    (ONNX, "loss.standard"): "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    (MICROSOFT, "matmul.float8"): "GemmFloat8",
    (MICROSOFT, "matmul.fused"): "FusedGemm FusedMatMul FusedMatMulActivation",
    (INTERNAL, "matmul.internal"): "MatMul",
    (MICROSOFT, "matmul.sparse"): "SparseToDenseMatMul",
    (ONNX, "matmul.standard"): "Einsum Gemm MatMul",
    (MICROSOFT, "matrix.contrib"): "CDist DynamicTimeWarping Inverse",
    (ONNX, "matrix.standard"): "Det",
    (MICROSOFT, "moe.quantized"): "QMoE",
    (MICROSOFT, "moe.standard"): "MoE",
    (INTERNAL, "move.copy"): "Copy",
    (ONNX, "move.standard"): (
        "CenterCropPad Concat DepthToSpace Pad ReverseSequence Slice SpaceToDepth Split Tile "
        "Transpose Trilu"
    ),
    (MICROSOFT, "move.unfold"): "UnfoldTensor",
    (MICROSOFT, "nbits.blockwise"): "GatherBlockQuantized MatMulNBits",
    (MICROSOFT, "nbits.bnb4"): "MatMulBnb4",
    (INTERNAL, "nbits.bnb4"): "Bnb4Weights",
    (INTERNAL, "nbits.gather"): "GatherDequantized",
    (INTERNAL, "nbits.internal"): "FusedMatMulNBits MatMulNBits",
    (MICROSOFT, "normalize.embed"): "EmbedLayerNormalization",
    (MICROSOFT, "normalize.group_norm"): "GroupNorm SkipGroupNorm",
    (MICROSOFT, "normalize.hyper_connections"): (
        "BranchwiseRMSNorm EngramGate HyperConnectionPostMix HyperConnectionPreMix"
    ),
    (MICROSOFT, "normalize.quantized_embed"): "QEmbedLayerNormalization",
    (MICROSOFT, "normalize.skip"): "SkipLayerNormalization SkipSimplifiedLayerNormalization",
    (ONNX, "normalize.standard"): (
        "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization "
        "SimplifiedLayerNormalization"
    ),
    (TRAINING, "optimizer"): "Adagrad Adam Momentum",
    (INTERNAL, "pooling.channels_last"): (
        "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool"
    ),
    (MICROSOFT, "pooling.nhwc"): "NhwcMaxPool",
    (ONNX, "pooling.standard"): (
        "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool"
    ),
    (ONNX, "quantize.convert"): "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    (MICROSOFT, "quantize.convert_contrib"): "DequantizeLinear QuantizeLinear",
    (MICROSOFT, "quantize.dynamic"): "DynamicQuantizeMatMul MatMulIntegerToFloat",
    (INTERNAL, "quantize.internal"): "QAdd QConv QLookup QMatMul QMean",
    (ONNX, "quantize.matmul_conv"): "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
    (MICROSOFT, "quantize.qconv_contrib"): "QLinearConv",
    (MICROSOFT, "quantize.qgemm"): "QGemm",
    (MICROSOFT, "quantize.qlinear"): (
        "QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool "
        "QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax "
        "QLinearWhere"
    ),
    (ONNX, "random.standard"): (
        "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform "
        "RandomUniformLike"
    ),
    (GRADIENT, "recurrent.backward"): "GRUGradient LSTMGradient RNNGradient",
    (MICROSOFT, "recurrent.dynamic_quantize"): "DynamicQuantizeLSTM",
    (INTERNAL, "recurrent.qlstm"): "QLSTM",
    (ONNX, "recurrent.standard"): "GRU LSTM RNN",
    (ONNX, "reduce.standard"): (
        "ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
    ),
    (ONNX, "resize.standard"): "Resize",
    (MICROSOFT, "sample.crop_and_resize"): "CropAndResize",
    (ONNX, "sample.grid"): "AffineGrid GridSample",
    (ONNX, "sample.roi"): "MaxRoiPool RoiAlign",
    (ONNX, "select.non_max_suppression"): "NonMaxSuppression",
    (ONNX, "select.standard"): "NonZero TopK Unique",
    (ONNX, "sequence"): (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SplitToSequence"
    ),
    (INTERNAL, "shape.sizes"): "Sizes",
    (ONNX, "shape.standard"): (
        "ConstantOfShape Expand EyeLike Flatten Identity Range Reshape Shape Size Squeeze Unsqueeze"
    ),
    (ONNX, "signal"): ("BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT"),
    (ONNX, "softmax.standard"): "Hardmax LogSoftmax Softmax",
    (ONNX, "text.grams"): "TfIdfVectorizer",
    (ONNX, "text.images"): "ImageDecoder",
    (MICROSOFT, "text.murmur_hash"): "MurmurHash3",
    (ONNX, "text.strings"): "RegexFullMatch StringConcat StringNormalizer StringSplit",
    (MICROSOFT, "text.tokenizer"): "Tokenizer",
    (ML, "trees.ensemble"): "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
}

MODULES: Final[dict[str, list[tuple[str, str]]]] = {}
FAMILIES: Final[dict[str, list[tuple[str, str]]]] = {}  # a family is a module or folder of ops/
for (_domain, _module), _names in _MODULES.items():
    _keys = [(_domain, n) for n in _names.split()]
    MODULES.setdefault(_module, []).extend(_keys)
    FAMILIES.setdefault(_module.partition(".")[0], []).extend(_keys)
