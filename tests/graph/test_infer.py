"""The inference driver: arity, types, unknown ranks, known elements, and where errors point."""

from __future__ import annotations

import pytest

from sardonyx.errors import InvalidGraph, SardonyxError, ShapeError
from sardonyx.graph.fact import Fact
from sardonyx.graph.infer import infer
from sardonyx.load.graph_text import parse


def outputs(text: str) -> list[str]:
    return [str(v.fact) for v in parse(text).outputs]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("in x: f32[B,1] in y: f32[N] z = Add(x, y) out z", ["f32[B,N]"]),
        ("in x: f32[B,3] in y: f32[N,3] z = Add(x, y) out z", ["f32[B,3]"]),
        ("in x: f32[?] y = Relu(x) out y", ["f32[?]"]),
        ("in x: f32[?] in y: f32[2] z = Add(x, y) out z", ["f32[?]"]),
        ("in x: f32[?] in y: f32[2] z = Less(x, y) out z", ["bool[?]"]),
        ("in x: f32[B,3] s = Shape(x) out s", ["i64[2]"]),
        ("in x: f32[B,4] s = Shape(x) y = Reshape(x, s) out y", ["f32[B,4]"]),
        ("in x: f32[B,4] y = Reshape(x, [-1, 2]) out y", ["f32[2*B,2]"]),
        (
            """
            in x: f32[B,4]
            s = Shape(x)
            b = Gather(s, [0])
            c = Concat(b, [2, -1], axis=0)
            y = Reshape(x, c)
            out y
            """,
            ["f32[B,2,2]"],
        ),
        (
            "in x: f32[B,4] s = Shape(x) d = Mul(s, 2) t = Expand(1.0, d) out t",
            ["f32[2*B,8]"],
        ),
    ],
)
def test_facts(text: str, facts: list[str]) -> None:
    assert outputs(text) == facts


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("in x: f32[2] y = Add(x) out y", InvalidGraph, "Add takes 2 inputs, not 1"),
        ("in x: f32[2] y = Add(x, x, x) out y", InvalidGraph, "not 3"),
        ("in x: f32[2] y = Add(x, _) out y", InvalidGraph, "input b of Add is missing"),
        ("in x: f32[2] in y: f64[2] z = Add(x, y) out z", ShapeError, "b is f64, another is f32"),
        ("in x: f32[2] y = Not(x) out y", ShapeError, "x of Not is f32; supported types: bool"),
        ("in x: f32[2] y = Not(x) out y", ShapeError, r"tensor\(float\). of operator \(Not\)"),
        ("in x: seq(f32[2]) y = Relu(x) out y", ShapeError, "must be a tensor, got seq"),
        ("in x: f32[2] a, b = Relu(x) out a", InvalidGraph, "names 2"),
        ("in x: f32[2] in y: f32[3] z = Add(x, y) out z", ShapeError, "2 and 3"),
    ],
)
def test_errors(text: str, error: type[SardonyxError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        parse(text)
    said = str(caught.value)
    assert "node" in said
    assert "inputs" in said
    assert "stage  infer" in said


def test_elements_wrap_where_the_type_does() -> None:
    """Elements that overflow int64 wrap around, as those of the tensor do."""
    graph = parse("in x: f32[B] a = Mul([1099511627776], [1099511627776]) out a")
    assert graph.outputs[0].tensor.sym == (0,)


def test_long_symbolic_elements_are_dropped() -> None:
    lines = ["in x: f32[A,B]", "s0 = Shape(x)"]
    lines += [f"s{i + 1} = Mul(s{i}, s{i})" for i in range(40)]
    graph = parse("\n".join([*lines, "out s1, s40"]))
    early, late = (v.fact for v in graph.outputs)
    assert isinstance(early, Fact)
    assert isinstance(late, Fact)
    assert early.sym is not None
    assert late.sym is None


def test_sizes_that_may_differ_broadcast() -> None:
    graph = parse("in x: f32[B,3] in y: f32[N,3] z = Add(x, y) out z")
    infer(graph, assumes=False)
    assert str(graph.outputs[0].fact) == "f32[broadcast(B, N),3]"


def test_guards_name_their_node() -> None:
    graph = parse("in x: f32[B,3] in y: f32[N,3] z = Add(x, y) out z")
    (guard,) = graph.scope.guards
    assert guard.node is graph.outputs[0].node
    assert guard.symbols == {"B", "N"}
