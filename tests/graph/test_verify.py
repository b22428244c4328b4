"""The checker finds every kind of damage; each test breaks one thing by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sardonyx.errors import InternalError
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32, F64, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse

TEXT = """
    in c: bool[]
    in x: f32[B,2]
    const w: f32[2]
    a = Add(x, w)
    r = If(c) { then_branch: { t = Neg(a) out t } else_branch: { u = Abs(x) out u } }
    b = Mul(r, r)
    out b, a
"""


def node(graph: Graph, name: str) -> Node:
    return next(n for n in graph.all_nodes() if n.name == name)


def output(graph: Graph, name: str) -> Value:
    return node(graph, name).outputs[0]


def lose_a_use(g: Graph) -> None:
    output(g, "a").uses.pop()


def stale_use(g: Graph) -> None:
    output(g, "a").uses.append((node(g, "b"), 0))


def double_use(g: Graph) -> None:
    value = g.inputs[1]
    value.uses.append(value.uses[0])


def use_by_a_removed_node(g: Graph) -> None:
    g.set_outputs([output(g, "a")])
    del g.nodes[node(g, "b")]


def wrong_index(g: Graph) -> None:
    output(g, "b").index = 1


def wrong_maker(g: Graph) -> None:
    output(g, "b").node = node(g, "a")


def wrong_graph(g: Graph) -> None:
    node(g, "b").graph = Graph()


def wrong_owner(g: Graph) -> None:
    node(g, "r").attrs["then_branch"].owner = node(g, "a")


def body_twice(g: Graph) -> None:
    attrs = node(g, "r").attrs
    attrs["else_branch"] = attrs["then_branch"]


def made_twice(g: Graph) -> None:
    other = node(g, "b")
    other.outputs = (*other.outputs, output(g, "a"))


def input_with_a_node(g: Graph) -> None:
    g.inputs.append(output(g, "a"))


def constant_input(g: Graph) -> None:
    g.inputs.append(constant(ArrayConst(np.zeros(2, np.float32))))


def default_of_no_input(g: Graph) -> None:
    g.defaults[output(g, "a")] = ArrayConst(np.zeros(2, np.float32))


def constant_with_a_node(g: Graph) -> None:
    output(g, "b").fact = constant(ArrayConst(np.zeros(2, np.float32))).fact


def from_nowhere(g: Graph) -> None:
    g.set_input(node(g, "b"), 0, Value("z", Fact(F32, (2,))))


def out_of_a_body(g: Graph) -> None:
    g.set_input(node(g, "b"), 0, output(g, "t"))


def out_of_the_other_branch(g: Graph) -> None:
    inner = node(g, "u")
    inner.graph.set_input(inner, 0, output(g, "t"))


def returned_from_a_body(g: Graph) -> None:
    g.set_outputs([output(g, "t")])


def exits_not_counted(g: Graph) -> None:
    g.outputs = (*g.outputs, output(g, "r"))


def exits_overcounted(g: Graph) -> None:
    output(g, "r").n_exits += 1


def a_shape_declared_of_nothing(g: Graph) -> None:
    g.set_outputs(g.outputs, [None])


def cycle(g: Graph) -> None:
    g.set_input(node(g, "a"), 1, output(g, "b"))


def cycle_through_a_body(g: Graph) -> None:
    inner = node(g, "t")
    inner.graph.set_input(inner, 0, output(g, "b"))


def same_name(g: Graph) -> None:
    output(g, "b").name = "a"


def same_name_in_a_body(g: Graph) -> None:
    output(g, "t").name = "x"


def constant_of_the_same_name(g: Graph) -> None:
    g.set_input(node(g, "b"), 0, constant(ArrayConst(np.zeros(2, np.float32)), "a"))


def no_fact(g: Graph) -> None:
    output(g, "b").fact = None


def another_constant(g: Graph) -> None:
    value = node(g, "a").inputs[1]
    assert value is not None
    value.fact = Fact(F32, (3,), value.const)


def too_many_elements(g: Graph) -> None:
    output(g, "b").fact = Fact(I64, (2,), None, (1, 2, 3))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lose_a_use, "whose uses lack it"),
        (stale_use, "which does not read it"),
        (double_use, "which does not read it"),
        (use_by_a_removed_node, "which does not read it"),
        (wrong_index, "output 0 refers to output 1"),
        (wrong_maker, r"refers to output 0 of a \(Add\)"),
        (wrong_graph, "refers to another graph"),
        (wrong_owner, r"then_branch belongs to a \(Add\)"),
        (body_twice, "is in the graph twice"),
        (made_twice, "two nodes or inputs make"),
        (input_with_a_node, "has another origin too"),
        (constant_input, "is a constant"),
        (default_of_no_input, "is not an input"),
        (constant_with_a_node, "a constant has a node"),
        (from_nowhere, "nothing makes it"),
        (out_of_a_body, "does not enclose its reader"),
        (out_of_the_other_branch, "does not enclose its reader"),
        (returned_from_a_body, "does not enclose its reader"),
        (exits_not_counted, "n_exits of the value is 0, and 1 graphs return it"),
        (exits_overcounted, "n_exits of the value is 1, and 0 graphs return it"),
        (a_shape_declared_of_nothing, "2 outputs and 1 declared shapes"),
        (cycle, "cycle"),
        (cycle_through_a_body, "cycle"),
        (same_name, "two values have the name a"),
        (same_name_in_a_body, "two values have the name x"),
        (constant_of_the_same_name, "two values have the name a"),
        (no_fact, "has no fact"),
        (another_constant, r"of the value is f32\[2\]"),
        (too_many_elements, "3 elements are known"),
    ],
)
def test_damage_is_found(damage: Callable[[Graph], None], match: str) -> None:
    graph = parse(TEXT)
    verify(graph, deep=True)
    damage(graph)
    with pytest.raises(InternalError, match=match):
        verify(graph)


@pytest.mark.parametrize(
    ("fact", "match"),
    [
        (Fact(F64, (2,)), "was f64"),
        (Fact(F32, (5, 2)), ""),
        (Fact(F32, (2,)), r"inferred anew, the value is f32\[B,2\]"),
        (Fact(F32, (5, 3)), "inferred anew"),
    ],
)
def test_facts_that_no_longer_follow_are_found(fact: Fact, match: str) -> None:
    graph = parse(TEXT)
    output(graph, "b").fact = fact
    verify(graph)
    if not match:  # B may be 5
        verify(graph, deep=True)
        return
    with pytest.raises(InternalError, match=match):
        verify(graph, deep=True)
    assert output(graph, "b").fact is fact


def test_a_node_that_no_longer_infers_is_found() -> None:
    graph = parse(TEXT)
    graph.inputs[1].fact = Fact(F32, (7,))
    with pytest.raises(InternalError, match="no longer infers"):
        verify(graph, deep=True)


def test_facts_inside_bodies_are_compared() -> None:
    graph = parse(TEXT)
    output(graph, "t").fact = Fact(F32, (9, 9))
    with pytest.raises(InternalError, match="inferred anew"):
        verify(graph, deep=True)
    assert output(graph, "t").tensor.shape == (9, 9)


def test_a_body_is_checked_with_all_around_it() -> None:
    graph = parse(TEXT)
    verify(node(graph, "r").attrs["then_branch"])
    lose_a_use(graph)
    with pytest.raises(InternalError):
        verify(node(graph, "r").attrs["then_branch"])


def test_branches_may_reuse_names() -> None:
    verify(
        parse("""
            in c: bool[]
            in x: f32[2]
            r = If(c) { then_branch: { t = Neg(x) out t } else_branch: { t = Abs(x) out t } }
            out r
        """)
    )
