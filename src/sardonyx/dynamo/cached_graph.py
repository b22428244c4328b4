"""A compiled graph that torch's AOTAutogradCache can store. Needs a recent torch."""

from __future__ import annotations

import json
import time
from contextvars import ContextVar
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from sardonyx.base.records import as_dict, frozen
from sardonyx.dynamo.absent_gradients import BackwardExecutor
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.freezing import FreezingExecutor, executor_of
from sardonyx.dynamo.lower import LoweredGraph
from sardonyx.dynamo.report import GraphReport, Report
from sardonyx.graph.const import ArrayConst
from sardonyx.load.model import Model
from sardonyx.pack.codec import Unwritable, read_dtype
from sardonyx.pack.constants import stored
from sardonyx.pack.graph import GraphReader, PackGraphWriter

# The report of the module that is being compiled: torch does not say for whom it loads a graph.
CURRENT_REPORT: Final[ContextVar[Report | None]] = ContextVar("sardonyx_report", default=None)


class CachedGraph(OutputCode):
    """A boxed function that torch stores with AOTAutograd's wrappers around it, and loads again."""

    n_stored: ClassVar[int] = 0  # by this process

    def __init__(self, run: Any, kind: str, n_nodes: int) -> None:
        self._boxed_call = True  # of the object: torch's wrappers copy its attributes
        self._run, self._kind, self._n_nodes = run, kind, n_nodes
        self._stored: StoredGraph | None = None

    def __call__(self, inputs: Any) -> Any:
        """Run with the torch graph's arguments, in a list that is emptied."""
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Replace the executor by what it is made of; torch calls this on a copy."""
        if not isinstance(self._run, (Executor, BackwardExecutor, FreezingExecutor)):
            raise BypassAOTAutogradCache("calls of the graph run in torch")
        self._stored, self._run = store(self._run.lowered), None
        CachedGraph.n_stored += 1

    def post_compile(self, *_: Any) -> None:
        """Compile the stored graph; torch calls this when it has loaded one."""
        assert self._stored is not None
        begin = time.perf_counter()
        with unset_fake_temporarily():
            is_backward = self._kind == "backward"
            self._run = executor_of(load(self._stored), torch.get_num_threads(), is_backward)
        report = CURRENT_REPORT.get()
        if report is not None:
            seconds = time.perf_counter() - begin
            entry = GraphReport(self._kind, self._n_nodes, 1, [], seconds, True, self._run)
            report.graphs.append(entry)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels."""


@frozen
class StoredGraph:
    """A lowered graph, with its model as a pack has it."""

    document: str  # JSON
    constants: tuple[tuple[str, tuple[int, ...], bytes], ...]  # type, shape, bytes
    mapping: dict[str, Any]  # the other fields of the lowered graph


def store(lowered: LoweredGraph) -> StoredGraph:
    """Return a lowered graph as plain data; a graph that cannot be serialized is not cached."""
    mapping = {name: value for name, value in as_dict(lowered).items() if name != "model"}
    writer = PackGraphWriter()
    try:
        document = json.dumps(writer.model(lowered.model), allow_nan=False)
    except (Unwritable, ValueError) as error:
        raise BypassAOTAutogradCache(f"the graph has no stored form: {error}") from None
    constants = [
        (c.dtype.name, tuple(c.shape), b"".join(map(bytes, stored(c)))) for c in writer.table.consts
    ]
    return StoredGraph(document, tuple(constants), mapping)


def load(graph: StoredGraph) -> LoweredGraph:
    """Return a stored graph; its model is checked and its types are inferred again."""
    constants = [
        ArrayConst(np.frombuffer(content, read_dtype(dtype).np).reshape(shape))
        for dtype, shape, content in graph.constants
    ]
    model: Model = GraphReader(json.loads(graph.document), constants).model("sardonyx.dynamo")
    return LoweredGraph(model=model, **graph.mapping)
