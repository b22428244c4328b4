"""Regions as CUDA graphs: one for each set of sizes, with buffers of its own."""

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

MOST: Final = 8  # graphs of a region that are kept
Key = tuple[Any, ...]
Outputs = tuple[Any, ...]
Call = Callable[[Sequence[Any]], Outputs]


class Recorder(Protocol):
    """Makes something that can be replayed of a call."""

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """The outputs, whose memory stays, and what computes them anew."""
        ...

    def ordered(self) -> AbstractContextManager[None]:
        """What is asked of the device within this follows what was asked within it before."""
        ...


class CudaRecorder:
    """Records on a stream of its own, into one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = Lock()
        self._last: tuple[int, torch.cuda.Event] | None = None

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """A CUDA graph of all that the call launches.

        The call runs once before: what libraries and functions keep for a stream is not to lie in
        the memory of graphs, which write over each other's.
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
        """Graphs share memory: one on another stream than the last waits for that."""
        with self._lock:
            current = torch.cuda.current_stream()
            if self._last is not None and self._last[0] != current.cuda_stream:
                current.wait_event(self._last[1])
            yield
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(current)
            self._last = current.cuda_stream, event


@frozen
class _Graph:
    """A recorded region with the memory that it reads and writes."""

    inputs: tuple[Any, ...]
    outputs: Outputs
    replay: Callable[[], None]
    keeps: Any  # memory beside these that the recorded calls read


@frozen
class Asked:
    """A run of a region: its inputs, where outputs are to lie, and what it is known by."""

    values: Sequence[Any]
    places: Sequence[Any]
    key: Key
    is_bound: bool  # inputs and places keep their memory from run to run
    keeps: Any = None  # what the call reads beside its inputs


class Graphs:
    """The graphs of one region. A run beside another one goes without."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = Lock()
        self._is_off = False  # recording failed
        self._graphs: OrderedDict[Key, _Graph | None] = OrderedDict()  # None: seen once

    def run(self, asked: Asked, call: Call) -> Outputs | None:
        """The outputs of a run, which `call` makes of inputs; None if it must do without a graph.

        What `call` needs beside its inputs is the same in each run of a key.
        """
        if not all(isinstance(v, Tensor) for v in asked.values):
            return None
        if self._is_off or not self._lock.try_acquire():
            return None
        try:
            key = (*asked.key, *_addresses(asked)) if asked.is_bound else asked.key
            graph = self._find(key, asked, call)
            return None if graph is None else self._replay(graph, asked)
        finally:
            self._lock.release()

    def release(self, graph_id: int) -> None:
        """Forgets all graphs whose keys begin with an id."""
        with self._lock:
            for key in [k for k in self._graphs if k[0] == graph_id]:
                del self._graphs[key]

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def _find(self, key: Key, asked: Asked, call: Call) -> _Graph | None:
        """The graph of a key: recorded the second time that it is asked for."""
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > 2 * MOST:
                self._graphs.popitem(last=False)
            return None
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            if len(self) >= MOST:
                self._drop_oldest()
            graph = self._graphs[key] = self._record(asked, call)
        return graph

    def _drop_oldest(self) -> None:
        oldest = next(key for key, graph in self._graphs.items() if graph is not None)
        del self._graphs[oldest]

    def _record(self, asked: Asked, call: Call) -> _Graph | None:
        inputs = tuple(asked.values)
        if not asked.is_bound:
            inputs = tuple(v.clone(memory_format=torch.contiguous_format) for v in inputs)
        places = asked.places if asked.is_bound else [None] * len(asked.places)

        def written() -> Outputs:
            return tuple(map(put, call(inputs), places))

        try:
            outputs, replay = self._recorder.record(written)
        except (RuntimeError, SardonyxError) as error:  # a run without a graph may do, or tells why
            logger.warning("a region cannot be recorded, and runs without: %s", error)
            self._is_off = True
            return None
        logger.info("recorded a graph of %d inputs: %s", len(inputs), asked.key)
        return _Graph(inputs, outputs, replay, asked.keeps)

    def _replay(self, graph: _Graph, asked: Asked) -> Outputs:
        with self._recorder.ordered():
            if not asked.is_bound:
                for own, given in zip(graph.inputs, asked.values, strict=True):
                    own.copy_(given)
            graph.replay()
            return tuple(map(_handed, graph.outputs, asked.places))


def _handed(output: Any, place: Any) -> Any:
    """A graph's output at its place, or in memory that the next replay does not write."""
    if output is place:
        return place
    there = put(output, place)
    return output.clone() if there is output and isinstance(output, Tensor) else there


def put(value: Any, place: Any) -> Any:
    """A value at its place; where it lies if it has none, or one of another kind or shape."""
    if not isinstance(place, Tensor) or not isinstance(value, Tensor):
        return value
    if value.shape != place.shape:
        return value
    if value.data_ptr() != place.data_ptr():
        place.copy_(value)
    return place


def _addresses(asked: Asked) -> tuple[int, ...]:
    tensors = (*asked.values, *asked.places)
    return tuple([v.data_ptr() if isinstance(v, Tensor) else 0 for v in tensors])
