"""Run a lowered graph: torch arguments in, torch results out, without copies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache, wraps
from operator import itemgetter
from threading import Event
from typing import Any, Final

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sardonyx._native import Caching, TensorExchange
from sardonyx.base.torch_tensor import Borrowed
from sardonyx.dynamo.aten_builder import DTYPES
from sardonyx.dynamo.lower import Argument, Drawn, LoweredGraph, ModelOutput, is_primal
from sardonyx.dynamo.numbers import Formula, number_function
from sardonyx.errors import InvalidArgument
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.options import RunOptions, SessionOptions
from sardonyx.program.native import RunSettings
from sardonyx.session import InferenceSession
from sardonyx.session.block_pools import pool_for

_DEVICE_OUTPUTS: Final = RunOptions()
_DEVICE_OUTPUTS.add_run_config_entry("sardonyx.outputs", "device")
_TRAINING: Final = RunSettings(caching=Caching.PAGES, shares_memory=True)
_RUNS: Final = itertools.count(1)
# Whether these ran since the latest update that released pages.
_RAN_WITHIN_BUDGET: Final = Event()  # a function with a memory budget
_RAN_BACKWARD: Final = Event()  # a backward graph
_BFLOAT16: Final = DTYPES[torch.bfloat16].np
# DLPack C exchange API; without it (older torch) tensors go through numpy.
EXCHANGE: Final = (
    TensorExchange(torch.Tensor) if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else None
)


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a view of a CPU tensor's memory; a non-contiguous tensor is copied first."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype is torch.bfloat16:
        return as_array(tensor.view(torch.int16)).view(_BFLOAT16)
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), DTYPES[tensor.dtype].np)
    return np.asarray(Borrowed(tensor, DTYPES[tensor.dtype].np.str))


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a result as a tensor over the same memory."""
    array = np.asarray(array)
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def release_pages() -> None:
    """Return the freed pages that training steps keep to the system."""
    pool_for(_TRAINING).release_cached()


def with_pages_released(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function after whose backward pass pages are released, as the update allocates.

    The next step of an optimizer does that. Those of Sardonyx allocate nothing and keep the pages.
    """
    _release_pages_before_updates()

    @wraps(compiled)
    def call(*args: Any) -> Any:
        if torch.is_grad_enabled():
            _RAN_WITHIN_BUDGET.set()
        return compiled(*args)

    return call


@cache
def _release_pages_before_updates() -> None:
    def release(optimizer: Any, *_: Any) -> None:
        # Updates of other models in the process neither need the pages nor should slow down ours;
        # those between the two passes leave the release to ours.
        if torch.compiler.is_compiling():
            return
        if not (_RAN_WITHIN_BUDGET.is_set() and _RAN_BACKWARD.is_set()):
            return
        _RAN_WITHIN_BUDGET.clear()
        _RAN_BACKWARD.clear()
        if not getattr(optimizer, "updates_in_place", False):
            release_pages()

    register_optimizer_step_pre_hook(release)


def _session(lowered: LoweredGraph, threads: int, is_backward: bool) -> InferenceSession:
    """Return the session of a forward or backward graph on its device."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    # Forward and backward sessions alternate on the same pages: gradients are allocated where
    # activations were, and vice versa.
    options.add_session_config_entry(Keys.SHARE_BLOCK_POOL, "1")
    options.add_session_config_entry(Keys.CACHE_PAGES, "1")
    if is_backward:
        options.add_session_config_entry(Keys.CONSUME_INPUTS, "1")
        held = (name for _, name in lowered.tensors if is_primal(name))
        options.add_session_config_entry(Keys.HELD_INPUTS, ",".join(held))
    providers: list[Any] = ["CPUExecutionProvider"]
    if lowered.device.type == "cuda":
        device_id = lowered.device.index or 0
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device_id}))
    return InferenceSession(lowered.model, options, providers=providers)


