"""The text form: what is written is read back, and mistakes name their line."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import Array, ArrayConst, Const
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import symbol
from sardonyx.graph.dtype import F32, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse, parse_size, show
from sardonyx.ops.builder import Builder

ROUND_TRIPS = [
    """\
in x: f32[B,8]
a = Div(x, 1.4142135)
e = Erf(a)
s = Add(e, 1.0)
h = Mul(x, 0.5)
y = Mul(h, s)
out y
""",
    """\
in x: f16[2*B + 1,div(N, 2),'odd name']
y = Max(x, inf, [-1.0], -inf)
out y, x
""",
    """\
in x: f32[?]
in s: seq(f32[?])
in o: optional(seq(i64[2,N]))
in m: map(str, f32[])
in d: f32[2] = [1.0, 2.5]
y = Clip(x, _, 3.0)
out y, s, o, m, d
""",
    """\
in x: f32[2,3]
const k: i64[2] = [3, -1]
y = Reshape(x, k, allowzero=1)
z = Reshape(y, [6])
w = Cast(z, to=f16)
out w
""",
    """\
in "a/b:0": f32[4]
in "in": f32[4]
"out\\"put" = Add("a/b:0", "in")
out "out\\"put"
""",
    """\
in x: f32[2,3,4]
v, _ = TopK(x, [1], axis=1, largest=0)
p = Pow(v, 2:i32)
out p
""",
    """\
in x: f32[2,3]
y = ConstantOfShape([2, 2], value=[7]:i32)
g = com.microsoft.Gelu(x)
r = BitShift([1, 2]:u8, [1]:u8, direction="LEFT")
out y, g, r
""",
    """\
in x: f32[B,4]
a, b = Split(x, [1, 3], axis=1)
t = Transpose(a, perm=[1, 0])
out t, b
""",
    """\
in c: bool[]
in x: f32[B,2]
const big: f32[40]  # generated
a = Neg(x)
r = If(c) {
  then_branch: {
    const inner: f32[] = 2.0
    t = Mul(a, inner)
    out t
  }
  else_branch: {
    t = Add(x, 1.0)
    out t
  }
}
s = ReduceSum(big)
out r, s
""",
    """\
in n: i64[]
in x: f32[2]
y, ys = Loop(n, _, x) {
  body: {
    in i: i64[]
    in keep: bool[]
    in h: f32[2]
    h2 = Add(h, x)
    out keep, h2, h
  }
}
out y, ys
""",
    """\
