"""Symbolic dims that are resolved during rewriting are substituted everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import sardonyx
from sardonyx.base.stages import Stages
from sardonyx.compile import Options, load_and_lower
from sardonyx.graph.dim import lone_name
from sardonyx.graph.graph import Value
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.load.source import read_model
from sardonyx.ort.enums import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.symbolic_dims import SymbolResolver

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
X = np.arange(160, dtype=np.float32).reshape(40, 4)
# A number that folding knows and inference does not: a chain longer than what inference follows.
LATE = "l0 = Identity(f)" + "".join(f" l{i + 1} = Floor(l{i})" for i in range(40))
LATE += " n = Cast<to=7>(l40)"
NAMED = {
    # How torch.onnx.export writes arange without its optimizer.
    "cast": """z = Cast<to=7>(f0) o = Cast<to=7>(f1) r = Range(z, c, o) i = Unsqueeze(r, ax)
        p = Gather(x, i) y = Shape(p)""",
    "cast like": """z = CastLike(f0, c) o = CastLike(f1, c) r = Range(z, c, o)
        i = Unsqueeze(r, ax) p = Gather(x, i) y = Shape(p)""",
    "known late": f"{LATE} z = Sub(n, n) r = Range(z, n, one) p = Gather(x, r) y = Shape(p)",
    "beside an open size": f"""{LATE} z = Sub(n, n) r = Range(z, n, one) p = Gather<axis=1>(u, r)
        q = Relu(p) s = Shape(q) y = Mul(s, s)""",
    "in a branch": f"""{LATE} z = Sub(n, n) r = Range(z, n, one) p = Gather(x, r)
        t = ReduceSum<keepdims=0>(x) b = Cast<to=9>(t)
        v = If(b) <then_branch = t_ () => (float[a, c] vt) {{ vt = Relu(p) }},
            else_branch = e_ () => (float[a, c] ve) {{ ve = Neg(p) }}>
        y = Shape(v)""",
    "of a branch taken": f"""{LATE} b = Cast<to=9>(n)
        v = If(b) <then_branch = t_ () => (int64[a, c] vt) {{ vt = NonZero(x) }},
            else_branch = e_ () => (int64[a, c] ve) {{ e0 = Neg(x) ve = NonZero(e0) }}>
        w = Neg(v) y = Shape(w)""",
    "as an operand": f"""{LATE} z = Sub(n, n) r = Range(z, n, one) p = Gather(x, r) s = Shape(p)
        m = ReduceProd<keepdims=0>(s) k = Mul(s, m) y = Concat<axis=0>(k, s)""",
}


def sessions(data: bytes) -> list[sardonyx.InferenceSession]:
    found = []
    for level in Level:
        options = sardonyx.SessionOptions()
        options.graph_optimization_level = level
        found.append(sardonyx.InferenceSession(data, options))
    return found


def model(body: str) -> bytes:
    text = f"""g (float[40,4] x, float[B,9] u) => (int64[k] y)
        <float f = {{5.0}}, float f0 = {{0.0}}, float f1 = {{1.0}}, int64 c = {{32}},
        int64 one = {{1}}, int64[1] ax = {{0}}> {{ {body} }}"""
    made: bytes = parser.parse_model(HEAD + text).SerializeToString()
    return made


@pytest.mark.parametrize("body", NAMED.values(), ids=NAMED)
def test_resolved_symbols_are_substituted(body: str) -> None:
    data = model(body)
    feeds: dict[str, Any] = {"x": X, "u": np.ones((3, 9), np.float32)}
    (want,) = onnxruntime.InferenceSession(data).run(None, feeds)
    for session in sessions(data):
        for more in ((), (sardonyx.RunOptions(),)):
            (got,) = session.run(None, feeds, *more)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("body", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("level", Level)
def test_every_symbol_is_defined(body: str, level: Level) -> None:
    options = Options(providers=(), passes=PassOptions(level=level))
    made = load_and_lower(
        read_model(model(body), None, False, False), options, Stages(lambda: None)
    )
    verify(made.graph)


def test_guards_are_substituted() -> None:
    """A Range turns out to have five elements; what is added to it must have as many."""
    data = model(
        f"""{LATE} z = Sub(n, n) r = Range(z, n, one) nz = NonZero(u) k = Gather(nz, one)
        y = Add(r, k)"""
    )
    rows = np.zeros((1, 9), np.float32)
    for session in sessions(data):
        for more in ((), (sardonyx.RunOptions(),)):
            rows[:] = [[1] * 5 + [0] * 4]
            assert session.run(None, {"x": X, "u": rows}, *more)[0].tolist() == [0, 2, 4, 6, 8]
            rows[:] = [[1] * 7 + [0] * 2]
            with pytest.raises(sardonyx.errors.InvalidArgument):
                session.run(None, {"x": X, "u": rows}, *more)


def test_only_the_defining_output_resolves_a_symbol() -> None:
    """A later value may have a name's size known for a reason of its own, under a guard."""
    graph = parse("in x: f32[40] a = NonZero(x) b = Neg(a) out b")
    (value,) = graph.outputs
    old = value.tensor
    names = SymbolResolver(graph)
    value.fact = old.shaped((1, 7))
    names.refined(value, old, iter(()))
    assert names.resolved == {}


def test_a_replacing_value_resolves_symbols() -> None:
    graph = parse("in x: f32[40] a = NonZero(x) b = Neg(a) out b")
    (old,) = next(iter(graph.nodes)).outputs
    name = lone_name(old.tensor.dims[1])
    assert name is not None
    names = SymbolResolver(graph)
    names.replaced(old, Value("", old.tensor.shaped((1, 12))))
    assert names.resolved == {name: 12}
    assert [str(v.fact) for v in names.substitute()] == ["i64[1,12]", "i64[1,12]"]
