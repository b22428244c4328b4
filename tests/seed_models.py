"""Small valid models that together use most of the ONNX format: the corpus of the fuzz tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.generation.models import gpt
from tests.generation.models import model as searching

WEIGHTS = "weights.bin"  # the file that the model of `external` names
WEIGHT_BYTES = np.linspace(-1, 1, 12, dtype=np.float32).tobytes()


def _constants(model: onnx.ModelProto, **arrays: Any) -> onnx.ModelProto:
    """The model with constants of types that the text form cannot write."""
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def bodies() -> onnx.ModelProto:
    """If, Loop and Scan, whose bodies read values from outside."""
    return onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    bodies (float[N, 3] x, int64 times, bool which)
      => (float[M, 3] y, float[N, 3] last, float[3] total)
    <float[3] w = {1, 2, 3}, bool go = {1}, float[3] zero = {0, 0, 0}> {
      a = If (which) <
        then_branch = yes () => (float[P, 3] t) { t = Add(x, w) },
        else_branch = no () => (float[Q, 3] e) { e = Mul(x, w) } >
      last, each = Loop (times, go, a) <body = step (int64 i, bool c, float[R, 3] v) =>
        (bool next, float[S, 3] u, float[T, 3] out) {
          next = Identity(c)
          u = Sub(v, w)
          out = Relu(u)
        } >
      rows = Constant<value = int64[2] {-1, 3}>()
      y = Reshape(each, rows)
      total, sums = Scan<num_scan_inputs = 1, body = add (float[3] s, float[3] row) =>
        (float[3] n, float[3] o) {
          n = Add(s, row)
          o = Mul(n, w)
        }> (zero, y)
    }""")


def ranks() -> onnx.ModelProto:
    """Ranks that rest on sizes and on data, and sequences that a loop fills."""
    return onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 21]>
    ranks (float[N, M] x, int64 times, bool which) => (float[A] y, float[B] u, float[P, Q] joined)
    <int64[1] one = {1}, int64[1] zero = {0}, int64 two = {2}, int64 first = {0},
     int64[1] flat = {-1}, float weight = {0.5}> {
      m = Shape<start = 1>(x)
      thin = Equal(m, one)
      open = If (thin) <
        then_branch = yes () => (float[P0] a) { a = Squeeze(x, one) },
        else_branch = no () => (float[P1, P2] b) { b = Identity(x) } >
      y = Reshape(open, flat)
      v = If (which) <
        then_branch = grow () => (float[P3, P4, P5] c) { c = Unsqueeze(x, zero) },
        else_branch = keep () => (float[P6, P7] d) { d = Neg(x) } >
      sums = ReduceSum<keepdims = 0>(v, zero)
      u = Reshape(sums, flat)
      count = Add(times, two)
      none = SequenceEmpty()
      w, s = Loop (count, , weight, none) <body = step (int64 i, bool on, float k, seq(float[]) f)
        => (bool next, float l, seq(float[]) g) {
          next = Identity(on)
          l = Identity(k)
          part = Mul(x, k)
          g = SequenceInsert(f, part)
        } >
      all = ConcatFromSequence<axis = 1>(s)
      parts = SplitToSequence<axis = 0>(all, two)
      head = SequenceAt(parts, first)
      joined = Mul(head, w)
    }""")


def functions() -> onnx.ModelProto:
    """Functions that call functions, with attributes and inputs left out."""
    return onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    functions (float[N, 4] x) => (float[N, 4] y) {
      h = own.scaled <alpha: float = 0.5> (x)
      y = own.twice (h)
    }
    <domain: "own", opset_import: ["" : 21]>
    scaled <alpha: float = 1.0> (a, b) => (c) {
      s = Constant <value_float: float = @alpha> ()
      t = Mul(a, s)
      c = LeakyRelu <alpha: float = @alpha> (t)
    }
    <domain: "own", opset_import: ["" : 21, "own" : 1]>
    twice (a) => (c) {
      b = own.scaled <alpha = 2.0> (a)
      c = own.scaled (b)
    }""")


def external() -> onnx.ModelProto:
    """A matrix product whose weights are in a file of their own."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", "0"), ("length", str(len(WEIGHT_BYTES)))):
        weight.external_data.add(key=key, value=value)
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    external (float[N, 4] x) => (float[N, 3] y) {
      m = MatMul(x, w)
      y = Softmax<axis = -1>(m)
    }""")
    model.graph.initializer.append(weight)
    return model