in x: str[3]
y = StringConcat(x, ["a", "b\\n", "\\xe9"])
z = StringConcat(y, "lone":str)
out z
""",
]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_round_trip(text: str) -> None:
    graph = parse(text)
    verify(graph, deep=True)
    assert show(graph) == text
    assert show(parse(show(graph, facts=True))) == text


def test_lines_and_spaces_mean_nothing() -> None:
    spread = parse("""
        in c :bool[ ]   # a condition
        in x: f32[B , 2]
        r = If ( c ) { then_branch : { out x } else_branch : {
           t=Neg(x)  out t } }
        out r
    """)
    tight = parse(
        "in c:bool[] in x:f32[B,2] r=If(c){then_branch:{out x}else_branch:{t=Neg(x)out t}}out r"
    )
    assert show(spread) == show(tight)


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("in x: f16[2] y = Add(x, 1) out y", ["f16"]),
        ("in x: i32[2] y = Add(1, x) out y", ["i32"]),
        ("in x: f64[2,3] y = Reshape(x, [3, 2]) out y", ["i64"]),
        ("in x: f64[2,3] y = Gather(x, 1) out y", ["i64"]),
        ("in x: f64[2,3] y = Pow(x, 2) out y", ["f64"]),
        ("in x: i64[2] y = Expand(1.5, x) out y", ["f32"]),
        ("in x: f32[2] y = Add(x, 1:f32) out y", ["f32"]),
        ("y = Not([true, false]) out y", ["bool"]),
        ("in x: f32[2] y, m = Dropout(x, 0.5, true) out y", ["f32", "bool"]),
    ],
)
def test_types_of_literals(text: str, dtypes: list[str]) -> None:
    (node,) = parse(text).nodes
    found = [v.const.dtype.name for v in node.inputs if v is not None and v.const is not None]
    assert found == dtypes


@pytest.mark.parametrize(
    ("text", "line", "match"),
    [
        ("in x: f32[2]\ny = Relu(z)\nout y", 2, "nothing before this is called z"),
        ("in x: f32[2]\nin x: f32[2]", 2, "x is defined twice"),
        ("in x: f32[2]\n\n# note\nx = Relu(x)", 4, "x is defined twice"),
        ("in x: f32[2]\ny = Relux(x)", 2, "there is no op Relux"),
        ("in x: f33[2]", 1, "a type is expected here, not f33"),
        ("in x: f32[2", 1, "] is expected here, not the end"),
        ("in x: f32[-2]", 1, "never negative: -2"),
        ("in x: f32[2 +]", 1, "a size is expected here, not ]"),
        ("in x: f32[B // 0]", 1, "divided by 0"),
        ("in x: f32[2]\ny = Relu(x, alpha=1)", 2, "Relu has no attribute alpha"),
        ("in x: f32[2]\ny = Elu(x, alpha=1, alpha=2)", 2, "Elu has no attribute alpha left"),
        ("in x: f32[2]\ny = Elu(x, alpha=[1])", 2, "alpha must be of kind float"),
        ("in x: f32[2]\ny = Softmax(x, axis=0.5)", 2, "axis must be of kind int"),
        ("in x: f32[2]\ny = Elu(alpha=1, x)", 2, "inputs stand before attributes"),
        ("in x: u8[2]\ny = BitShift(x, x)", 2, "BitShift needs the attribute direction"),
        ("in x: i64[2]\ny = Add(x, 1.5)", 2, "1.5 does not fit i64"),
        ("in x: u8[2]\ny = Add(x, 300)", 2, "300 is not a tensor of u8"),
        ("in x: f32[2]\ny = Add(x, [[1, 2], [3]])", 2, "is not a tensor of f32"),
        ("in x: f32[2]\ny = Add(x, 1:f31)", 2, "a type is expected here, not f31"),
        ("const w: f32[B]", 1, "tensor of numbers for dims"),
        ("const w: f32[2] = [1, 2, 3]", 1, r"is f32\[2\], and has \[3\]"),
        ("const w: f32[65536,65536]", 1, "too many"),
        ("in c: bool[]\nr = If(c) { when: { } }", 2, "If has no body when"),
        ("in c: bool[]\nr = If(c) { then_branch: {\nout c", 3, "} is missing"),
        ("in x: f32[2]\ny = Relu(x) $", 2, "not part of a graph"),
        ("in x: f32[2]\ny = Add(x, x) z", 2, ", is expected|= is expected"),
        ("in x: f32[2]\ny =\n Add(x, [1, 2, 3])", 2, "2 and 3"),
        ('in x: str[1]\ny = StringConcat(x, "\\q\\N{x}":str)', 2, "is not a string"),
    ],
)
def test_mistakes_name_their_line(text: str, line: int, match: str) -> None:
    with pytest.raises(InvalidGraph, match=match) as caught:
        parse(text)
    assert caught.value.where["line"] == str(line)


def test_inputs_of_bodies_need_no_type() -> None:
    graph = parse("""
        in n: i64[]
        in x: f32[B]
        y = Loop(n, _, x) { body: { in i in keep in h t = Neg(h) out keep, t } }
        out y
    """)
    verify(graph, deep=True)
    assert str(graph.outputs[0].fact).startswith("f32")


def test_values_without_names_are_named() -> None:
    graph = Graph()
    graph.inputs = [Value("v0", Fact(F32, (symbol("B"),)))]
    b = Builder(graph, graph.scope)
    graph.set_outputs([b.Neg(b.Abs(graph.inputs[0]))])
    assert show(graph) == "in v0: f32[B]\nv1 = Abs(v0)\nv2 = Neg(v1)\nout v2\n"


def test_values_of_equal_names_are_distinguished() -> None:
    graph = parse("in x: f32[2] a = Abs(x) b = Neg(a) out b")
    for node in graph.nodes:
        node.outputs[0].name = "x"
    text = show(graph)
    assert show(parse(text)) == text
    assert text.count("x") > 3


def test_large_constants_are_generated_deterministically() -> None:
    first, again, other = (
        parse(f"const {name}: f32[8,4] y = Neg({name}) out y") for name in ("w", "w", "v")
    )
    held = [_constant(g).read() for g in (first, again, other)]
    assert np.array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


def _constant(graph: Graph) -> Const:
    (const,) = [v.const for n in graph.nodes for v in n.inputs if v is not None and v.is_const]
    assert const is not None
    return const


FLOATS = ["f2", "f4", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn]
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def tensors() -> st.SearchStrategy[Array]:
    shapes = arrays.array_shapes(min_dims=0, max_dims=2, max_side=3)
    floats = arrays.arrays(np.dtype("f8"), shapes)
    digits = arrays.arrays(np.dtype("i1"), shapes, elements=st.integers(-8, 7))
    return st.one_of(
        st.builds(np.ndarray.astype, floats, st.sampled_from(FLOATS)),
        st.builds(np.ndarray.astype, digits, st.just(ml_dtypes.int4)),
        *(arrays.arrays(np.dtype(t), shapes) for t in INTEGERS),
        arrays.arrays(np.dtype("?"), shapes),
    )


@given(array=tensors())
@pytest.mark.filterwarnings("ignore:overflow")
def test_literals_keep_every_bit(array: Array) -> None:
    graph = Graph()
    b = Builder(graph, graph.scope)
    graph.set_outputs([b.Identity(constant(ArrayConst(array)))])
    read = _constant(parse(show(graph))).read()
    assert by_numpy(read.dtype) is by_numpy(array.dtype)
    assert read.shape == array.shape
    both_nan = (read != read) & (array != array)
    assert np.all((read == array) | both_nan)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("B*2+1", "2*B + 1"),
        ("(B+1)*(B-1)", "B*B - 1"),
        ("-B + 2*B", "B"),
        ("B // 2 % 3", "mod(div(B, 2), 3)"),
        ("max(A, B) - min(A, B)", "max(A, B) - min(A, B)"),
        ("max", "max"),
        ("'a b' * 2", "2*'a b'"),
        ('"it\'s"', '"it\'s"'),
        ("n#3 + 1", "n#3 + 1"),
        ("7", "7"),
    ],
)
def test_sizes(text: str, shown: str) -> None:
    assert str(parse_size(text)) == shown
    assert parse_size(shown) == parse_size(text)
