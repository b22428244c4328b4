"""Symbolic dims that depend on data: which output defines each, and what replaces them."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.base.records import replace
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Shape, Size, lone_name, symbols
from sardonyx.graph.dim import substitute as substitute_dim
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact, names_in
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Guard


class SymbolResolver:
    """The symbolic dims that nodes of a graph and its bodies define, and those that are resolved.

    A symbol is defined by the first output whose shape contains it. Once that output has a more
    precise shape, or another value replaces it, nothing defines the symbol any more: every fact and
    guard that contains it must contain the resolved size instead.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._definitions: dict[str, Value] = {}  # symbol to the output that defines it
        self.resolved: dict[str, Size] = {}  # to be substituted
        if graph.scope.has_new_dims:
            for each in graph.family():  # outer graphs first: bodies share their symbols
                for node in each.sorted_nodes():
                    self.add(node)

    def add(self, node: Node) -> None:
        """Record the symbols that a node's outputs define."""
        if not self._graph.scope.has_new_dims:
            return
        read: set[str] | None = None
        # Names of the graph's own inputs (scope.entry) are never resolved.
        for value in node.outputs:
            for d in _shape(value.fact):
                name = lone_name(d)
                if name is None or name in self._definitions or name in node.graph.scope.entry:
                    continue
                # Collected once per node, and only if some dim is a symbol without a definition.
                if read is None:
                    read = {n for v in node.reads() for n in names_in(v.fact)}
                if name not in read:
                    self._definitions[name] = value

    def refined(self, value: Value, old: AnyFact | None, read: Iterator[Value]) -> None:
        """Record what a more precise fact of a value resolves.

        `old` is the fact before, `read` are the values that it was inferred from.
        """
        if not self._definitions or value.fact is old:
            return
        known: set[str] | None = None
        for name, size in self._resolved_in(value, old, value.fact):
            # An expression is usable only if its symbols have a definition before this node.
            if symbols(size):
                if known is None:
                    known = {n for v in read for n in names_in(v.fact)}
                if not symbols(size) <= known:
                    continue  # a new symbol, which no reader knows
            self.resolved[name] = size

    def replaced(self, old: Value, new: Value) -> None:
        """Record that a value replaces another, and what that resolves."""
        if not self._definitions or old is new:
            return
        for name, size in self._resolved_in(old, old.fact, new.fact):
            self.resolved[name] = size
        # A symbol that survives in the new value is defined by it from now on.
        for symbol in map(lone_name, _shape(new.fact)):
            if symbol is not None and self._definitions.get(symbol) is old:
                self._definitions[symbol] = new

    def _resolved_in(
        self, value: Value, old: AnyFact | None, new: AnyFact | None
    ) -> Iterator[tuple[str, Size]]:
        """The symbols that a value defines, each with the size now in its place."""
        before, after = _shape(old), _shape(new)
        # Shapes of different rank have no corresponding dims.
        if len(before) != len(after):
            return
        for x, y in zip(before, after, strict=True):
            name = lone_name(x)
            if name is not None and x != y and self._definitions.get(name) is value:
                yield name, y

    def substitute(self) -> list[Value]:
        """Substitute resolved symbols in all facts and guards; return the values that change."""
        sizes, self.resolved = _closed(self.resolved), {}
        for name in sizes:
            self._definitions.pop(name, None)
        changed: list[Value] = []
        for each in self._graph.family():
            guards = (_guard(g, sizes) for g in each.scope.guards)
            # A guard without symbols that holds need not be checked in a run.
            each.scope.guards = [g for g in guards if g.symbols or not g.holds({})]
            computed = (v for node in each.nodes for v in node.outputs)
            for value in (*each.inputs, *computed):
                fact = _fact(value.fact, sizes)
                if fact is not value.fact and fact != value.fact:
                    value.fact = fact
                    changed.append(value)
        return changed


def _shape(fact: AnyFact | None) -> Shape:
    """The dims of a tensor's fact; none for other facts."""
    return fact.shape or () if isinstance(fact, Fact) else ()


def _closed(sizes: dict[str, Size]) -> dict[str, Size]:
    """The transitive closure: resolved sizes without symbols that are resolved themselves."""
    # At most as many rounds as symbols: each round resolves one more link of a chain.
    for _ in sizes:
        if not any(symbols(size) & sizes.keys() for size in sizes.values()):
            break
        sizes = {name: _size(size, sizes) for name, size in sizes.items()}
    return sizes


def _size(size: Size, sizes: dict[str, Size]) -> Size:
    """A size with the resolved symbols substituted."""
    try:
        return substitute_dim(size, sizes)
    except SardonyxError:
        return size  # a division by 0, for example: the node that needs it fails when it runs


def _sizes(shape: Shape | None, sizes: dict[str, Size]) -> Shape | None:
    """A shape with the resolved symbols substituted."""
    if shape is None or not any(symbols(d) & sizes.keys() for d in shape):
        return shape
    return tuple(_size(d, sizes) for d in shape)


def _fact(fact: AnyFact | None, sizes: dict[str, Size]) -> AnyFact | None:
    """A fact with the resolved symbols substituted; the same object if there are none."""
    if isinstance(fact, Fact):
        shape, sym = _sizes(fact.shape, sizes), _sizes(fact.sym, sizes)
        same = shape is fact.shape and sym is fact.sym
        return fact if same else replace(fact, shape=shape, sym=sym)
    if isinstance(fact, SequenceFact):
        parts = None if fact.parts is None else tuple(_fact(p, sizes) or p for p in fact.parts)
        return SequenceFact(_fact(fact.elem, sizes), parts)
    return OptionalFact(_fact(fact.elem, sizes)) if isinstance(fact, OptionalFact) else fact


def _guard(guard: Guard, sizes: dict[str, Size]) -> Guard:
    """A guard with the resolved symbols substituted."""
    if not guard.symbols & sizes.keys():
        return guard
    return replace(guard, left=_size(guard.left, sizes), right=_size(guard.right, sizes))
