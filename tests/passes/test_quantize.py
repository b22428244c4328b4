"""Quantized models: which ops run on 8-bit tensors, which do not, and that results stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.passes import PassOptions, lower, optimize
from tests.graphs import random_feeds, run_graph

IMAGE = """
    in x: f32[2,4,6,6]
    const w: i8[5,4,3,3]
    const s: f32[5]
    const b: i32[5]
    q = QuantizeLinear(x, 0.02, 3:i8)
    d = DequantizeLinear(q, 0.02, 3:i8)
    dw = DequantizeLinear(w, 0.01, 0:i8)
    db = DequantizeLinear(b, 0.0002, 0:i32)
"""
ROWS = """
    in x: f32[3,8]
    const w: i8[8,6]
    const v: i8[6,8]
    q = QuantizeLinear(x, 0.02, 128:u8)
    d = DequantizeLinear(q, 0.02, 128:u8)
    dw = DequantizeLinear(w, 0.01, 0:i8)
    dv = DequantizeLinear(v, 0.01, 0:i8)
"""


def lowered(text: str, step: float) -> Graph:
    """The graph of a text as kernels see it, which computes the same up to a step."""
    before, after = parse(text), parse(text)
    optimize(after, PassOptions())
    lower(after, PassOptions())
    verify(after)
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        assert want.dtype == got.dtype
        assert want.shape == got.shape
        np.testing.assert_allclose(got.astype(float), want.astype(float), atol=step, rtol=1e-5)
    return after


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op.name for n in graph.nodes if n.op.name != "Transpose")


STEPS = {
    "conv": (
        IMAGE,
        "c = Conv(d, dw, db, pads=[1,1,1,1])\ny = QuantizeLinear(c, 0.05, 7:u8)",
        {"QuantizeLinear": 1, "QConv": 1},
    ),
    "conv, relu": (
        IMAGE,
        "c = Conv(d, dw)\nr = Relu(c)\ny = QuantizeLinear(r, 0.05, -100:i8)",
        {"QuantizeLinear": 1, "QConv": 1},
    ),
    "conv, clip": (
        IMAGE,
        "c = Conv(d, dw)\nr = Clip(c, 0.5, 6.0)\ny = QuantizeLinear(r, 0.05, 0:u8)",
        {"QuantizeLinear": 1, "QConv": 1},
    ),
    "conv with a scale for each map": (
        IMAGE,
        "e = DequantizeLinear(w, s, axis=0)\nc = Conv(d, e)\ny = QuantizeLinear(c, 0.5, 7:u8)",
        {"QuantizeLinear": 1, "QConv": 1},
    ),
    "gemm": (
        ROWS,
        "c = Gemm(d, dv, transB=1)\ny = QuantizeLinear(c, 0.05, 7:u8)",
        {"QuantizeLinear": 1, "QMatMul": 1},
    ),
    "matmul": (
        ROWS,
        "c = MatMul(d, dw)\ny = QuantizeLinear(c, 0.05, 7:u8)",
        {"QuantizeLinear": 1, "QMatMul": 1},
    ),
    "sum": (
        IMAGE,
        (
            "e = QuantizeLinear(x, 0.03, 1:i8)\nf = DequantizeLinear(e, 0.03, 1:i8)\n"
            "c = Add(d, f)\nr = Relu(c)\ny = QuantizeLinear(r, 0.05, -128:i8)"
        ),
        {"QuantizeLinear": 2, "QAdd": 1},
    ),
    "sum that broadcasts": (
        IMAGE,
        (
            "e = QuantizeLinear(x, 0.03, 1:i8)\nf = DequantizeLinear(e, 0.03, 1:i8)\n"
            "g = Slice(f, [0], [1], [1])\nh = QuantizeLinear(g, 0.03, 1:i8)\n"
            "i = DequantizeLinear(h, 0.03, 1:i8)\nc = Add(d, i)\ny = QuantizeLinear(c, 0.05, 7:u8)"
        ),
        {"QuantizeLinear": 2, "Chain": 1, "Slice": 1, "QAdd": 1},
    ),
    "mean": (
        IMAGE,
        "c = GlobalAveragePool(d)\ny = QuantizeLinear(c, 0.01, 0:i8)",
        {"QuantizeLinear": 1, "QMean": 1},
    ),
    "mean, then flat": (
        IMAGE,
        ("c = ReduceMean(d, [2, 3])\nf = Reshape(c, [2, 4])\ny = QuantizeLinear(f, 0.01, 0:i8)"),
        {"QuantizeLinear": 1, "QMean": 1, "Reshape": 1},
    ),
    "max": (
        IMAGE,
        "c = MaxPool(d, kernel_shape=[2,2])\ny = QuantizeLinear(c, 0.02, 3:i8)",
        {"QuantizeLinear": 1, "MaxPool": 1},
    ),
    "moved": (
        IMAGE,
        "c = Transpose(d, perm=[0,2,1,3])\ny = QuantizeLinear(c, 0.02, 3:i8)",
        {"QuantizeLinear": 1},
    ),
    "joined": (
        IMAGE,
        "c = Concat(d, d, axis=1)\ny = QuantizeLinear(c, 0.02, 3:i8)",
        {"QuantizeLinear": 1, "Concat": 1},
    ),
}


BYTES = """
    in x: u8[7,99]
    in z: u8[99]
    in s: f32[]
    d = DequantizeLinear(x, 0.02, 128:u8)
    e = DequantizeLinear(x, s, 128:u8)
    f = DequantizeLinear(z, 0.03, 1:u8)
