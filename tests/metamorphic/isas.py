"""Runs in processes with the kernels of other CPUs: a process chooses its kernels once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import sardonyx
from tests.metamorphic import sessions
from tests.metamorphic.variant import Settings
from tests.two_paths import Disagree
from tests.workers import die_with_parent

ISAS = ("base", "avx2", "avx512", "avx512vnni")
SECONDS = 60.0


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


def start(names: Sequence[str], method: str = "fork") -> None:
    """Starts a process for each ISA; by fork only while no kernel has run in this process."""
    _PROCESSES.update({isa: Elsewhere(isa, method) for isa in names})


def stop() -> None:
    """Ends them all."""
    while _PROCESSES:
        _PROCESSES.popitem()[1].stop()


def elsewhere(isa: str) -> Elsewhere:
    """The process of an ISA."""
    return _PROCESSES[isa]


def started() -> list[str]:
    """The ISAs that have a process."""
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
            result: Any = sessions.run(model, feeds, settings)
        except Exception as error:
            result = _plain(error)
        pipe.send(result)


def _plain(error: Exception) -> Exception:
    """An error that can be sent: of the same class where that is ours, with its text."""
    kind = type(error)
    if isinstance(error, (sardonyx.SardonyxError, Disagree)):
        return kind(str(error))
    return RuntimeError(f"{kind.__name__}: {error}")