def old() -> onnx.ModelProto:
    """Ops whose attributes have become inputs since."""
    return onnx.parser.parse_model("""
    <ir_version: 3, opset_import: ["" : 7]>
    old (float[2, 3, 4, 4] x, float[3] scale, float[3] shift, float[3] mean, float[3] var)
      => (float[2, 48, 4] y, float[2, 1] top)
    <float[3] scale = {1, 1, 1}, float[3] shift = {0, 0, 0}, float[3] mean = {0, 1, 2},
     float[3] var = {1, 1, 1}> {
      b = BatchNormalization<epsilon = 0.001>(x, scale, shift, mean, var)
      d = Dropout<ratio = 0.5>(b)
      u = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]>(d)
      p = Pad<pads = [0, 0, 0, 0, 0, 0, 0, 0], value = 1.0>(u)
      s = Slice<axes = [2, 3], starts = [0, 0], ends = [8, 8]>(p)
      shape = Constant<value = int64[3] {2, 48, 4}>()
      y = Reshape(s, shape)
      c = Clip<min = -1.0, max = 1.0>(y)
      f = Flatten<axis = 1>(c)
      top, at = TopK<k = 1>(f)
    }""")


def strings() -> onnx.ModelProto:
    """Text: normalized, split, looked up, matched."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
    strings (string[N] words)
      => (string[A, B] parts, int64[N] ids, bool[N] match, float[C] grams, string[N] both) {
      small = StringNormalizer<case_change_action = "LOWER", stopwords = ["the"]>(words)
      parts, counts = StringSplit<delimiter = "-", maxsplit = 2>(small)
      ids = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2],
        default_int64 = -1>(words)
      match = RegexFullMatch<pattern = "(a|b)+">(words)
      both = StringConcat(words, tail)
      grams = TfIdfVectorizer<max_gram_length = 2, max_skip_count = 1, min_gram_length = 1,
        mode = "TF", ngram_counts = [0, 2], ngram_indexes = [0, 1, 2],
        pool_int64s = [1, 2, 1, 2]>(ids)
    }""")
    return _constants(model, tail=np.array(["!"], object))


def quantized() -> onnx.ModelProto:
    """Weights of 4 bits in blocks, and a product of 8-bit integers."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    quantized (float[N, 8] x) => (float[N, 4] y, uint8[N, 4] z) {
      w = DequantizeLinear<axis = 0, block_size = 4>(packed, scales, zeros)
      y = MatMul(x, w)
      q, s, o = DynamicQuantizeLinear(x)
      i = MatMulInteger(q, b, o)
      f = Cast<to = 1>(i)
      z = QuantizeLinear(f, s, o)
    }""")
    return _constants(
        model,
        packed=(np.arange(32).reshape(8, 4) % 15 - 7).astype(ml_dtypes.int4),
        scales=np.full((2, 4), 0.5, np.float32),
        zeros=np.zeros((2, 4), ml_dtypes.int4),
        b=np.arange(32, dtype=np.uint8).reshape(8, 4),
    )


def trees() -> onnx.ModelProto:
    """Two trees in the old form, then labels and probabilities as a map."""
    return onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 15, "ai.onnx.ml" : 3]>
    trees (float[N, 3] x) => (string[N] label, seq(map(string, float)) probabilities) {
      v = ai.onnx.ml.Imputer<imputed_value_floats = [0.0], replaced_value_float = -1.0>(x)
      n = ai.onnx.ml.Scaler<offset = [0.0, 1.0, 2.0], scale = [1.0, 0.5, 2.0]>(v)
      label, scores = ai.onnx.ml.TreeEnsembleClassifier<
        class_ids = [0, 1, 0, 1], class_nodeids = [1, 2, 1, 2], class_treeids = [0, 0, 1, 1],
        class_weights = [1.0, 0.5, 0.25, 2.0], classlabels_strings = ["no", "yes"],
        nodes_falsenodeids = [2, 0, 0, 2, 0, 0], nodes_featureids = [0, 0, 0, 2, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        nodes_nodeids = [0, 1, 2, 0, 1, 2], nodes_treeids = [0, 0, 0, 1, 1, 1],
        nodes_truenodeids = [1, 0, 0, 1, 0, 0], nodes_values = [0.5, 0.0, 0.0, -1.0, 0.0, 0.0],
        post_transform = "SOFTMAX">(n)
      probabilities = ai.onnx.ml.ZipMap<classlabels_strings = ["no", "yes"]>(scores)
    }""")


def images() -> onnx.ModelProto:
    """A small convolutional network that ends in a resize and a crop."""
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    images (float[N, 2, 8, 8] x) => (float[N, 3, H, W] y, float[N, 3, 1, 1] g)
    <int64[4] sizes = {1, 3, 6, 6}, int64[4] pads = {0, 0, 1, 1}, float[4] scales = {1, 1, 2, 2}> {
      c = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 1>(x, w)
      p = MaxPool<kernel_shape = [2, 2], strides = [1, 1], ceil_mode = 1>(c)
      t = ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(p, v)
      r = Resize<mode = "cubic", coordinate_transformation_mode = "half_pixel">(t, , scales)
      g = GlobalAveragePool(r)
      d = DepthToSpace<blocksize = 1>(r)
      y = CenterCropPad<axes = [2, 3]>(d, size)
    }""")
    weights = np.linspace(-1, 1, 54, dtype=np.float32).reshape(3, 2, 3, 3)
    deconv = np.ones((3, 3, 2, 2), np.float32)
    return _constants(model, w=weights, v=deconv, size=np.array([5, 7]))