"""
STEPS |= {
    "a table": (BYTES, "a = Tanh(d)\ny = QuantizeLinear(a, 0.01, 100:u8)", {"QLookup": 1}),
    "a table of signed bytes": (
        BYTES,
        "a = Mul(d, d)\nb = Sigmoid(a)\ny = QuantizeLinear(b, 0.01, -100:i8)",
        {"QLookup": 1},
    ),
    "a table whose scale is known when it runs": (
        BYTES,
        "a = Tanh(e)\ny = QuantizeLinear(a, s, 100:u8)",
        {"QLookup": 1, "Chain": 1},
    ),
    "joined with other steps": (
        BYTES,
        (
            "in v: u8[5,99]\ng = DequantizeLinear(v, 0.03, 1:u8)\n"
            "c = Concat(d, g, d, axis=0)\ny = QuantizeLinear(c, 0.02, 128:u8)"
        ),
        {"QLookup": 1, "Concat": 1},
    ),
    "chosen": (
        BYTES,
        (
            "t = Greater(x, z)\ng = DequantizeLinear(z, 0.02, 128:u8)\n"
            "c = Where(t, d, g)\ny = QuantizeLinear(c, 0.02, 128:u8)"
        ),
        {"Chain": 1},
    ),
    "two operands": (
        BYTES,
        "a = Mul(d, f)\ny = QuantizeLinear(a, 0.05, 128:u8)",
        {"Chain": 1, "DequantizeLinear": 1},
    ),
    "several scales": (
        BYTES,
        "const w: f32[99]\na = Tanh(d)\ny = QuantizeLinear(a, w, axis=1)",
        {"Chain": 1, "QuantizeLinear": 1},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_quantized_results(name: str) -> None:
    given, rest, wanted = STEPS[name]
    assert ops(lowered(f"{given}\n{rest}\nout y", 1)) == wanted


FLOATS = {
    "conv": (IMAGE, "y = Conv(d, dw, db)", {"QuantizeLinear": 1, "QConv": 1}),
    "matmul": (ROWS, "y = MatMul(d, dw)", {"QuantizeLinear": 1, "QMatMul": 1}),
    "dynamic": (
        "in x: f32[3,8]\nconst w: i8[8,6]\nconst b: f32[6]\n",
        (
            "q, s, z = DynamicQuantizeLinear(x)\np = MatMulInteger(q, w, z)\nc = Cast(p, to=1)\n"
            "f = Mul(s, 0.01)\nm = Mul(c, f)\ny = Add(m, b)"
        ),
        {"DynamicQuantizeLinear": 1, "QMatMul": 1},
    ),
    "dynamic convolution": (
        "in x: f32[2,4,6,6]\nconst w: i8[5,4,3,3]\nconst b: f32[5]\n",
        (
            "q, s, z = DynamicQuantizeLinear(x)\np = ConvInteger(q, w, z)\nc = Cast(p, to=1)\n"
            "f = Mul(s, 0.01)\nm = Mul(c, f)\nr = Reshape(b, [1, 5, 1, 1])\ny = Add(m, r)"
        ),
        {"DynamicQuantizeLinear": 1, "QConv": 1, "Mul": 1},
    ),
    "dynamic convolution with a bias of whole numbers": (
        "in x: f32[2,4,6,6]\nin b: i32[5]\nconst w: i8[5,4,3,3]\n",
        (
            "q, s, z = DynamicQuantizeLinear(x)\np = ConvInteger(q, w, z)\n"
            "r = Reshape(b, [1, 5, 1, 1])\na = Add(p, r)\nc = Cast(a, to=1)\n"
            "f = Mul(s, 0.01)\ny = Mul(c, f)"
        ),
        {"DynamicQuantizeLinear": 1, "QConv": 1, "Mul": 1},
    ),
    "dynamic of com.microsoft": (
        "in x: f32[3,8]\nconst w: i8[8,6]\nconst b: f32[6]\n",
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, 0.01, _, b)",
        {"DynamicQuantizeLinear": 1, "QMatMul": 1},
    ),
}


@pytest.mark.parametrize("name", FLOATS)
def test_float_results(name: str) -> None:
    given, rest, wanted = FLOATS[name]
    assert ops(lowered(f"{given}\n{rest}\nout y", 1e-4)) == wanted


KEPT = {
    "conv, seen by others": (
        IMAGE,
        "c = Conv(d, dw)\ny = QuantizeLinear(c, 0.05, 7:u8)\nz = Neg(c)\nout z",
        "QuantizeLinear",
        2,
    ),
    "scales along another axis": (
        ROWS,
        (
            "e = DequantizeLinear(w, [0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3], axis=0)\n"
            "c = MatMul(d, e)\ny = QuantizeLinear(c, 0.05, 7:u8)"
        ),
        "MatMulNBits",
        1,
    ),
    "max into other steps": (
        IMAGE,
        "c = MaxPool(d, kernel_shape=[2,2])\ny = QuantizeLinear(c, 0.03, 3:i8)",
        "Chain",
        1,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_not_rewritten(name: str) -> None:
    given, rest, op, count = KEPT[name]
    assert ops(lowered(f"{given}\n{rest}\nout y", 1))[op] == count


def test_consecutive_convolutions_stay_in_nhwc() -> None:
    text = f"""{IMAGE}
        const u: i8[5,1,3,3]
        du = DequantizeLinear(u, 0.03, 0:i8)
        c = Conv(d, dw, db, pads=[1,1,1,1])
        e = QuantizeLinear(c, 0.05, 7:u8)
        f = DequantizeLinear(e, 0.05, 7:u8)
        g = Conv(f, du, group=5)
        h = QuantizeLinear(g, 0.05, 9:u8)
        y = DequantizeLinear(h, 0.05, 9:u8)
        out y
    """
    graph = lowered(text, 0.11)
    assert sum(n.op.name == "Transpose" for n in graph.nodes) == 2
    assert all(n.attrs["channels_last"] for n in graph.nodes if n.op.name == "QConv")


def test_a_bias_is_added_where_nothing_else_is_quantized() -> None:
    """Products of bytes that come from outside are all that says that there are integers."""
    graph = parse("""
        in x: u8[3,8]
        const w: i8[8,6]
        const c: f32[6]
        sums = MatMulInteger(x, w)
        wide = Cast(sums, to=1)
        scaled = Mul(wide, 0.01)
        y = Add(scaled, c)
        out y
    """)
    lower(graph, PassOptions())
    assert [node.op.name for node in graph.nodes] == ["QMatMul"]
