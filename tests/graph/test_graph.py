"""Edits of the graph: whatever the order, use lists, exits and nodes stay in step."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sardonyx.errors import InternalError, InvalidGraph
from sardonyx.graph.dtype import BOOL, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, detached
from sardonyx.graph.infer import infer
from sardonyx.graph.op import Op
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse, show
from sardonyx.ops import lookup

ADD = lookup("", "Add")
IF = lookup("", "If")
assert ADD is not None
assert IF is not None


class Edits(RuleBasedStateMachine):
    """Random edits of a graph of additions, some of them in the branches of an If."""

    @initialize()
    def start(self) -> None:
        self.graph = Graph()
        self.graph.inputs = [Value("x", Fact(F32, (2,))), Value("y", Fact(F32, (2,)))]
        self.graph.inputs.append(Value("c", Fact(BOOL, ())))
        self.values = self.graph.inputs[:2]

    def pick(self, number: int, before: int | None = None) -> Value:
        known = self.values[:before]
        return known[number % len(known)]

    def node(self, op: Op, inputs: list[Value], attrs: dict[str, Graph], graph: Graph) -> Node:
        node = graph.add(op, inputs, dict(attrs))
        if not attrs:
            node.outputs[0].fact = Fact(F32, (2,))
        return node

    @rule(a=st.integers(0), b=st.integers(0))
    def add(self, a: int, b: int) -> None:
        assert ADD is not None
        node = self.node(ADD, [self.pick(a), self.pick(b)], {}, self.graph)
        self.values.append(node.outputs[0])

    @rule(a=st.integers(0), b=st.integers(0))
    def branch(self, a: int, b: int) -> None:
        """An If whose branches read outer values, one of them by passing it straight on."""
        assert ADD is not None
        assert IF is not None
        inner, straight = Graph(), Graph()
        made = self.node(ADD, [self.pick(a), self.pick(b)], {}, inner)
        inner.set_outputs(made.outputs)
        straight.set_outputs([self.pick(b)])
        bodies = {"then_branch": inner, "else_branch": straight}
        node = self.node(IF, [self.graph.inputs[2]], bodies, self.graph)
        node.outputs[0].fact = Fact(F32, (2,))
        self.values.append(node.outputs[0])

    @rule(numbers=st.lists(st.integers(0), max_size=3))
    def choose_outputs(self, numbers: list[int]) -> None:
        self.graph.set_outputs([self.pick(n) for n in numbers])

    @precondition(lambda self: len(self.values) > 2)
    @rule(old=st.integers(0), new=st.integers(0))
    def replace(self, old: int, new: int) -> None:
        """Only values that came earlier stand in, so that no cycle arises."""
        place = 2 + old % (len(self.values) - 2)
        before, after = self.values[place], self.pick(new, before=place)
        self.graph.replace(before, after)
        assert not before.is_used

    @precondition(lambda self: len(self.values) > 2)
    @rule(number=st.integers(0), slot=st.integers(0, 1), new=st.integers(0))
    def set_input(self, number: int, slot: int, new: int) -> None:
        place = 2 + number % (len(self.values) - 2)
        node = self.values[place].node
        assert node is not None
        if node.op is ADD:
            self.graph.set_input(node, slot, self.pick(new, before=place))

    @precondition(lambda self: len(self.values) > 2)
    @rule(number=st.integers(0))
    def remove(self, number: int) -> None:
        value = self.values[2 + number % (len(self.values) - 2)]
        assert value.node is not None
        if value.is_used:
            with pytest.raises(InternalError, match="is removed while"):
                self.graph.remove(value.node)
        else:
            self.graph.remove(value.node)
            self.values.remove(value)

    @invariant()
    def sound(self) -> None:
        verify(self.graph)

    def teardown(self) -> None:
        self.graph.set_outputs(self.values[-2:])
        infer(self.graph)
        verify(self.graph, deep=True)
        assert show(parse(show(self.graph))) == show(self.graph)


TestEdits = Edits.TestCase


def test_a_replacement_of_another_type_is_refused() -> None:
    graph = parse("in x: f32[2] in y: f64[2] z = Neg(x) out z")
    with pytest.raises(InternalError, match=r"replacement changes z:f32\[2\] to y:f64\[2\]"):
        graph.replace(graph.outputs[0], graph.inputs[1])


def test_a_replaced_output_is_returned_from_every_graph() -> None:
    graph = parse("""
        in c: bool[]
        in x: f32[2]
        a = Neg(x)
        b = Abs(x)
        r = If(c) { then_branch: { out a } else_branch: { t = Add(a, 1) out t } }
        out r, a
    """)
    a, b = (node.outputs[0] for node in list(graph.nodes)[:2])
    graph.replace(a, b)
    verify(graph, deep=True)
    assert not a.is_used
    assert b.n_exits == 2


def test_a_removed_node_takes_its_bodies_along() -> None:
    graph = parse("""
        in c: bool[]
        in x: f32[2]
        a = Neg(x)
        r = If(c) {
          then_branch: { q = If(c) { then_branch: { out a } else_branch: { out x } } out q }
          else_branch: { t = Add(a, x) u = Neg(t) out u }
        }
        out a
    """)
    (choice,) = [node for node in graph.nodes if node.op.name == "If"]
    graph.remove(choice)
    verify(graph, deep=True)
    (a,) = graph.outputs
    assert not a.uses
    assert a.n_exits == 1
    assert len(graph.inputs[1].uses) == 1


def test_captures_are_values_that_a_body_reads_from_outside() -> None:
    graph = parse("""
        in c: bool[]
        in x: f32[2]
        const w: f32[2]
        a = Neg(x)
        r = If(c) {
          then_branch: { t = Add(a, w) s = Add(t, x) out s }
          else_branch: { q = If(c) { then_branch: { out a } else_branch: { out x } } out q }
        }
        out r
    """)
    node = graph.outputs[0].node
    assert node is not None
    then, other = (body for _, body in node.subgraphs)
    assert [v.name for v in then.captures()] == ["a", "x"]
    assert sorted(v.name for v in other.captures()) == ["a", "c", "x"]
    assert {v.name for v in node.reads()} == {"a", "c", "x"}


def test_nodes_are_topologically_sorted() -> None:
    graph = parse("in x: f32[2] a = Neg(x) b = Abs(a) d = Add(b, a) out d")
    first, second, third = graph.nodes
    graph.nodes = dict.fromkeys((third, second, first))
    assert graph.sorted_nodes() == [first, second, third]


def test_a_cycle_is_an_error() -> None:
    graph = parse("in x: f32[2] a = Neg(x) b = Abs(a) d = Add(b, a) out d")
    first, *_, last = graph.nodes
    graph.set_input(first, 0, last.outputs[0])
    with pytest.raises(InvalidGraph, match="cycle"):
        graph.sorted_nodes()


def test_a_body_that_reads_its_own_node_is_a_cycle() -> None:
    graph = parse("""
        in c: bool[]
        in x: f32[2]
        r = If(c) { then_branch: { t = Neg(x) out t } else_branch: { out x } }
        out r
    """)
    (node,) = graph.nodes
    body = node.attrs["then_branch"]
    (inner,) = body.nodes
    body.set_input(inner, 0, node.outputs[0])
    with pytest.raises(InvalidGraph, match="cycle"):
        graph.sorted_nodes()


def test_outputs_are_added_and_dropped() -> None:
    graph = parse("in x: f32[4,2] a, b, c = Split(x, [1, 1, 2]) y = Neg(c) out y, a")
    node = next(iter(graph.nodes))
    with pytest.raises(InternalError, match="are dropped while they are read"):
        graph.drop_outputs(node, {1, 2})
    b = node.outputs[1]
    graph.drop_outputs(node, {1})
    assert [v.name for v in node.outputs] == ["a", "c"]
    assert b.node is None
    graph.add_outputs(node, [Value("d", Fact(F32, (1, 2)))])
    assert [v.index for v in node.outputs] == [0, 1, 2]
    verify(graph)


def test_inputs_are_replaced_and_added() -> None:
    graph = parse("in x: f32[2] in y: f32[2] z = Sum(x, y, x) out z")
    (node,) = graph.nodes
    x, y = graph.inputs
    graph.replace_inputs(node, [y, x])
    assert (x.uses, y.uses) == ([(node, 1)], [(node, 0)])
    graph.set_input(node, 3, x)
    assert node.inputs == (y, x, None, x)
    verify(graph)


def test_adopted_nodes_keep_their_edges() -> None:
    graph = parse("""
        in c: bool[]
        in x: f32[2]
        r = If(c) { then_branch: { t = Add(x, 1) u = Neg(t) out u } else_branch: { out x } }
        out r
    """)
    (node,) = graph.nodes
    body: Graph = node.attrs["then_branch"]
    add = next(iter(body.nodes))
    graph.adopt([add])
    assert add.graph is graph
    assert list(graph.nodes) == [node, add]
    assert add not in body.nodes
    verify(graph)


def test_a_detached_node_has_no_part_in_the_graph() -> None:
    graph = parse("in x: f32[2] z = Neg(x) out z")
    assert ADD is not None
    x = graph.inputs[0]
    node = detached(graph, ADD, [x, x], {})
    assert len(x.uses) == 1
    assert node.outputs[0].node is None
    verify(graph)