def sizes() -> onnx.ModelProto:
    """Arithmetic on shapes, and tensors made from sizes alone."""
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    sizes (float[B, S, 6] x, int64[2] more)
      => (float[D0, D1, 3, 2] y, int64[R] r, float[E0, E1] e, float[T0, T1] o)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[2] tail = {3, 2},
     int64[1] end = {2}, float[2] onoff = {0, 1}, int64 depth = {4}> {
      all = Shape(x)
      lead = Slice(all, first, end)
      target = Concat<axis = 0>(lead, tail)
      y = Reshape(x, target)
      n = Gather(all, one)
      r = Range(zero, n, one)
      z = ConstantOfShape<value = float[1] {2}>(more)
      e = Tile(z, more)
      k = OneHot<axis = -1>(more, depth, onoff)
      grown = Expand(k, tail_one)
      o = Pad(grown, pads)
    }""")
    return _constants(model, tail_one=np.array([2, 2, 4]), pads=np.array([0, 0, 0, 1, 1, 0]))


def sequences() -> onnx.ModelProto:
    """Lists and optional values."""
    return onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    sequences (float[N, 4] x) => (float[M, 2] y, int64 n, float[N, 4] z)
    <int64 two = {2}, int64 one = {1}> {
      s = SplitToSequence<axis = 1>(x, two)
      e = SequenceErase(s, one)
      i = SequenceInsert(e, x, one)
      n = SequenceLength(i)
      z = SequenceAt(i, one)
      y = ConcatFromSequence<axis = 0>(s)
      opt = Optional(x)
      has = OptionalHasElement(opt)
      got = OptionalGetElement(opt)
    }""")


def tokens() -> onnx.ModelProto:
    """Attention, recurrence and the ops around them."""
    model = onnx.parser.parse_model("""
    <ir_version: 11, opset_import: ["" : 23]>
    tokens (int64[B, S] ids) => (float[B, S, 4] y, float[S, 1, B, 3] rnn) {
      h = Gather<axis = 0>(table, ids)
      n = LayerNormalization<axis = -1>(h, gain)
      a = Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>(n, n, n)
      y = Add(a, h)
      t = Transpose<perm = [1, 0, 2]>(y)
      rnn, hidden, cell = LSTM<hidden_size = 3>(t, w, r)
      c = Einsum<equation = "bsi,bsj->bij">(h, h)
      sum = ReduceSum<keepdims = 0>(c, axes)
    }""")
    return _constants(
        model,
        table=np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4),
        gain=np.ones(4, np.float32),
        w=np.full((1, 12, 4), 0.1, np.float32),
        r=np.full((1, 12, 3), 0.2, np.float32),
        axes=np.array([1, -1]),
    )


def patterns() -> onnx.ModelProto:
    """Text cut by expressions, cast, made unique, and looked up in the result."""
    return onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    patterns (string[N] lines, float[M] x)
      => (string[A, B] words, string[C, D] parts, string[E] once, bool[N] match, float[M] back) {
      words = com.microsoft.Tokenizer<mark = 1, mincharnum = 1, pad_value = "#",
        tokenexp = "[a-z]+|[^a-z]{1,3}">(lines)
      parts = com.microsoft.Tokenizer<mark = 0, mincharnum = 2, pad_value = "",
        separators = [" ", "-+"]>(lines)
      once, first, places, counts = Unique<axis = 0>(lines)
      match = RegexFullMatch<pattern = "(a|b)*c?">(lines)
      text = Cast<to = 8>(x)
      back = Cast<to = 1>(text)
    }""")


def waves() -> onnx.ModelProto:
    """Spectra, and pictures read between their pixels."""
    return onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    waves (float[N, 32, 1] signal, float[1, 2, 6, 6] picture, float[1, 3, 3, 2] grid,
           float[R, 4] regions, int64[R] images)
      => (float[N, F, K, 2] short, float[N, L, 2] whole, float[1, 2, 3, 3] at,
          float[R, 2, 2, 2] cut)
    <float[8] window = {1, 1, 1, 1, 1, 1, 1, 1}, int64 axis = {1}, int64 step = {4},
     int64 length = {16}> {
      short = STFT(signal, step, window)
      whole = DFT(signal, length, axis)
      at = GridSample<mode = "cubic", padding_mode = "reflection">(picture, grid)
      cut = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(
        picture, regions, images)
    }""")


