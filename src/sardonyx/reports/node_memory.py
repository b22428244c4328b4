"""Memory by node over a session's runs, as onnxruntime's session.collect_node_memory_stats_to_file.

Every tensor counts once: a fed or constant one for the node that reads it first, any other for the
node that makes it. What a kernel works in, and copies made for it, are its temporary memory.
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
from sardonyx.reports.memory import Timeline
from sardonyx.reports.memory_timeline import Dims, bytes_of, walk

KEY: Final = "session.collect_node_memory_stats_to_file"
COLUMNS: Final = (
    "#name",
    "input_sizes",
    "initializers_sizes",
    "total_dynamic_sizes",
    "total_temp_allocations",
)
_INPUTS, _WEIGHTS, _MADE, _TEMPORARY = range(4)
_KEPT: Final = 1024
_COPY: Final = "copy"  # the kernel of steps that native code has and the graph has not

Row = list[int]


def target(value: str, model: str | None) -> str:
    """The file that a config value names: beside the model, unless it says where."""
    if not value:
        raise InvalidArgument(f"{KEY} is the name of a file, and it is empty")
    path = os.path.join(os.path.dirname(model) if model is not None else "", value)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise NoSuchFile(f"{KEY} is {value!r}, and there is no folder {folder}")
    if os.path.isdir(path):
        raise InvalidArgument(f"{KEY} is {value!r}, which is a folder")
    return path


class NodeStats:
    """The most that any run took, by node; written whenever a run takes more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        self._program: Program | None = None
        self._seen: set[frozenset[tuple[str, int]]] = set()  # sizes that were counted for it
        self._lock = Lock()

    def add(self, graph: Graph, program: Program, dims: Dims) -> None:
        """A run with these sizes has ended."""
        sizes = frozenset(dims.items())
        with self._lock:
            if self._program is not program or len(self._seen) >= _KEPT:
                self._program, self._seen = program, set()
            if sizes in self._seen:
                return
            self._seen.add(sizes)
            if self._raise(rows_of(graph, program, dims)):
                self._write()

    def _raise(self, rows: dict[str, Row]) -> bool:
        """Takes the greater of each figure; whether any was."""
        before = {name: list(row) for name, row in self._rows.items()}
        for name, row in rows.items():
            self._rows[name] = list(map(max, row, self._rows.get(name, row)))
        return before != self._rows

    def _write(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [COLUMNS, *([name, *row] for name, row in self._rows.items())]
        )
        with writing(self.path) as file:
            file.write(text.getvalue().encode())


def rows_of(graph: Graph, program: Program, dims: Dims) -> dict[str, Row]:
    """The figures of each node, in the order they run; nodes without a step come last."""
    found, nodes = walk(program, dims)
    rows: dict[Node, Row] = {node: [0, 0, 0, 0] for node in (*nodes, *graph.sorted_nodes())}
    _count_made(rows, nodes, found, dims)
    seen: set[object] = set()
    inputs = set(graph.inputs)
    for node, row in rows.items():
        for value in node.reads():
            const = value.const
            key = value if const is None else const.place
            if key in seen:
                continue
            if const is not None:
                row[_WEIGHTS] += const.dtype.packed_bytes(const.count)
            elif value in inputs:
                row[_INPUTS] += bytes_of(value.fact, dims)
            seen.add(key)
    return dict(zip(_names(rows), rows.values(), strict=True))


def _count_made(rows: dict[Node, Row], nodes: list[Node], found: Timeline, dims: Dims) -> None:
    for node, step in zip(nodes, found.steps, strict=True):
        if step.kernel != _COPY:
            rows[node][_MADE] += sum(bytes_of(v.fact, dims) for v in node.outputs)
    for tensor in found.tensors:
        is_copy = tensor.kind != "input" and found.steps[tensor.made].kernel == _COPY
        if is_copy and tensor.kind == "output":
            rows[nodes[tensor.made]][_MADE] += tensor.bytes
        elif is_copy or tensor.kind == "scratch":
            rows[nodes[tensor.made]][_TEMPORARY] += tensor.bytes


def _names(nodes: Iterable[Node]) -> list[str]:
    """The nodes' names; equal ones are told apart by a number."""
    found: dict[str, None] = {}
    for node in nodes:
        name = wanted = node.name or node.op.name
        number = 2
        while name in found:
            name, number = f"{wanted}#{number}", number + 1
        found[name] = None
    return list(found)
