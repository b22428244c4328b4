"""Ranks: numbers that control flow makes now as a scalar, now as a vector, become vectors."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise import arithmetic

# Where the first carried value is, among a node's inputs and among its body's outputs.
_CARRIED: Final = {"Loop": (2, 1), "Scan": (0, 0)}
_BROADCAST: Final = frozenset(op.name for op in arithmetic.OPS) | {"Cast", "Identity"}


def settle_ranks(graph: Graph) -> bool:
    """Makes what inference took for vectors of one such vectors; False if that would be seen.

    Then nothing is changed, and the graph is to be inferred again without such liberties.
    """
    loose = list(graph.scope.loose or ())
    uses = _Uses(graph)
    if not all(_is_number(v) for node, i in loose for v in _sources(node, i)):
        return False
    if not all(uses.hide_rank(v) for node, i in loose for v in _results(node, i)):
        return False
    for node, position in loose:
        _make_vectors(node, position)
    return True


def _bodies(node: Node) -> list[Graph]:
    return [body for _, body in node.subgraphs]


def _sources(node: Node, position: int) -> list[Value]:
    """The values that an output of control flow may come from."""
    if node.op.name == "If":
        return [body.outputs[position] for body in _bodies(node)]
    first, first_out = _CARRIED[node.op.name]
    initial = node.inputs[first + position]
    assert initial is not None
    return [initial, _bodies(node)[0].outputs[first_out + position]]


def _results(node: Node, position: int) -> list[Value]:
    """The values that show what an output of control flow is: itself, and in each iteration."""
    if node.op.name == "If":
        return [node.outputs[position]]
    first, _ = _CARRIED[node.op.name]
    return [node.outputs[position], _bodies(node)[0].inputs[first + position]]


def _is_number(value: Value) -> bool:
    return isinstance(value.fact, Fact) and value.fact.shape in ((), (1,))


def _make_vectors(node: Node, position: int) -> None:
    offset = 0
    if node.op.name != "If":
        first, offset = _CARRIED[node.op.name]
        initial = node.inputs[first + position]
        assert initial is not None
        node.graph.set_input(node, first + position, _vector(node.graph, initial))
    for body in _bodies(node):
        outputs = list(body.outputs)
        outputs[offset + position] = _vector(body, outputs[offset + position])
        body.set_outputs(outputs)


def _vector(graph: Graph, value: Value) -> Value:
    builder = Builder(graph, graph.scope)
    return builder.node("Reshape", value, builder.ints(1)).outputs[0]


class _Uses:
    """Who reads a number, and whether that shows what rank it has."""

    def __init__(self, graph: Graph) -> None:
        self._exits: dict[Value, list[tuple[Graph, int]]] = defaultdict(list)
        for each in graph.family():
            for position, value in enumerate(each.outputs):
                self._exits[value].append((each, position))
        self._asked: set[Value] = set()  # and hidden, unless another one is found not to be

    def hide_rank(self, value: Value) -> bool:
        """Whether nothing that can be seen depends on the rank of a number."""
        if value in self._asked:
            return True
        self._asked.add(value)
        return all(self._leaves_hidden(*at) for at in self._exits[value]) and all(
            self._read_hidden(*use) for use in value.uses
        )

    def _leaves_hidden(self, graph: Graph, position: int) -> bool:
        node = graph.owner
        if node is None:
            return False
        if node.op.name == "If":
            return self.hide_rank(node.outputs[position])
        if node.op.name not in _CARRIED:
            return False
        _, first_out = _CARRIED[node.op.name]
        if position < first_out:
            return True  # the condition to go on
        return self._carried_hidden(node, position - first_out)

    def _read_hidden(self, node: Node, slot: int) -> bool:
        name = node.op.name
        if node.op.domain:
            return False
        if name == "If" or (name == "Loop" and slot < 2):
            return True
        if name in _CARRIED:
            return self._carried_hidden(node, slot - _CARRIED[name][0])
        if name == "Reshape" and slot == 0:
            target = node.inputs[1]
            return target is not None and 0 not in (target.tensor.ints or (0,))
        if name not in _BROADCAST:
            return False
        others = (v for i, v in enumerate(node.inputs) if i != slot and v is not None)
        if any(v.const is not None and v.tensor.shape for v in others):
            return True  # the result has the rank of that constant at least
        return self.hide_rank(node.outputs[0])

    def _carried_hidden(self, node: Node, position: int) -> bool:
        scanned = node.attrs.get("num_scan_inputs") or 0
        if position >= len(node.inputs) - _CARRIED[node.op.name][0] - scanned:
            return False  # collected over iterations, or a part of what is scanned
        return all(self.hide_rank(v) for v in _results(node, position))