def experts() -> onnx.ModelProto:
    """Quantized layers: a recurrence, sums and products, experts that a router chooses."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    experts (float[T, 4] tokens, float[T, 3] router, float[S, B, 4] steps, int32[B] lengths,
             uint8[P] a)
      => (float[T, 4] y, float[T, 4] z, float[S, 1, B, 2] rnn, uint8[P] sum, uint8[P] curve)
    <float s = {0.1}, uint8 o = {3}, float[1] ws = {0.1}, uint8[1] wo = {3}> {
      y = com.microsoft.MoE<k = 2, activation_type = "silu">(tokens, router, f1, , f2)
      z = com.microsoft.QMoE<k = 1, activation_type = "relu", expert_weight_bits = 4>(
        tokens, router, q1, s1, , q2, s2)
      rnn, last, cell = com.microsoft.DynamicQuantizeLSTM<hidden_size = 2>(
        steps, w, r, , lengths, , , , ws, wo, ws, wo)
      sum = com.microsoft.QLinearAdd(a, s, o, a, s, o, s, o)
      curve = com.microsoft.QLinearSigmoid(a, s, o, s, o)
    }""")
    return _constants(
        model,
        f1=np.linspace(-1, 1, 96, dtype=np.float32).reshape(3, 8, 4),
        f2=np.linspace(1, -1, 96, dtype=np.float32).reshape(3, 4, 8),
        q1=np.arange(48, dtype=np.uint8).reshape(3, 8, 2),
        q2=np.arange(48, dtype=np.uint8).reshape(3, 4, 4),
        s1=np.full((3, 8), 0.1, np.float32),
        s2=np.full((3, 4), 0.1, np.float32),
        w=np.arange(32, dtype=np.uint8).reshape(1, 4, 8),
        r=np.arange(16, dtype=np.uint8).reshape(1, 2, 8),
    )


def searches() -> onnx.ModelProto:
    """Text generation: a decoder with a cache, driven by beams."""
    inputs = ["input_ids", "max_length", "min_length", "num_beams", "num_return_sequences"]
    data = searching("BeamSearch", inputs, ["sequences"], pad_token_id=0, eos_token_id=1,
                     decoder=gpt(1))  # fmt: skip
    numbers = {"max_length": 6, "min_length": 1, "num_beams": 2, "num_return_sequences": 1}
    model = onnx.ModelProto.FromString(data)
    for info in [i for i in model.graph.input if i.name in numbers]:
        model.graph.input.remove(info)
    for _ in range(3):  # batch, sequences of each prompt, length
        model.graph.output[0].type.tensor_type.shape.dim.add()
    return _constants(model, **{n: np.array([v], np.int32) for n, v in numbers.items()})


def fed() -> onnx.ModelProto:
    """Inputs of every kind: lists, optionals, and names that only bodies compare."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    fed (seq(float[2, 3]) list, optional(float[2, 3]) maybe, float[N, 3] x, float[N, 3] y,
         float[A, B] open, bool which, int64 times)
      => (float[2, 4] a, float[2, 3] b, float[P, 3] c, float[Q, R, 3] d, float[A, B] e, int64 n) {
      first = SequenceAt(list, zero)
      a = MatMul(first, w)
      n = SequenceLength(list)
      got = OptionalGetElement(maybe)
      b = Add(got, first)
      c = If (which) <
        then_branch = yes () => (float[P0, 3] t) { t = Add(x, y) },
        else_branch = no () => (float[P1, 3] f) { f = Sub(y, x) } >
      d = Loop (times, go) <body = step (int64 i, bool on) => (bool next, float[S, 3] out) {
          next = Identity(on)
          out = Max(x, y)
        } >
      e = Exp(open)
    }""")
    return _constants(model, w=np.ones((3, 4), np.float32), zero=np.array(0), go=np.array(True))


SEEDS: tuple[Callable[[], onnx.ModelProto], ...] = (
    bodies, ranks, functions, external, old, strings, quantized, trees, images, sizes, sequences,
    tokens, patterns, waves, experts, searches, fed,
)  # fmt: skip


@functools.cache
def seeds() -> tuple[bytes, ...]:
    """All of them, serialized."""
    return tuple(make().SerializeToString() for make in SEEDS)
