"""Inference graphs with the parameters of their module frozen to constants of the session.

Constants are folded and packed, as those of an ONNX model are; parameters that are inputs are not.
Parameters may still change at any time: each call compares them with those that the constants were
made from.

- Torch counts writes to a tensor (`Tensor._version`), and `.data = ...` gives it other memory.
- Writes that torch does not count (`p.data[i] = 0`, `p.numpy()`) are found by a digest of all
  bytes. Reading them costs less than packing the weights in each call would. After some calls
  without a change only pages that the kernel says were written are read, where it can say that;
  `freeze="versions"` compares `Tensor._version` only.

After a change the parameters are inputs again, until the calls since then have taken as long as
freezing did: a loop that alternates training and evaluation does not compile in each iteration.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final
from weakref import ref

import numpy as np
import torch

from sardonyx._native import MemoryDigest
from sardonyx.base.locks import Lock
from sardonyx.base.records import field, mutable, replace
from sardonyx.dynamo.absent_gradients import BackwardExecutor
from sardonyx.dynamo.executor import Executor, as_array, items
from sardonyx.dynamo.lower import LoweredGraph
from sardonyx.graph.const import ArrayConst, Const, Source, SourceConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.copy import copied
from sardonyx.graph.dtype import by_numpy

State = tuple[tuple[int, ...], tuple[int, ...]]  # address and version of each tensor
_VERSION: Final = attrgetter("_version")


@mutable
class _Parameters:
    """The parameters of one module that calls the graph."""

    state: State
    memory: MemoryDigest | None  # of the tensors; None if only `_version` is compared
    digest: int  # that of the memory
    run: Executor | None = None  # with these parameters as constants
    seconds_to_freeze: float = 0.0
    seconds_open: float = 0.0  # of calls with the parameters as inputs, since they changed
    owners: list[Any] = field(default_factory=list)  # weak references to the tensors

    def is_in(self, state: State | None, threads: int) -> bool:
        """Whether the tensors, whose state is `state` now, are unchanged."""
        if self.state != state:
            return False
        return self.memory is None or self.memory.compute(threads) == self.digest


class FreezingExecutor:
    """A lowered graph whose `parameters` are constants while they do not change. Thread-safe.

    Modules of one class share a compiled graph, with a session for the parameters of each module.
    The parameters of the first call are frozen immediately, those of other modules in their second
    call. A session is dropped when one of its parameters is freed.
    """

    def __init__(self, lowered: LoweredGraph, threads: int) -> None:
        self.lowered = lowered
        self._threads = threads
        self._parameters = items(lowered.parameters)
        self._known: dict[tuple[int, ...], _Parameters] = {}  # by ids of the tensors
        self._open: Executor | None = None  # with parameters as inputs
        self._has_frozen = False
        self._lock = Lock()

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run with the torch graph's arguments, in a list that is emptied (boxed)."""
        tensors = self._parameters(args)
        key = tuple(map(id, tensors))
        known = self._known.get(key)
        state = _state(tensors)
        if known is None or known.run is None or not known.is_in(state, self._threads):
            with self._lock:
                known = self._updated(key, tensors, state)
        run, begin = known.run, time.perf_counter()
        if run is not None:
            return run(args)
        try:
            return self._with_inputs()(args)
        finally:
            known.seconds_open += time.perf_counter() - begin

    @property
    def n_frozen(self) -> int:
        """How many sessions have parameters as constants."""
        return sum(known.run is not None for known in list(self._known.values()))

    def _updated(
        self, key: tuple[int, ...], tensors: tuple[torch.Tensor, ...], state: State | None
    ) -> _Parameters:
        """Return the record of these tensors in this state."""
        if state is None:  # a tensor whose writes are not counted
            return _Parameters(((), ()), None, 0)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._record(tensors, state)
            known.owners = [ref(tensor, self._forget(key)) for tensor in tensors]
            if not self._has_frozen:
                self._freeze(known, tensors)
        elif not known.is_in(state, self._threads):
            # A new record, as other threads may be reading the old one.
            new = self._record(tensors, state)
            new.owners, new.seconds_to_freeze = known.owners, known.seconds_to_freeze
            known = self._known[key] = new
        elif known.run is None and known.seconds_open >= known.seconds_to_freeze:
            self._freeze(known, tensors)
        return known

    def _record(self, tensors: tuple[torch.Tensor, ...], state: State) -> _Parameters:
        """Return a new record of tensors in this state."""
        if self.lowered.relies_on_versions:
            return _Parameters(state, None, 0)
        memory = MemoryDigest([(tensor.data_ptr(), _extent(tensor)) for tensor in tensors])
        return _Parameters(state, memory, memory.compute(self._threads))

    def _freeze(self, known: _Parameters, tensors: tuple[torch.Tensor, ...]) -> None:
        begin = time.perf_counter()
        names = dict(self.lowered.tensors)
        addresses, versions = known.state
        constants = {
            names[index]: _const(tensor, (address, version, known.digest))
            for index, tensor, address, version in zip(
                self.lowered.parameters, tensors, addresses, versions, strict=True
            )
        }
        known.run = Executor(with_constants(self.lowered, constants), self._threads)
        known.seconds_to_freeze = time.perf_counter() - begin
        self._has_frozen = True

    def _forget(self, key: tuple[int, ...]) -> Any:
        """Return a weakref callback that drops the record of these tensors."""
        owner = ref(self)

        def forget(_: Any) -> None:
            executor = owner()
            if executor is not None:
                executor._known.pop(key, None)

        return forget

    def _with_inputs(self) -> Executor:
        if self._open is None:
            with self._lock:
                if self._open is None:
                    self._open = Executor(self.lowered, self._threads)
        return self._open


def executor_of(lowered: LoweredGraph, threads: int, is_backward: bool = False) -> Any:
    """Return the executor of a lowered graph: one that freezes parameters, if it has any."""
    if lowered.parameters:
        return FreezingExecutor(lowered, threads)
    if is_backward:
        return BackwardExecutor(lowered, threads)
    return Executor(lowered, threads)


def with_constants(lowered: LoweredGraph, constants: Mapping[str, Const]) -> LoweredGraph:
    """Return a lowered graph with inputs replaced by constants, by name."""
    model = lowered.model
    graph = copied(model.graph)
    inputs = graph.inputs
    for value in inputs:
        if value.name in constants:
            graph.replace(value, constant(constants[value.name], value.name))
    graph.set_inputs([v for v in inputs if v.name not in constants])
    declared = [d for d in model.inputs if d.name not in constants]
    return replace(
        lowered,
        model=replace(model, graph=graph, inputs=declared),
        tensors=tuple(pair for pair in lowered.tensors if pair[1] not in constants),
        parameters=(),
    )


def _state(tensors: tuple[torch.Tensor, ...]) -> State | None:
    """Return what changes when a tensor does; None if torch does not count writes to one."""
    try:
        return tuple(map(torch.Tensor.data_ptr, tensors)), tuple(map(_VERSION, tensors))
    except RuntimeError:  # made in torch.inference_mode
        return None


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _const(tensor: torch.Tensor, state: tuple[int, ...]) -> Const:
    """Return a constant over a tensor's memory, which it keeps alive.

    Sessions share packed weights of constants with one identity: address, strides, which tell a
    matrix from its transpose, version and digest.
    """
    array = as_array(tensor)
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    if not array.size:
        return ArrayConst(array)
    data = array.reshape(-1).view(np.uint8).data
    return SourceConst(
        Source(data, "a parameter", ("tensor", tensor.stride(), *state)),
        0,
        data.nbytes,
        dtype,
        array.shape,
    )
