"""Makes a graph with a difference smaller: fewer outputs, nodes, sizes and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from tests.random_graphs.eager import Eager, reads
from tests.random_graphs.graph import RandomGraph, Run
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
    made = [o for i in gone for o in graph.nodes[i].output if o]
    inputs = dict(graph.inputs)
    inputs |= {n: _static(graph, n) for n in made if n in graph.types}
    runs = [
        Run({**r.feeds, **{n: r.values[n] for n in made if n in r.values}}, r.values, r.noisy)
        for r in graph.runs
    ]
    outputs = [n for n in graph.outputs if n not in made]
    return pruned(replace(graph, nodes=nodes, inputs=inputs, runs=runs, outputs=outputs))


def _static(graph: RandomGraph, name: str):  # type: ignore[no-untyped-def]
    data = graph.runs[0].values.get(name)
    if isinstance(data, np.ndarray):
        return type_of(data, [None] * data.ndim if len(graph.runs) > 1 else "same")
    return graph.types[name]


def pruned(graph: RandomGraph) -> RandomGraph:
    """Only what the outputs need."""
    wanted = set(graph.outputs)
    nodes: list[NodeProto] = []
    for node in reversed(graph.nodes):
        if wanted & set(node.output):
            nodes.append(node)
            wanted |= set(reads(node))
    return replace(
        graph,
        nodes=nodes[::-1],
        inputs={n: t for n, t in graph.inputs.items() if n in wanted},
        constants={n: a for n, a in graph.constants.items() if n in wanted},
        runs=[replace(r, feeds={n: x for n, x in r.feeds.items() if n in wanted}) for r in graph.runs],
    )


def _with_fewer_attributes(graph: RandomGraph) -> Iterator[RandomGraph]:
    """One attribute less; the values are computed anew."""
    for i, node in enumerate(graph.nodes):
        for j in range(len(node.attribute)):
            changed = NodeProto()
            changed.CopyFrom(node)
            del changed.attribute[j]
            try:
                yield recomputed(replace(graph, nodes=[*graph.nodes[:i], changed, *graph.nodes[i + 1 :]]))
            except Exception:  # whatever a reference says of a node that lacks an attribute
                continue


def recomputed(graph: RandomGraph) -> RandomGraph:
    """The graph with its values as its nodes make them now, and no word on rounding."""
    runs = []
    for run in graph.runs:
        values = {**run.feeds, **graph.constants}
        for node in graph.nodes:
            known = {n: Value(n, values[n], _type(graph, n, values[n])) for n in reads(node)}
            results = Eager(node, known, graph.opsets)(values)
            values |= dict(zip([n for n in node.output if n], results, strict=False))
        runs.append(Run(run.feeds, values, run.noisy))
    return replace(graph, runs=runs)


def _type(graph: RandomGraph, name: str, data: object):  # type: ignore[no-untyped-def]
    return type_of(data) if isinstance(data, np.ndarray) else graph.types[name]
