"""Makes a graph with a difference smaller: fewer outputs, nodes, sizes and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from onnx import NodeProto, TypeProto

from sardonyx.errors import SardonyxError
from tests.random_graphs.eager import Eager, reads
from tests.random_graphs.graph import RandomGraph, Run, evaluate
from tests.random_graphs.value import Value, type_of

Judge = Callable[[RandomGraph], str]  # the kind of difference


def shrink(graph: RandomGraph, judge: Judge) -> RandomGraph:
    """The smallest graph found whose difference is of the same kind."""
    kind = judge(graph)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(graph):
            if judge(candidate) == kind:
                graph, smaller = candidate, True
                break
    return graph


def _candidates(graph: RandomGraph) -> Iterator[RandomGraph]:
    """Graphs with one thing less; the largest steps first."""
    if len(graph.runs) > 1:
        for run in graph.runs:
            yield replace(graph, runs=[run])
    if len(graph.outputs) > 1:
        for name in graph.outputs:
            yield pruned(replace(graph, outputs=[name]))
        for name in graph.outputs:
            yield pruned(replace(graph, outputs=[n for n in graph.outputs if n != name]))
    for start, stop in _spans(len(graph.nodes)):
        if stop - start < len(graph.nodes):
            yield without(graph, range(start, stop))
    yield from _with_fewer_attributes(graph)


def _spans(n: int) -> Iterator[tuple[int, int]]:
    size = n // 2
    while size:
        yield from ((i, min(n, i + size)) for i in range(0, n, size))
        size //= 2


def without(graph: RandomGraph, gone: range) -> RandomGraph:
    """The graph without some nodes: what they made becomes an input."""
    nodes = [n for i, n in enumerate(graph.nodes) if i not in gone]
    steps = [s for i, s in enumerate(graph.steps) if i not in gone]
    made = [o for i in gone for o in graph.nodes[i].output if o]
    inputs = dict(graph.inputs)
    inputs |= {n: _static(graph, n) for n in made if n in graph.types}
    runs = [
        Run({**r.feeds, **{n: r.values[n] for n in made if n in r.values}}, r.values)
        for r in graph.runs
    ]
    outputs = [n for n in graph.outputs if n not in made]
    return pruned(
        replace(graph, nodes=nodes, steps=steps, inputs=inputs, runs=runs, outputs=outputs)
    )


def _static(graph: RandomGraph, name: str) -> TypeProto:
    data = graph.runs[0].values.get(name)
    if isinstance(data, np.ndarray):
        return type_of(data, [None] * data.ndim if len(graph.runs) > 1 else "same")
    return graph.types[name]


def pruned(graph: RandomGraph) -> RandomGraph:
    """Only what the outputs need."""
    wanted = set(graph.outputs)
    kept: list[int] = []
    for i in reversed(range(len(graph.nodes))):
        if wanted & set(graph.nodes[i].output):
            kept.insert(0, i)
            wanted |= set(reads(graph.nodes[i]))
    return replace(
        graph,
        nodes=[graph.nodes[i] for i in kept],
        steps=[graph.steps[i] for i in kept if i < len(graph.steps)],
        inputs={n: t for n, t in graph.inputs.items() if n in wanted},
        constants={n: a for n, a in graph.constants.items() if n in wanted},
        runs=[Run({n: x for n, x in r.feeds.items() if n in wanted}, r.values) for r in graph.runs],
    )


def _with_fewer_attributes(graph: RandomGraph) -> Iterator[RandomGraph]:
    """One attribute less; the values are computed anew."""
    for i, node in enumerate(graph.nodes):
        for j in range(len(node.attribute)):
            changed = NodeProto()
            changed.CopyFrom(node)
            del changed.attribute[j]
            smaller = _changed(graph, i, changed)
            if smaller is not None:
                yield smaller


def _changed(graph: RandomGraph, i: int, node: NodeProto) -> RandomGraph | None:
    """The graph with another node in a place, or None where its reference does not take it."""
    values = {**graph.constants, **graph.runs[0].feeds, **graph.runs[0].values}
    known = {n: Value(n, values[n], _type(graph, n, values[n])) for n in reads(node)}
    try:
        steps = [*graph.steps[:i], Eager(node, known, graph.opsets), *graph.steps[i + 1 :]]
        runs = [Run(r.feeds, evaluate(steps, {**r.feeds, **graph.constants})) for r in graph.runs]
    except (SardonyxError, ArithmeticError):
        return None
    return replace(
        graph, nodes=[*graph.nodes[:i], node, *graph.nodes[i + 1 :]], steps=steps, runs=runs
    )


def _type(graph: RandomGraph, name: str, data: object) -> TypeProto:
    return type_of(data) if isinstance(data, np.ndarray) else graph.types[name]
