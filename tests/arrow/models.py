"""Small models that score rows."""

from __future__ import annotations

import onnx.parser


def model(body: str) -> bytes:
    """The bytes of a model in ONNX's text form."""
    header = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>'
    return onnx.parser.parse_model(header + body).SerializeToString()


SUM = model(
    "g (float[n, 3] x) => (float[n] y) { y = ReduceSum<keepdims=0>(x, one) }".replace(
        "{ y", "<int64[1] one = {1}> { y"
    )
)
DOUBLE = model(
    "g (float[n] a, int64[n] b) => (float[n] c, int64[n, 2] d) <int64[1] one = {1}> {"
    "  c = Add(a, a)  u = Unsqueeze(b, one)  d = Concat<axis=1>(u, u) }"
)
IMAGE = model("g (uint8[n, 2, 3] x) => (uint8[n, 3, 2] y) { y = Transpose<perm=[0, 2, 1]>(x) }")
TOKENS = model(
    "g (int64[n, s] ids) => (int64[n, s] same, int64[n] length) <int64[1] one = {1}> {"
    "  same = Identity(ids)  length = ReduceSum<keepdims=0>(ids, one) }"
)
TEXT = model("g (string[n, 1] s) => (string[n, 1] t) { t = Identity(s) }")
FOUR = model("g (float[4, 2] x) => (float[4, 2] y) { y = Neg(x) }")
LABELS = model(
    "g (int64[n, 2] x) => (seq(map(int64, float)) y) {"
    "  f = Cast<to=1>(x)  y = ai.onnx.ml.ZipMap<classlabels_int64s=[5, 7]>(f) }"
)
CONSTANT = model("g (float[n] x, float scale) => (float[n] y) { y = Mul(x, scale) }")
WHOLE = model(
    "g (float[n] x) => (float y, float[n] z) {  y = ReduceSum<keepdims=0>(x)  z = Neg(x) }"
)
