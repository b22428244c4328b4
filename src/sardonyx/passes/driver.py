"""The rewrite driver: one walk over a work list that prunes, folds, merges and applies rules."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

from sardonyx.base.log import logger
from sardonyx.base.records import replace
from sardonyx.errors import SardonyxError
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import MAX_SYMBOLIC, SYMBOLIC_KINDS, infer_node
from sardonyx.passes.fold import FoldingBuilder, fold, inline
from sardonyx.passes.loops import hoist, trim
from sardonyx.passes.merge import Merger
from sardonyx.passes.names import Names
from sardonyx.passes.pattern import match
from sardonyx.passes.rule import NoMatch, Rule, Rules, need


class Rewriter:
    """Rewrites one graph, and the bodies in it, until no rule applies to any node."""

    def __init__(
        self,
        graph: Graph,
        rules: Rules,
        fold_limit: int,
        disabled: frozenset[str],
        is_clean: bool = False,
    ) -> None:
        """With `is_clean`, all is folded and merged: only nodes a rule may end in are visited."""
        self._graph = graph
        self._is_clean = is_clean
        self._rules = rules
        self._limit = 0 if "ConstantFolding" in disabled else fold_limit
        self._disabled = disabled
        self._merger = None if "CommonSubexpressionElimination" in disabled else Merger()
        self._work: deque[Node] = deque()
        self._queued: set[Node] = set()
        self._stale: set[Node] = set()  # nodes with inputs of which more is known than before
        self._names = Names(graph)
        self._fired: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Visit every node, and again the readers of what changed; return how often rules fired."""
        for node in self._graph.nodes:
            if not self._is_clean or node.op.name in self._rules or node.op.has_bodies:
                self._push(node)
        while self._work or self._names.found:
            if not self._work:
                self._spread()
                continue
            node = self._work.popleft()
            self._queued.discard(node)
            if node in self._graph.nodes:
                self._visit(node)
        return self._fired

    def _spread(self) -> None:
        """Sizes found for names reach all that is made of them: much of it may now be constant."""
        changed = self._names.spread()
        for value in changed:
            if value.node is not None:
                self._push(value.node)
        self._changed(changed)

    def _push(self, node: Node) -> None:
        if node not in self._queued and node.graph is self._graph:
            self._queued.add(node)
            self._work.append(node)

    def _visit(self, node: Node) -> None:
        if not node.is_used:
            drop(self._graph, [node])
            return
        if node in self._stale:
            self._stale.discard(node)
            self._revisit(self._reinfer(node), is_news=True)
        if node.op.has_bodies and self._bodies(node):
            return
        if fold(node, self._limit):
            folded = node.outputs
            makers = [v.node for v in node.inputs if v is not None and v.node is not None]
            self._graph.settle(node)
            self._changed(folded)
            drop(self._graph, makers)
            return
        if self._merger is not None:
            twin = self._merger.find(node)
            if twin is not None:
                for old, new in zip(node.outputs, twin.outputs, strict=True):
                    self._replace(old, new)
                drop(self._graph, [node])
                return
        rules = self._rules.get(node.op.name)
        if rules is not None:
            read_ops = {v.op for v in node.inputs if v is not None}
            for r in rules:
                if r.makers <= read_ops and not r.names & self._disabled and self._try(r, node):
                    return

    def _bodies(self, node: Node) -> bool:
        """Rewrites a node's bodies; True if the node itself went away."""
        made = inline(node)
        if made is not None:
            moved, outputs = made
            for inner in moved:
                self._names.add(inner)
                self._push(inner)
            for old, new in zip(node.outputs, outputs, strict=False):  # some need not be named
                self._names.replaced(old, new)
            self._changed(outputs)
            drop(self._graph, [node])
            return True
        for old, new in trim(node):
            self._names.replaced(old, new)
            self._changed((new,))
        for inner in hoist(node):
            self._names.add(inner)
            self._push(inner)
        for _, body in node.subgraphs:
            below = Rewriter(body, self._rules, self._limit, self._disabled, self._is_clean)
            self._fired.update(below.run())
        return False

    def _try(self, r: Rule, node: Node) -> bool:
        hit = match(r.pattern, node)
        if hit is None:
            return False
        found, covered = hit
        for each in covered:
            if each.wish != node.wish:
                return False
        scope = self._graph.scope
        builder, n_guards = FoldingBuilder(self._graph, self._limit), len(scope.found)
        try:
            new = r.build(builder, **found)
            need(_same_shape(node.outputs[0], new), "the shape is not proven to stay")
        except (NoMatch, SardonyxError) as reason:
            for made in reversed(builder.made):
                self._graph.remove(made)
            del scope.found[n_guards:]
            logger.debug("%s not at %s: %s", r.name, node, reason)
            return False
        logger.debug("%s at %s", r.name, node)
        self._fired[r.name] += 1
        for made in builder.made:
            made.name, made.marks = made.name or node.name, node.marks
            self._names.add(made)
        self._replace(node.outputs[0], new)
        for made in builder.made:
            self._push(made)
        drop(self._graph, covered)
        return True

    def _replace(self, old: Value, new: Value) -> None:
        if old is new:
            return
        if not new.name and new.node is not None:
            new.name, old.name = old.name, ""
        readers, is_news = _readers(old), new.fact != old.fact
        self._graph.replace(old, new)
        self._names.replaced(old, new)
        self._revisit(readers, is_news)

    def _changed(self, values: Iterable[Value]) -> None:
        """Readers of values get another visit; what is newly known of them flows on."""
        for value in values:
            self._revisit(_readers(value), is_news=True)

    def _revisit(self, readers: Iterable[Node], is_news: bool) -> None:
        work = list(readers)
        for reader in work:
            if is_news and reader.graph is self._graph:
                self._stale.add(reader)  # inferred when it is visited: once, however much changed
            elif is_news:
                work += self._reinfer(reader)
            self._push(reader)

    def _reinfer(self, node: Node) -> list[Node]:
        """Infers a node again where more is known of its inputs; returns the readers to tell."""
        if node.op.has_bodies or all(map(_known, node.outputs)):
            return []
        facts = [v.fact for v in node.outputs]
        infer_node(node.graph.scope, node)
        told: list[Node] = []
        for value, old in zip(node.outputs, facts, strict=True):
            new = value.fact
            self._names.refined(value, old, node.reads())
            value.fact = _refined(old, new)
            if isinstance(new, Fact) and value.fact != old:
                told += _readers(value)
        self._names.add(node)
        return told