class Executor:
    """A lowered graph with its session. Thread-safe, as sessions are."""

    def __init__(self, lowered: LoweredGraph, threads: int, is_backward: bool = False) -> None:
        self.lowered = lowered
        self._is_backward = is_backward
        self.session = _session(lowered, threads, is_backward)
        self._run = self._on_host if lowered.device.type == "cpu" else self._on_device
        inputs = {v.name: v.tensor for v in lowered.model.graph.inputs}
        self._names = [name for _, name in lowered.tensors]
        self._tensors = items([index for index, _ in lowered.tensors])
        # A size is passed as a dim of an empty tensor; a number that may be negative as a scalar.
        self._numbers = [(index, name, inputs[name].rank == 2) for index, name in lowered.numbers]
        self._draws = [
            (d.name, d.draw, [number_function(s, lowered.symbols) for s in d.sizes])
            for d in lowered.draws
        ]
        results = list(enumerate(lowered.outputs))
        self._computed = [(i, r.index) for i, r in results if isinstance(r, ModelOutput)]
        self._permuted = {
            r.index: [r.order.index(i) for i in range(len(r.order))]
            for _, r in results
            if isinstance(r, ModelOutput) and r.order is not None
        }
        self._others = [(i, self._other(r)) for i, r in results if not isinstance(r, ModelOutput)]
        self.runs = (0, 0)  # numbers of the latest two runs, counted over all executors
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the inputs of the latest run

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run with the torch graph's arguments, in a list that is emptied (boxed).

        While the session runs only the feed refers to the arguments, so that a session that
        consumes its inputs frees activations as early as possible.
        """
        feed = dict(zip(self._names, self._tensors(args), strict=True))
        for index, name, is_size in self._numbers:
            number = int(args[index])
            size = torch.empty((number, 0), dtype=torch.uint8) if is_size else None
            feed[name] = torch.tensor(number) if size is None else size
        for name, draw, sizes in self._draws:
            feed[name] = draw([size(args) for size in sizes])
        self.runs = (self.runs[1], next(_RUNS))
        if self.lowered.symbols or not self.shapes:
            self.shapes = {name: tuple(tensor.shape) for name, tensor in feed.items()}
        others = [(position, other(args, feed)) for position, other in self._others]
        args.clear()
        try:
            outputs = self._run(feed)
        except InvalidArgument as error:  # what a run can find wrong is an index, as in eager torch
            raise IndexError(str(error)) from error
        if self._is_backward:
            _RAN_BACKWARD.set()
        for index, perm in self._permuted.items():
            # Not a view, which torch does not let users write to after a compiled function.
            strided: Any = outputs[index].permute(perm)
            outputs[index] = strided.new_empty(0).set_(strided)
        if not others and len(outputs) == len(self._computed):  # in their order
            return outputs
        results: list[Any] = [None] * (len(self._computed) + len(others))
        for position, result in others:
            results[position] = result
        for position, index in self._computed:
            results[position] = outputs[index]
        return results

    def _on_host(self, feed: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        if EXCHANGE is not None:
            outputs = self.session._run_tensors(feed, EXCHANGE)
            if outputs is not None:
                return outputs
        arrays = {name: as_array(feed.pop(name)) for name in list(feed)}
        return [as_tensor(array) for array in self.session.run(None, arrays)]

    def _on_device(self, feed: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        tensors = {name: feed.pop(name).detach().contiguous() for name in list(feed)}
        outputs = self.session.run(None, tensors, _DEVICE_OUTPUTS)
        # A node that the device leaves to the host returns its result there.
        return [t.to(self.lowered.device) if t.dim() else t for t in outputs]

    def _other(self, result: Any) -> Callable[[list[Any], dict[str, Any]], Any]:
        """Return a function from arguments and feed to a result that the model does not compute."""
        match result:
            case Argument(index=index):
                return lambda args, _: args[index]
            case Drawn(index=index):
                name = self.lowered.draws[index].name
                return lambda _, feed: feed[name]
            case Formula():
                number = number_function(result, self.lowered.symbols)
                return lambda args, _: number(args)
        return lambda *_: result


def items(indices: Sequence[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return a function from a list to the tuple of its elements at these indices."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda args: tuple(args[index] for index in indices)
