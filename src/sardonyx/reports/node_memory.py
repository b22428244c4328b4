"""Memory statistics by node: session.collect_node_memory_stats_to_file of onnxruntime.

Every tensor counts once: an input or initializer for the first node that reads it, any other for
the node that produces it. Scratch of a kernel, and copies of its inputs, are temporary memory.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from typing import Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.locks import Lock
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.graph.graph import Graph, Node
from sardonyx.program.program import Program
from sardonyx.reports.planned_part import Dims, bytes_of
from sardonyx.reports.timeline import Timeline
from sardonyx.reports.timeline_builder import timeline_and_nodes

KEY: Final = "session.collect_node_memory_stats_to_file"
COLUMNS: Final = (
    "#name",
    "input_sizes",
    "initializers_sizes",
    "total_dynamic_sizes",
    "total_temp_allocations",
)
_INPUTS, _WEIGHTS, _OUTPUTS, _TEMPORARY = range(4)  # columns after the name
_MAX_SEEN: Final = 1024  # combinations of sizes remembered, so that memory stays bounded
_COPY: Final = "copy"  # the kernel of steps that are not nodes of the graph

Figures = list[int]


def target(value: str, model: str | None) -> str:
    """Return the path that a config value names; relative to the model's folder."""
    if not value:
        raise InvalidArgument(f"{KEY} is empty, not the name of a file")
    path = os.path.join(os.path.dirname(model) if model is not None else "", value)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise NoSuchFile(f"{KEY} is {value!r}, and there is no folder {folder}")
    if os.path.isdir(path):
        raise InvalidArgument(f"{KEY} is {value!r}, which is a folder")
    return path


class NodeStats:
    """The maximum of any run, by node; the file is rewritten whenever it grows. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._figures: dict[str, Figures] = {}
        self._program: Program | None = None
        self._seen: set[frozenset[tuple[str, int]]] = set()  # sizes counted for the program
        self._lock = Lock()  # guards all of these, and the file

    def add(self, graph: Graph, program: Program, dims: Dims) -> None:
        """Count a finished run with these sizes."""
        sizes = frozenset(dims.items())
        with self._lock:
            # Another program has another memory plan for the same sizes.
            if self._program is not program or len(self._seen) >= _MAX_SEEN:
                self._program, self._seen = program, set()
            if sizes in self._seen:
                return
            self._seen.add(sizes)
            if self._merge(node_figures(graph, program, dims)):
                self._write()

    def _merge(self, figures: dict[str, Figures]) -> bool:
        """Keep the maximum of each figure; return whether any changed."""
        before = {name: list(numbers) for name, numbers in self._figures.items()}
        for name, numbers in figures.items():
            self._figures[name] = list(map(max, numbers, self._figures.get(name, numbers)))
        return before != self._figures

    def _write(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [COLUMNS, *([name, *numbers] for name, numbers in self._figures.items())]
        )
        with writing(self.path) as file:
            file.write(text.getvalue().encode())


def node_figures(graph: Graph, program: Program, dims: Dims) -> dict[str, Figures]:
    """Return the figures of each node in execution order; nodes without a step come last."""
    timeline, nodes = timeline_and_nodes(program, dims)
    figures: dict[Node, Figures] = {n: [0, 0, 0, 0] for n in (*nodes, *graph.sorted_nodes())}
    _count_outputs(figures, nodes, timeline, dims)
    seen: set[object] = set()
    inputs = set(graph.inputs)
    for node, numbers in figures.items():
        for value in node.reads():
            const = value.const
            key = value if const is None else const.content_id
            if key in seen:
                continue
            if const is not None:
                numbers[_WEIGHTS] += const.dtype.packed_bytes(const.count)
            elif value in inputs:
                numbers[_INPUTS] += bytes_of(value.fact, dims)
            seen.add(key)
    return dict(zip(_unique_names(figures), figures.values(), strict=True))


def _count_outputs(
    figures: dict[Node, Figures], nodes: list[Node], timeline: Timeline, dims: Dims
) -> None:
    """Add the outputs and the temporary memory of each node."""
    for node, step in zip(nodes, timeline.steps, strict=True):
        if step.kernel != _COPY:
            figures[node][_OUTPUTS] += sum(bytes_of(v.fact, dims) for v in node.outputs)
    for tensor in timeline.tensors:
        is_copy = tensor.kind != "input" and timeline.steps[tensor.made].kernel == _COPY
        if is_copy and tensor.kind == "output":
            figures[nodes[tensor.made]][_OUTPUTS] += tensor.bytes
        elif is_copy or tensor.kind == "scratch":
            figures[nodes[tensor.made]][_TEMPORARY] += tensor.bytes


def _unique_names(nodes: Iterable[Node]) -> list[str]:
    """Return the nodes' names; repeated ones get a number."""
    names: dict[str, None] = {}
    for node in nodes:
        name = base = node.name or node.op.name
        number = 2
        while name in names:
            name, number = f"{base}#{number}", number + 1
        names[name] = None
    return list(names)
