"""Regions as CUDA graphs: one for each set of sizes, with buffers of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from sardonyx.locks import Lock
from sardonyx.log import logger

MOST: Final = 8  # graphs of a region that are kept
Key = tuple[Any, ...]
Outputs = tuple[Any, ...]
Call = Callable[[Sequence[Any]], Outputs]


class Recorder(Protocol):
    """Makes something that can be replayed of a call."""

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """The outputs, whose memory stays, and what computes them anew."""
        ...

    def order(self) -> None:
        """Lets what this thread asks of the device next wait for what was asked before."""
        ...


class CudaRecorder:
    """Records on a stream of its own, into one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._last: tuple[int, torch.cuda.Event] | None = None

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """A CUDA graph of all that the call launches."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = call()
        return outputs, graph.replay

    def order(self) -> None:
        """Graphs share memory: one on another stream than the last waits for that."""
        current = torch.cuda.current_stream()
        if self._last is not None and self._last[0] != current.cuda_stream:
            current.wait_event(self._last[1])
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(current)
        self._last = current.cuda_stream, event


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded region with the memory that it reads and writes."""

    inputs: tuple[Any, ...]
    outputs: Outputs
    replay: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A run of a region: its inputs, where outputs are to lie, and what it is known by."""

    values: Sequence[Any]
    places: Sequence[Any]
    key: Key
    is_bound: bool  # inputs and places keep their memory from run to run


class Graphs:
    """The graphs of one region. A run beside another one goes without."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = Lock()
        self._graphs: OrderedDict[Key, _Graph | None] = OrderedDict()  # None: seen once

    def run(self, asked: Asked, call: Call) -> Outputs | None:
        """The outputs of a run, which `call` makes of inputs; None if it must do without a graph.

        What `call` needs beside its inputs is the same in each run of a key.
        """
        if not all(isinstance(v, Tensor) for v in asked.values):
            return None
        if not self._lock.try_acquire():
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
        if graph is None and len(self) < MOST:
            graph = self._graphs[key] = self._record(asked, call)
        elif graph is None:
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

        outputs, replay = self._recorder.record(written)
        logger.info("recorded a graph of %d inputs: %s", len(inputs), asked.key)
        return _Graph(inputs, outputs, replay)

    def _replay(self, graph: _Graph, asked: Asked) -> Outputs:
        self._recorder.order()
        if not asked.is_bound:
            for own, given in zip(graph.inputs, asked.values, strict=True):
                own.copy_(given)
        graph.replay()
        made = []
        for output, place in zip(graph.outputs, asked.places, strict=True):
            if output is place:
                made.append(place)
                continue
            there = put(output, place)
            is_own = there is output and isinstance(output, Tensor)
            made.append(output.clone() if is_own else there)
        return tuple(made)


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
