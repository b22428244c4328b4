"""Rank unification: results of control flow that are scalars or one-element vectors.

Models in which one branch or iteration yields a scalar and another a vector of one element are
inferred as if all were vectors. This pass makes them vectors, if no output reveals the rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise import arithmetic

# The position of the first carried value among a node's inputs and among its body's outputs.
_CARRIED: Final = {"Loop": (2, 1), "Scan": (0, 0)}
# Elementwise ops give the same elements for a scalar and a vector of one element.
_BROADCAST: Final = frozenset(op.name for op in arithmetic.OPS) | {"Cast", "Identity"}


def unify_ranks(graph: Graph) -> bool:
    """Reshape scalars to vectors where inference assumed vectors; False if that is visible.

    In that case nothing changes, and the graph must be inferred again without the assumption.
    """
    # (node, output) pairs whose sources have ranks 0 and 1, as inference recorded them.
    ambiguous = list(graph.scope.ambiguous_ranks or ())
    uses = _RankObservers(graph)
    if not all(_is_number(v) for node, i in ambiguous for v in _sources(node, i)):
        return False
    if not all(uses.hides_rank(v) for node, i in ambiguous for v in _results(node, i)):
        return False
    # Checked for all first: a partial change could not be undone.
    for node, position in ambiguous:
        _make_vectors(node, position)
    return True


def _bodies(node: Node) -> list[Graph]:
    """The bodies of a node."""
    return [body for _, body in node.subgraphs]


def _sources(node: Node, position: int) -> list[Value]:
    """The values that an output of control flow may come from."""
    if node.op.name == "If":
        return [body.outputs[position] for body in _bodies(node)]
    first, first_out = _CARRIED[node.op.name]
    initial = input_of(node, first + position)
    return [initial, _bodies(node)[0].outputs[first_out + position]]


def _results(node: Node, position: int) -> list[Value]:
    """The values that have the rank of an output: itself, and the body input it feeds."""
    if node.op.name == "If":
        return [node.outputs[position]]
    first, _ = _CARRIED[node.op.name]
    return [node.outputs[position], _bodies(node)[0].inputs[first + position]]


def _is_number(value: Value) -> bool:
    """Whether a value is a scalar or a vector of one element."""
    return isinstance(value.fact, Fact) and value.fact.shape in ((), (1,))


def _make_vectors(node: Node, position: int) -> None:
    """Reshape what an output of control flow comes from to a vector."""
    offset = 0
    # A Loop or Scan also starts with a vector, so that all iterations agree.
    if node.op.name != "If":
        first, offset = _CARRIED[node.op.name]
        initial = input_of(node, first + position)
        node.graph.set_input(node, first + position, _vector(node.graph, initial))
    for body in _bodies(node):
        outputs = list(body.outputs)
        outputs[offset + position] = _vector(body, outputs[offset + position])
        body.set_outputs(outputs)


def _vector(graph: Graph, value: Value) -> Value:
    """A value reshaped to a vector of one element."""
    builder = Builder(graph, graph.scope)
    return builder.node("Reshape", value, builder.ints(1)).outputs[0]


class _RankObservers:
    """Decides whether any reader of a one-element value reveals its rank."""

    def __init__(self, graph: Graph) -> None:
        self._exits: dict[Value, list[tuple[Graph, int]]] = defaultdict(list)
        for each in graph.family():
            for position, value in enumerate(each.outputs):
                self._exits[value].append((each, position))
        # Values already visited count as hidden: a cycle alone reveals nothing.
        self._visited: set[Value] = set()

    def hides_rank(self, value: Value) -> bool:
        """Whether no visible result depends on the rank of a one-element value."""
        if value in self._visited:
            return True
        self._visited.add(value)
        return all(self._exit_hides_rank(*at) for at in self._exits[value]) and all(
            self._read_hides_rank(*use) for use in value.uses
        )

    def _exit_hides_rank(self, graph: Graph, position: int) -> bool:
        """Whether an output of a graph reveals nothing; those of the model reveal the rank."""
        node = graph.owner
        if node is None:
            return False
        if node.op.name == "If":
            return self.hides_rank(node.outputs[position])
        if node.op.name not in _CARRIED:
            return False
        _, first_out = _CARRIED[node.op.name]
        if position < first_out:
            return True  # the loop condition
        return self._carried_hides_rank(node, position - first_out)

    def _read_hides_rank(self, node: Node, slot: int) -> bool:
        """Whether a node that reads the value reveals nothing about its rank."""
        name = node.op.name
        if node.op.domain:
            return False
        # Conditions and trip counts are read as one element of any rank.
        if name == "If" or (name == "Loop" and slot < 2):
            return True
        if name in _CARRIED:
            return self._carried_hides_rank(node, slot - _CARRIED[name][0])
        # A Reshape hides the rank unless its target copies a dim by a 0.
        if name == "Reshape" and slot == 0:
            target = node.inputs[1]
            return target is not None and 0 not in (target.tensor.ints or (0,))
        if name not in _BROADCAST:
            return False
        others = (v for i, v in enumerate(node.inputs) if i != slot and v is not None)
        if any(v.const is not None and v.tensor.shape for v in others):
            return True  # the constant determines the rank of the result
        return self.hides_rank(node.outputs[0])

    def _carried_hides_rank(self, node: Node, position: int) -> bool:
        """Whether a value carried by a Loop or Scan reveals nothing about its rank."""
        scanned = node.attrs.get("num_scan_inputs") or 0
        if position >= len(node.inputs) - _CARRIED[node.op.name][0] - scanned:
            return False  # a scan output or scan input: a rank of its own
        return all(self.hides_rank(v) for v in _results(node, position))
