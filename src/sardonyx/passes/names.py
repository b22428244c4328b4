"""Sizes that depend on data: who binds their names, and what becomes of names nobody binds."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.base.records import replace
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Shape, Size, lone_name, substitute, symbols
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact, names_in
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Guard


class Names:
    """The names that nodes of a graph and its bodies bind, and sizes found in their place.

    A name is bound by the output that was the first to have it. Once more is known of that output,
    or another value stands for it, nothing binds the name any more: every fact and guard that has
    it must say the size instead.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._binders: dict[str, Value] = {}
        self.found: dict[str, Size] = {}
        if graph.scope.has_fresh:
            for part in graph.family():  # outer names before the bodies that have them too
                for node in part.sorted_nodes():
                    self.add(node)

    def add(self, node: Node) -> None:
        """Notes the names that a node's outputs are the first to have."""
        if not self._graph.scope.has_fresh:
            return
        read: set[str] | None = None
        for value in node.outputs:
            for d in _shape(value.fact):
                name = lone_name(d)
                if name is None or name in self._binders or name in node.graph.scope.entry:
                    continue
                if read is None:
                    read = _names_read(node)
                if name not in read:
                    self._binders[name] = value

    def refined(self, value: Value, old: AnyFact | None, read: Iterator[Value]) -> None:
        """A value's fact was inferred again, from what is known of the values that are read."""
        if not self._binders or value.fact is old:
            return
        known: set[str] | None = None
        for name, size in self._bound_in(value, old, value.fact):
            if symbols(size):
                if known is None:
                    known = {n for v in read for n in names_in(v.fact)}
                if not symbols(size) <= known:
                    continue  # a name made just now, which readers do not know
            self.found[name] = size

    def replaced(self, old: Value, new: Value) -> None:
        """Another value stands for one."""
        if not self._binders or old is new:
            return
        for name, size in self._bound_in(old, old.fact, new.fact):
            self.found[name] = size
        for kept in map(lone_name, _shape(new.fact)):
            if kept is not None and self._binders.get(kept) is old:
                self._binders[kept] = new

    def _bound_in(
        self, value: Value, old: AnyFact | None, new: AnyFact | None
    ) -> Iterator[tuple[str, Size]]:
        """Names that the value binds, each with the other size that stands in its place."""
        before, after = _shape(old), _shape(new)
        if len(before) != len(after):
            return
        for x, y in zip(before, after, strict=True):
            name = lone_name(x)
            if name is not None and x != y and self._binders.get(name) is value:
                yield name, y

    def spread(self) -> list[Value]:
        """Puts the sizes that were found into all facts and guards; returns values that change."""
        sizes, self.found = _closed(self.found), {}
        for name in sizes:
            self._binders.pop(name, None)
        changed: list[Value] = []
        for part in self._graph.family():
            guards = (_guard(g, sizes) for g in part.scope.found)
            part.scope.found = [g for g in guards if g.symbols or not g.holds({})]
            made = (v for node in part.nodes for v in node.outputs)
            for value in (*part.inputs, *made):
                fact = _fact(value.fact, sizes)
                if fact is not value.fact and fact != value.fact:
                    value.fact = fact
                    changed.append(value)
        return changed


def _names_read(node: Node) -> set[str]:
    return {n for v in node.reads() for n in names_in(v.fact)}


def _shape(fact: AnyFact | None) -> Shape:
    return fact.shape or () if isinstance(fact, Fact) else ()


def _closed(found: dict[str, Size]) -> dict[str, Size]:
    """The sizes with no name in them that was itself found to be something else."""
    for _ in found:
        if not any(symbols(size) & found.keys() for size in found.values()):
            break
        found = {name: _size(size, found) for name, size in found.items()}
    return found


def _size(size: Size, sizes: dict[str, Size]) -> Size:
    try:
        return substitute(size, sizes)
    except SardonyxError:
        return size  # a division by 0, say: whoever needs it fails when it runs


def _sizes(shape: Shape | None, sizes: dict[str, Size]) -> Shape | None:
    if shape is None or not any(symbols(d) & sizes.keys() for d in shape):
        return shape
    return tuple(_size(d, sizes) for d in shape)


def _fact(fact: AnyFact | None, sizes: dict[str, Size]) -> AnyFact | None:
    if isinstance(fact, Fact):
        shape, sym = _sizes(fact.shape, sizes), _sizes(fact.sym, sizes)
        same = shape is fact.shape and sym is fact.sym
        return fact if same else replace(fact, shape=shape, sym=sym)
    if isinstance(fact, SequenceFact):
        parts = None if fact.parts is None else tuple(_fact(p, sizes) or p for p in fact.parts)
        return SequenceFact(_fact(fact.elem, sizes), parts)
    return OptionalFact(_fact(fact.elem, sizes)) if isinstance(fact, OptionalFact) else fact


def _guard(guard: Guard, sizes: dict[str, Size]) -> Guard:
    if not guard.symbols & sizes.keys():
        return guard
    return replace(guard, left=_size(guard.left, sizes), right=_size(guard.right, sizes))
