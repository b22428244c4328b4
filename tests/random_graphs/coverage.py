"""Coverage: the ops of the graphs with their types, and the ops that no graph has."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import numpy as np
import onnx.defs
from onnx import AttributeProto, GraphProto, NodeProto

from sardonyx.ops import OPS_INDEX
from tests.random_graphs.graph import RandomGraph
from tests.random_graphs.schema import ops_of_onnxruntime
from tests.random_graphs.value import name_of


def kinds_of(graph: RandomGraph) -> list[tuple[str, str]]:
    """The ops of a graph, each with the type of what it makes or reads first."""
    values = {**graph.constants, **graph.runs[0].feeds, **graph.runs[0].values}
    return [*_kinds(graph.nodes, values)]


def _kinds(nodes: Iterable[NodeProto], values: dict[str, object]) -> Iterable[tuple[str, str]]:
    for node in nodes:
        names = [n for n in (*node.input, *node.output) if n in values]
        first = values[names[0]] if names else None
        dtype = name_of(first) if isinstance(first, np.ndarray) else type(first).__name__
        yield f"{node.domain}.{node.op_type}".lstrip("."), dtype
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                yield from _inner(a.g)


def _inner(body: GraphProto) -> Iterable[tuple[str, str]]:
    return [(f"{n.domain}.{n.op_type}".lstrip("."), "in a body") for n in body.node]


class Coverage:
    """Counts of ops by type."""

    def __init__(self) -> None:
        self.counts: dict[str, collections.Counter[str]] = {}

    def add(self, kinds: Iterable[tuple[str, str]]) -> None:
        for op, dtype in kinds:
            self.counts.setdefault(op, collections.Counter())[dtype] += 1

    def missing(self) -> list[str]:
        """Ops that we have, or that ONNX and onnxruntime have, and that no graph had."""
        ours = {k for k in OPS_INDEX.all() if not k[0].startswith("sardonyx")}
        standard = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()}
        wanted = {f"{d}.{n}".lstrip(".") for d, n in ours | (standard & ops_of_onnxruntime())}
        return sorted(wanted - self.counts.keys())

    def show(self) -> None:
        for op, counts in sorted(self.counts.items()):
            shown = ", ".join(f"{t} {n}" for t, n in counts.most_common())
            print(f"{op:40} {sum(counts.values()):7}  {shown}")
        print("never:", *self.missing())
