"""CUDA graph capture of regions: one graph per set of sizes, with static input buffers.

Capture rules: no synchronization, no allocation outside of the graph's memory pool, and the same
addresses on each replay. Inputs are therefore copied into static buffers, unless an IOBinding keeps
their memory from run to run.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from sardonyx.base.locks import Lock
from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.errors import SardonyxError

MAX_GRAPHS: Final = 8  # per region; then the least recently used is released
Key = tuple[Any, ...]
Outputs = tuple[Any, ...]
Call = Callable[[Sequence[Any]], Outputs]


class Recorder(Protocol):
    """Records the device work of a call for replay."""

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """Return the outputs, whose memory is static, and a function that recomputes them."""
        ...

    def ordered(self) -> AbstractContextManager[None]:
        """Order device work in this context after the work in earlier such contexts."""
        ...


class CudaRecorder:
    """Captures on a separate stream, with one memory pool for all graphs of a provider."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = Lock()
        self._last: tuple[int, torch.cuda.Event] | None = None

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """Capture all launches of a call in a CUDA graph.

        The call runs once before (warm-up): workspaces that libraries allocate per stream must not
        come from the pool, whose memory graphs overwrite mutually.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            call()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = call()
        return outputs, graph.replay

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """Graphs share the pool's memory: a replay on another stream waits for the last one."""
        with self._lock:
            current = torch.cuda.current_stream()
            if self._last is not None and self._last[0] != current.cuda_stream:
                current.wait_event(self._last[1])
            yield
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(current)
            self._last = current.cuda_stream, event


@frozen
class _CapturedGraph:
    """A captured region with the memory that it reads and writes."""

    inputs: tuple[Any, ...]
    outputs: Outputs
    replay: Callable[[], None]
    references: Any  # keeps other memory alive that the captured calls read


@frozen
class GraphRequest:
    """A run of a region: inputs, output buffers, and the key of its graph."""

    values: Sequence[Any]
    buffers: Sequence[Any]  # for the outputs; None: no preference
    key: Key
    is_bound: bool  # inputs and buffers have the same memory in each run (IOBinding)
    references: Any = None  # other memory that the call reads


class GraphCache:
    """The graphs of one region. Concurrent runs of the region run without a graph."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = Lock()
        self._is_off = False  # capture failed
        self._graphs: OrderedDict[Key, _CapturedGraph | None] = OrderedDict()  # None: seen once

    def run(self, request: GraphRequest, call: Call) -> Outputs | None:
        """Return the outputs of a run by a graph of `call`; None if there is no graph for it.

        Apart from its inputs, `call` must read the same memory in each run of a key.
        """
        if not all(isinstance(v, Tensor) for v in request.values):
            return None
        if self._is_off or not self._lock.try_acquire():
            return None
        try:
            # Bound memory is read directly, so its addresses are part of the key.
            key = (*request.key, *_addresses(request)) if request.is_bound else request.key
            graph = self._find(key, request, call)
            return None if graph is None else self._replay(graph, request)
        finally:
            self._lock.release()

    def release(self, graph_id: int) -> None:
        """Release all graphs whose keys begin with an id."""
        with self._lock:
            for key in [k for k in self._graphs if k[0] == graph_id]:
                del self._graphs[key]

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def _find(self, key: Key, request: GraphRequest, call: Call) -> _CapturedGraph | None:
        """Return the graph of a key; captured at the second request: one-off sizes do not pay."""
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > 2 * MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return None
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            if len(self) >= MAX_GRAPHS:
                self._drop_oldest()
            graph = self._graphs[key] = self._record(request, call)
        return graph

    def _drop_oldest(self) -> None:
        oldest = next(key for key, graph in self._graphs.items() if graph is not None)
        del self._graphs[oldest]

    def _record(self, request: GraphRequest, call: Call) -> _CapturedGraph | None:
        inputs = tuple(request.values)
        if not request.is_bound:
            inputs = tuple(v.clone(memory_format=torch.contiguous_format) for v in inputs)
        buffers = request.buffers if request.is_bound else [None] * len(request.buffers)

        def run_into_buffers() -> Outputs:
            return tuple(map(copy_to, call(inputs), buffers))

        try:
            outputs, replay = self._recorder.record(run_into_buffers)
        except (RuntimeError, SardonyxError) as error:
            # A run without a graph may succeed; else it raises the error.
            logger.warning("a region cannot be captured and runs without a CUDA graph: %s", error)
            self._is_off = True
            return None
        logger.info("captured a CUDA graph of %d inputs: %s", len(inputs), request.key)
        return _CapturedGraph(inputs, outputs, replay, request.references)

    def _replay(self, graph: _CapturedGraph, request: GraphRequest) -> Outputs:
        with self._recorder.ordered():
            # Replay reads the static inputs, in the order of the stream after these copies.
            if not request.is_bound:
                for static, value in zip(graph.inputs, request.values, strict=True):
                    static.copy_(value)
            graph.replay()
            return tuple(map(_deliver, graph.outputs, request.buffers))


def _deliver(output: Any, buffer: Any) -> Any:
    """Return a graph's output in its buffer, or in memory that the next replay does not write."""
    if output is buffer:
        return buffer
    delivered = copy_to(output, buffer)
    return output.clone() if delivered is output and isinstance(output, Tensor) else delivered


def copy_to(value: Any, buffer: Any) -> Any:
    """Copy a tensor into a buffer of its shape and return that; else return the value itself."""
    if not isinstance(buffer, Tensor) or not isinstance(value, Tensor):
        return value
    if value.shape != buffer.shape:
        return value
    if value.data_ptr() != buffer.data_ptr():
        buffer.copy_(value)
    return buffer


def _addresses(request: GraphRequest) -> tuple[int, ...]:
    tensors = (*request.values, *request.buffers)
    return tuple([v.data_ptr() if isinstance(v, Tensor) else 0 for v in tensors])
