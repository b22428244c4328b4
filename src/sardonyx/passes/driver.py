"""The rewrite driver: a worklist that folds, merges, prunes and applies rewrite rules.

Every node is visited once, and again whenever something it reads changed, until no rule applies to
any node (a fixed point). Rules terminate because each one replaces what it matches by something
that it does not match. Bodies of control flow are rewritten by a nested Rewriter.

A walk takes 10 to 15 us per node: rules are found by the op of their root, constants that rules
build are recipes, and a replacement of equal type and shape is not inferred again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

from sardonyx.base.log import logger
from sardonyx.base.records import replace
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import MAX_SYMBOLIC, SYMBOLIC_KINDS, infer_node
from sardonyx.passes.constant_folding import FoldingBuilder, fold, inline
from sardonyx.passes.cse import CommonSubexpressions
from sardonyx.passes.loop_invariants import drop_invariants, hoist
from sardonyx.passes.replace import drop, try_build
from sardonyx.passes.rule import Rule, Rules, match, need
from sardonyx.passes.symbolic_dims import SymbolResolver


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
        """Prepare a rewrite; `is_clean`: visit only nodes that some rule may match.

        That is enough if an earlier walk has folded constants, merged common subexpressions and
        removed dead nodes.
        """
        self._graph = graph
        self._is_clean = is_clean
        self._rules = rules
        self._limit = 0 if "ConstantFolding" in disabled else fold_limit
        self._disabled = disabled
        self._subexpressions = (
            None if "CommonSubexpressionElimination" in disabled else CommonSubexpressions()
        )
        self._work: deque[Node] = deque()
        self._queued: set[Node] = set()
        self._stale: set[Node] = set()  # to be inferred again when they are visited
        self._symbols = SymbolResolver(graph)
        self._fired: Counter[str] = Counter()
        # The nodes of this graph that rules have replaced, and what by.
        self.replaced: dict[Node, list[Node]] = {}

    def run(self) -> Counter[str]:
        """Visit all nodes until nothing changes; return how often each rule fired."""
        # Control flow is always visited: the nodes to rewrite may be in its bodies.
        for node in self._graph.nodes:
            if not self._is_clean or node.op.name in self._rules or node.op.has_bodies:
                self._push(node)
        while self._work or self._symbols.resolved:
            # Only when the worklist is empty: many symbols are then substituted in one sweep.
            if not self._work:
                changed = self._symbols.substitute()
                for value in changed:
                    if value.node is not None:
                        self._push(value.node)
                self._changed(changed)
                continue
            node = self._work.popleft()
            self._queued.discard(node)
            if node in self._graph.nodes:
                self._visit(node)
        return self._fired

    def _push(self, node: Node) -> None:
        """Queue a node of this graph for a visit."""
        if node not in self._queued and node.graph is self._graph:
            self._queued.add(node)
            self._work.append(node)

    def _visit(self, node: Node) -> None:
        """Apply to one node the first of: prune, inline, fold, merge, rewrite rules."""
        if not node.is_used:
            drop(self._graph, [node])
            return
        if node in self._stale:
            self._stale.discard(node)
            self._revisit(self._reinfer(node), is_news=True)
        if node.op.has_bodies and self._bodies(node):
            return
        if self._fold(node) or self._merge(node):
            return
        # The cheap test first: a rule whose pattern reads the output of another op cannot match
        # unless one of the inputs comes from that op.
        rules = self._rules.get(node.op.name)
        if rules is not None:
            read_ops = {v.op for v in node.inputs if v is not None}
            for r in rules:
                if r.producers <= read_ops and not r.names & self._disabled and self._try(r, node):
                    return

    def _fold(self, node: Node) -> bool:
        """Replace a node over constants by constants; return whether it was possible."""
        if not fold(node, self._limit):
            return False
        # Settling detaches the outputs: they are constants without a producer from now on.
        folded = node.outputs
        producers = [v.node for v in node.inputs if v is not None and v.node is not None]
        self._graph.remove_folded(node)
        self._changed(folded)
        drop(self._graph, producers)
        return True

    def _merge(self, node: Node) -> bool:
        """Replace a node by an earlier one that computes the same; return whether there is one."""
        earlier = None if self._subexpressions is None else self._subexpressions.find(node)
        if earlier is None:
            return False
        for old, new in zip(node.outputs, earlier.outputs, strict=True):
            self._replace(old, new)
        drop(self._graph, [node])
        return True

    def _bodies(self, node: Node) -> bool:
        """Rewrite the bodies of a node; return whether the node itself was inlined."""
        inlined = inline(node)
        if inlined is not None:
            moved, outputs = inlined
            for inner in moved:
                self._symbols.add(inner)
                self._push(inner)
            for old, new in zip(node.outputs, outputs, strict=False):  # some need not be named
                self._symbols.replaced(old, new)
            self._changed(outputs)
            drop(self._graph, [node])
            return True
        # Carried values that never change become outer values before the body is rewritten, so that
        # constants among them fold in it.
        for old, new in drop_invariants(node):
            self._symbols.replaced(old, new)
            self._changed((new,))
        for inner in hoist(node):
            self._symbols.add(inner)
            self._push(inner)
        for _, body in node.subgraphs:
            rewriter = Rewriter(body, self._rules, self._limit, self._disabled, self._is_clean)
            self._fired.update(rewriter.run())
        return False

    def _try(self, r: Rule, node: Node) -> bool:
        """Apply a rule at a node; return whether its pattern and conditions hold."""
        hit = match(r.pattern, node)
        if hit is None:
            return False
        holes, covered = hit
        # A rewrite must not move work between providers that the user chose.
        if any(each.assignment != node.assignment for each in covered):
            return False
        builder = FoldingBuilder(self._graph, self._limit)

        def build() -> Value:
            new: Value = r.build(builder, **holes)
            need(_same_shape(node.outputs[0], new), "the shape is not proven to stay")
            return new

        new = try_build(builder, build, r.name, node)
        if new is None:
            return False
        logger.debug("%s at %s", r.name, node)
        self._fired[r.name] += 1
        for added in builder.new_nodes:
            added.name, added.annotations = added.name or node.name, node.annotations
            self._symbols.add(added)
        self.replaced.update((each, builder.new_nodes) for each in covered)
        self._replace(node.outputs[0], new)
        # New nodes may match further rules.
        for added in builder.new_nodes:
            self._push(added)
        drop(self._graph, covered)
        return True

    def _replace(self, old: Value, new: Value) -> None:
        """Replace a value for its readers, and visit them again."""
        if old is new:
            return
        # Graph outputs and profiles keep the names that the model gave.
        if not new.name and new.node is not None:
            new.name, old.name = old.name, ""
        readers, is_news = _readers(old), new.fact != old.fact
        self._graph.replace(old, new)
        self._symbols.replaced(old, new)
        self._revisit(readers, is_news)

    def _changed(self, values: Iterable[Value]) -> None:
        """Queue the readers of values of which more is known than before."""
        for value in values:
            self._revisit(_readers(value), is_news=True)

    def _revisit(self, readers: Iterable[Node], is_news: bool) -> None:
        """Queue nodes; with `is_news`, their facts are inferred again too."""
        work = list(readers)
        for reader in work:
            if is_news and reader.graph is self._graph:
                self._stale.add(reader)  # inferred when it is visited: once, however much changed
            # A reader in a body has no worklist here: it is inferred immediately.
            elif is_news:
                work += self._reinfer(reader)
            self._push(reader)

    def _reinfer(self, node: Node) -> list[Node]:
        """Infer a node again and return the readers of outputs of which more is known now."""
        # Inference of control flow is costly, and known outputs cannot get more precise.
        if node.op.has_bodies or all(map(_is_fully_known, node.outputs)):
            return []
        facts = [v.fact for v in node.outputs]
        infer_node(node.graph.scope, node)
        affected: list[Node] = []
        for value, old in zip(node.outputs, facts, strict=True):
            new = value.fact
            self._symbols.refined(value, old, node.reads())
            # Inference invents new names for unknown dims; readers refer to the earlier ones.
            value.fact = _refined(old, new)
            if isinstance(new, Fact) and value.fact != old:
                affected += _readers(value)
        self._symbols.add(node)
        return affected


def _readers(value: Value) -> Iterable[Node]:
    """The nodes that read a value, each once: one node may read it in thousands of slots."""
    return dict.fromkeys(reader for reader, _ in value.uses)


def _same_shape(old: Value, new: Value) -> bool:
    """Whether every dim of the old value is equal, or a number, in the new one."""
    a, b = old.fact, new.fact
    # Facts without a shape: the new one must be equal, or the old one of unknown rank.
    if not isinstance(a, Fact) or not isinstance(b, Fact) or a.shape is None or b.shape is None:
        return not isinstance(a, Fact) or a == b or (isinstance(b, Fact) and a.shape is None)
    return len(a.shape) == len(b.shape) and all(
        x == y or isinstance(y, int) for x, y in zip(a.shape, b.shape, strict=True)
    )


def _refined(old: AnyFact | None, new: AnyFact | None) -> AnyFact | None:
    """The newly inferred fact, with dims that are still symbolic named as they were before."""
    if not isinstance(old, Fact) or not isinstance(new, Fact) or old.shape is None:
        return new
    if new.shape is None or len(new.shape) != len(old.shape):
        return old
    shape = tuple(y if isinstance(y, int) else x for x, y in zip(old.shape, new.shape, strict=True))
    return replace(new, shape=shape)


def _is_fully_known(value: Value) -> bool:
    """Whether inference can find nothing more about a value."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return True
    if fact.static is None:
        return False
    is_followed = fact.dtype.kind in SYMBOLIC_KINDS and math.prod(fact.static) <= MAX_SYMBOLIC
    return not is_followed or fact.ints is not None
