"""The same model run otherwise: optimized less, by more threads, out of a pack, by other calls."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import sardonyx
from sardonyx.compile import Options
from sardonyx.packing import Request, pack
from sardonyx.providers import resolve
from tests.metamorphic.variant import Settings, Transform, Variant
from tests.ways import Disagree, both, outcome
from tests.workers import die_with_parent

SECONDS = 60.0
PROVIDERS = ["CPUExecutionProvider"]


def at(exact: bool, why: str, **parts: Any) -> Transform:
    """The transform that changes settings only."""

    def transform(v: Variant, rng: Random) -> Variant:
        return v.changed(settings=replace(v.settings, **parts), exact=exact)

    transform.__doc__ = why
    return transform


def run(model: bytes, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """The outputs, by the fast path and by the checked one alike where settings do not say how."""
    if settings.isa:
        return _elsewhere(settings.isa).run(model, feeds, replace(settings, isa=""))
    with np.errstate(all="ignore"):
        if settings.pack:
            return _packed(model, feeds, settings)
        return _by_way(lambda: _session(model, settings), feeds, settings)


def _session(model: Any, settings: Settings) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = settings.threads
    if settings.parallel:
        options.execution_mode = sardonyx.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    if settings.level:
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel[settings.level]
    return sardonyx.InferenceSession(model, options, providers=PROVIDERS)


def _packed(model: bytes, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(model)
        pack(str(path), Options(resolve(None, None)[1]), Request(f"{path}.pack"))
        return _by_way(lambda: _session(str(path), settings), feeds, settings)


def _by_way(
    start: Callable[[], sardonyx.InferenceSession], feeds: dict[str, Any], settings: Settings
) -> Sequence[Any]:
    if settings.way == "run":
        return both(start, feeds)
    call = {"binding": _by_binding, "ort_values": _by_ort_values}[settings.way]
    session = start()
    result = outcome(lambda: call(session, feeds))
    if isinstance(result, Exception):
        raise result
    return result


def _by_binding(session: sardonyx.InferenceSession, feeds: dict[str, Any]) -> list[Any]:
    """Twice: the second time into memory of the shapes that came out first."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    first = binding.copy_outputs_to_cpu()
    places = [sardonyx.OrtValue.ortvalue_from_numpy(np.zeros_like(x)) for x in first]
    for output, place in zip(session.get_outputs(), places, strict=True):
        binding.bind_ortvalue_output(output.name, place)
    session.run_with_iobinding(binding)
    return [place.numpy() for place in places]


def _by_ort_values(session: sardonyx.InferenceSession, feeds: dict[str, Any]) -> list[Any]:
    given = {n: sardonyx.OrtValue.ortvalue_from_numpy(x) for n, x in feeds.items()}
    return [value.numpy() for value in session.run_with_ort_values(None, given)]


def only_arrays(transform: Transform) -> Transform:
    """The transform for models that take and give nothing but tensors."""

    def guarded(v: Variant, rng: Random) -> Variant | None:
        values = [*v.feeds.values(), *v.wanted]
        plain = all(isinstance(x, np.ndarray) and x.dtype.kind != "O" for x in values)
        return transform(v, rng) if plain and v.wanted else None

    guarded.__doc__ = transform.__doc__
    return guarded


# -------------------------------------------------------------------------- kernels of other CPUs


class Elsewhere:
    """A process whose kernels are those of an ISA, which a process chooses once."""

    def __init__(self, isa: str, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self.isa = isa
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, isa), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, model: bytes, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
        """The outputs, or the error, of a run over there."""
        self._pipe.send((model, feeds, settings))
        if not self._pipe.poll(SECONDS):
            raise TimeoutError(f"no answer from {self.isa}")
        try:
            result = self._pipe.recv()
        except EOFError:
            self._process.join()
            del _PROCESSES[self.isa]
            died = f"the process for {self.isa} died with {self._process.exitcode}"
            raise ChildProcessError(died) from None
        if isinstance(result, Exception):
            raise result
        found: Sequence[Any] = result
        return found

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


_PROCESSES: dict[str, Elsewhere] = {}


def start_isas(isas: Sequence[str], method: str = "fork") -> None:
    """Starts a process for each ISA; by fork only while no kernel has run in this process."""
    _PROCESSES.update({isa: Elsewhere(isa, method) for isa in isas})


def stop_isas() -> None:
    """Ends them all."""
    while _PROCESSES:
        _PROCESSES.popitem()[1].stop()


def _elsewhere(isa: str) -> Elsewhere:
    return _PROCESSES[isa]


def isas() -> list[str]:
    """Those with a process."""
    return list(_PROCESSES)


def _serve(pipe: Any, isa: str) -> None:
    die_with_parent()
    os.environ["SARDONYX_ISA"] = isa
    while True:
        try:
            model, feeds, settings = pipe.recv()
        except EOFError:
            return
        try:
            result: Any = run(model, feeds, settings)
        except Exception as error:
            result = _plain(error)
        pipe.send(result)


def _plain(error: Exception) -> Exception:
    """An error that can be sent: of the same class where that is ours, with its text."""
    kind = type(error)
    if isinstance(error, (sardonyx.SardonyxError, Disagree)):
        return kind(str(error))
    return RuntimeError(f"{kind.__name__}: {error}")