def prune(graph: Graph) -> None:
    """Takes out every node whose outputs nobody reads, in the graph and its bodies."""
    drop(graph, list(graph.nodes))
    for node in graph.nodes:
        for _, body in node.subgraphs:
            prune(body)


def drop(graph: Graph, work: list[Node]) -> None:
    """Takes out those of the nodes that nobody reads, and then those that only they read."""
    while work:
        node = work.pop()
        if node in graph.nodes and not node.is_used:
            work.extend(v.node for v in node.reads() if v.node is not None)
            graph.remove(node)


def _readers(value: Value) -> Iterable[Node]:
    """The nodes that read a value, once each: one may read it in thousands of places."""
    return dict.fromkeys(reader for reader, _ in value.uses)


def _same_shape(old: Value, new: Value) -> bool:
    """Whether every size of the old value is the same in the new one, or a number there."""
    a, b = old.fact, new.fact
    if not isinstance(a, Fact) or not isinstance(b, Fact) or a.shape is None or b.shape is None:
        return not isinstance(a, Fact) or a == b or (isinstance(b, Fact) and a.shape is None)
    return len(a.shape) == len(b.shape) and all(
        x == y or isinstance(y, int) for x, y in zip(a.shape, b.shape, strict=True)
    )


def _refined(old: AnyFact | None, new: AnyFact | None) -> AnyFact | None:
    """A newly inferred fact, with the names that readers already know for sizes still open."""
    if not isinstance(old, Fact) or not isinstance(new, Fact) or old.shape is None:
        return new
    if new.shape is None or len(new.shape) != len(old.shape):
        return old
    shape = tuple(y if isinstance(y, int) else x for x, y in zip(old.shape, new.shape, strict=True))
    return replace(new, shape=shape)


def _known(value: Value) -> bool:
    """Whether everything that inference may find of a value is found."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return True
    if fact.static is None:
        return False
    is_followed = fact.dtype.kind in SYMBOLIC_KINDS and math.prod(fact.static) <= MAX_SYMBOLIC
    return not is_followed or fact.ints is not None
