"""Finds the counterparts of a model's nodes in another model: by name, and by structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.cli.compare.changes import (
    NodeDifference,
    is_swapped,
    node_changes,
    same_attributes,
    same_input,
)
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.passes.rule import COMMUTATIVE


@frozen
class Pair:
    """A node of A, and its counterpart in B with what differs."""

    a: Node
    b: Node | None
    changes: tuple[NodeDifference, ...] = ()


class Matcher:
    """Matches two graphs, in the topological order of A's nodes.

    A node's counterpart is the node of B with the same op, attributes and inputs, preferably of
    the same name. Without one it is a node that makes a value of the same name, or one that reads
    the same value: what differs are then changes of the pair.
    """

    def __init__(self, a: Graph, b: Graph, outer: dict[Value, Value] | None = None) -> None:
        self._a, self._b = a, b
        self.counterparts: Final = dict(outer or {})
        self._free: dict[Node, None] = dict.fromkeys(b.sorted_nodes())
        self._by_name = {v.name: n for n in self._free for v in n.outputs if v.name}
        self._sources = [n for n in self._free if not any(map(_is_made, n.inputs))]
        self._names_of_a = {v.name for node in a.nodes for v in node.outputs if v.name}
        self._match_inputs()

    def _match_inputs(self) -> None:
        by_name = {value.name: value for value in self._b.inputs}
        left = [v for v in self._b.inputs if v.name not in {x.name for x in self._a.inputs}]
        for value in self._a.inputs:
            other = by_name.get(value.name)
            if other is None and left:  # in their order, if the names differ
                other = left.pop(0)
            if other is not None:
                self.counterparts[value] = other

    def pairs(self) -> list[Pair]:
        """Return every node of A with its counterpart."""
        return [self._pair(node) for node in self._a.sorted_nodes()]

    def unmatched(self) -> list[Node]:
        """Return the nodes of B that are no counterpart, once `pairs` has been called."""
        return list(self._free)

    def _pair(self, node: Node) -> Pair:
        found = self._counterpart(node)
        if found is None:
            return Pair(node, None)
        del self._free[found]
        changes = node_changes(node, found, self.counterparts)
        changes += self._body_changes(node, found)
        self.counterparts.update(zip(node.outputs, found.outputs, strict=False))
        return Pair(node, found, tuple(changes))

    def _body_changes(self, a: Node, b: Node) -> Iterator[NodeDifference]:
        bodies = dict(b.subgraphs)
        for name, body in a.subgraphs:
            if name not in bodies:
                continue
            inner = Matcher(body, bodies[name], self.counterparts)
            for pair in inner.pairs():
                for change in pair.changes:
                    yield NodeDifference(change.kind, f"in {name}, {pair.a}: {change.text}")
                if pair.b is None:
                    yield NodeDifference("attribute", f"in {name}, {pair.a} has no counterpart")
            for extra in inner.unmatched():
                yield NodeDifference("attribute", f"in {name}, {extra} is only in B")

    def _counterpart(self, node: Node) -> Node | None:
        candidates = dict.fromkeys(self._candidates(node))
        named = self._named(node)
        exact = [c for c in candidates if self._is_exact(node, c)]
        if exact:
            return named if named in exact else exact[0]
        if named is not None and (named.op is node.op or named in candidates):
            return named
        # Counterparts of other nodes are left to them.
        left = [c for c in candidates if not self._is_exact_for_another(node, c)]
        similar = [c for c in left if c.op is node.op]
        if similar:
            return max(similar, key=lambda c: self._likeness(node, c))
        # Another op over the same inputs, if there is no doubt which.
        replaced = [c for c in left if self._has_same_inputs(node, c) and self._is_renamed(c)]
        return replaced[0] if len(replaced) == 1 else None

    def _candidates(self, node: Node) -> Iterator[Node]:
        """Yield nodes of B that read a counterpart of an input; if there is none, all sources."""
        if not any(map(_is_made, node.inputs)):
            yield from (c for c in self._sources if c in self._free and c.op is node.op)
        for value in node.inputs:
            other = None if value is None else self.counterparts.get(value)
            if other is not None:
                yield from (user for user, _ in other.uses if user in self._free)

    def _named(self, node: Node) -> Node | None:
        found = next((self._by_name.get(v.name) for v in node.outputs if v.name), None)
        return found if found in self._free else None

    def _is_renamed(self, node: Node) -> bool:
        """Return whether no node of A makes a value of this name."""
        return not any(v.name in self._names_of_a for v in node.outputs)

    def _is_exact(self, a: Node, b: Node) -> bool:
        if a.op is not b.op or not same_attributes(a, b):
            return False
        return self._has_same_inputs(a, b) or (
            a.op.name in COMMUTATIVE and is_swapped(a, b, self.counterparts)
        )

    def _has_same_inputs(self, a: Node, b: Node) -> bool:
        return len(a.inputs) == len(b.inputs) and all(
            same_input(x, y, self.counterparts) for x, y in zip(a.inputs, b.inputs, strict=True)
        )

    def _is_exact_for_another(self, node: Node, candidate: Node) -> bool:
        siblings = {user for v in node.inputs if v is not None for user, _ in v.uses} - {node}
        return any(
            s.graph is self._a and s.op is candidate.op and self._is_exact(s, candidate)
            for s in siblings
        )

    def _likeness(self, a: Node, b: Node) -> tuple[int, bool]:
        pairs = zip(a.inputs, b.inputs, strict=False)
        n_same = sum(same_input(x, y, self.counterparts) for x, y in pairs)
        return n_same + is_swapped(a, b, self.counterparts), same_attributes(a, b)


def _is_made(value: Value | None) -> bool:
    """Return whether a run makes or feeds a value."""
    return value is not None and not (value.is_const and value.node is None)
