"""Graphs in tests: run one as it is, compare two by their text, rewrite one by some rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse, show
from sardonyx.memory import plan
from sardonyx.passes.driver import Rewriter
from sardonyx.passes.replace import prune
from sardonyx.passes.rule import by_root
from sardonyx.place import place
from sardonyx.program.emit import emit
from sardonyx.program.program import Run
from sardonyx.program.run import bind, execute
from sardonyx.providers.reference import Reference
from sardonyx.schedule import OrderOptions, Schedule, schedule


def run_graph(graph: Graph, feeds: dict[str, Any]) -> list[Any]:
    """The outputs of a graph, compiled without any pass."""
    placement = place(graph, [Reference()])
    order = schedule(placement)
    program = emit(placement, order, plan(order))
    frame = program.frame()
    for spec in program.inputs:
        frame[spec.slot] = feeds[spec.name]
    return execute(program, Run(bind(program, feeds), frame, lambda: None))


def scheduled(graph: Graph, options: OrderOptions | None = None) -> Schedule:
    """A graph in order, all of it in Python."""
    return schedule(place(graph, [Reference()]), options)


def random_feeds(graph: Graph, size: int = 3) -> dict[str, Any]:
    """Random values for a graph's inputs, every open dim of the same size."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in graph.inputs:
        fact = value.fact
        assert isinstance(fact, Fact)
        assert fact.shape is not None
        shape = [d if isinstance(d, int) else size for d in fact.shape]
        numbers = rng.standard_normal(shape) if fact.dtype.is_float else rng.integers(0, 5, shape)
        feeds[value.name] = np.asarray(numbers, fact.dtype.np)
    return feeds


def canonical(graph: Graph) -> str:
    """The text of a graph with inner names numbered in order, so that only structure counts."""
    kept = {v.name for v in graph.inputs}
    for i, node in enumerate(graph.sorted_nodes()):
        for j, value in enumerate(node.outputs):
            if value.name not in kept:
                value.name = f"v{i}_{j}"
    return show(graph)


def rewritten(text: str, rules: Any, disabled: frozenset[str] = frozenset()) -> Graph:
    """The graph of a text after the rules, with every invariant checked."""
    graph = parse(text)
    verify(graph)
    Rewriter(graph, by_root(rules), 1 << 30, disabled).run()
    prune(graph)
    verify(graph)
    return graph


def rewrites(text: str, by: Any, into: str, tolerance: float = 1e-5) -> None:
    """The rules turn one text into the other, and both compute the same."""
    before, after = parse(text), rewritten(text, by)
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    assert canonical(after) == canonical(parse(into))


def unchanged(text: str, by: Any) -> None:
    """The rules find nothing to do."""
    assert canonical(rewritten(text, by)) == canonical(parse(text))
