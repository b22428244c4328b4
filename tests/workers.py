"""Worker processes that go through seeds: one that dies or hangs on a seed is a finding."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Task = Callable[[int], Result]

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
SPAN = 20  # seeds that a worker is given at once; it has one span more, so as not to wait
QUIET_SECONDS = 1.0
LAST_WORDS = 8000  # bytes of what a worker said
STACK_SECONDS = 1.0  # that a worker has to write where it hangs


@dataclass(frozen=True)
class Plan:
    """The seeds to run, and the settings."""

    seeds: Iterable[int]
    jobs: int = 1
    seconds: float | None = None  # no new seeds after this time
    renew: int = 0  # seeds before a process is replaced by a new one; 0: never
    patience: float = 30.0  # seconds without a word after which a worker is killed


def hunt(start: Callable[[], Task], plan: Plan) -> Iterator[Result]:
    """Yield the result of each seed, in any order, from several processes.

    `start` is called once in every process and returns what is called with each seed. The result of
    a seed at which a process died has "seed", "died" (how it ended) and "said" (its last words).
    """
    queue = _Queue(plan)
    crew: list[_Worker] = []
    try:
        while True:
            crew += [_Worker(start) for _ in range(plan.jobs - len(crew)) if queue]
            for worker in crew:
                worker.feed(queue, plan.renew)
            if not crew:
                return
            for worker in list(_heard(crew)):
                yield from worker.results()
            for worker in list(crew):
                yield from worker.lost(queue, plan.patience)
                if worker.is_gone:
                    crew.remove(worker)
    finally:
        for worker in crew:
            worker.stop()


class _Queue:
    """The seeds that no worker has yet."""

    def __init__(self, plan: Plan) -> None:
        self._seeds, self._back = iter(plan.seeds), collections.deque[int]()
        self._end = None if plan.seconds is None else time.monotonic() + plan.seconds
        self._ahead: list[int] = []

    def __bool__(self) -> bool:
        if not self._ahead:
            self._ahead = self.take(1)
        return bool(self._ahead)

    def take(self, count: int) -> list[int]:
        if self._end is not None and time.monotonic() > self._end:
            return []
        found, self._ahead = self._ahead, []
        while len(found) < count and self._back:
            found.append(self._back.popleft())
        for seed in self._seeds if len(found) < count else ():
            found.append(seed)
            if len(found) == count:
                break
        return found

    def give_back(self, seeds: Iterable[int]) -> None:
        self._back.extend(seeds)


def _heard(crew: list[_Worker]) -> list[_Worker]:
    by_pipe: dict[Any, _Worker] = {w.pipe: w for w in crew}
    return [by_pipe[p] for p in multiprocessing.connection.wait(list(by_pipe), QUIET_SECONDS)]


class _Worker:
    """A process, the seeds that it has been given, and what it wrote to standard error.

    It is a fork: everything that is imported and read so far is there at once, so that a new one
    costs milliseconds. No session may have run before, since threads do not survive a fork.
    """

    def __init__(self, start: Callable[[], Task]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._todo: collections.deque[int] = collections.deque()
        self._done = 0
        self._how = ""
        self._is_ending = False
        self.is_gone = False
        sys.stdout.flush()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(start, theirs, self._log.fileno()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries may have threads
            self._process.start()
        theirs.close()
        self._since = time.monotonic()

    def feed(self, queue: _Queue, renew: int) -> None:
        """Gives it more seeds, or ends it."""
        if self._how or self._is_ending or len(self._todo) > SPAN:
            return
        seeds = [] if renew and self._done >= renew else queue.take(SPAN)
        if not seeds and self._todo:
            return
        self._is_ending = not seeds
        if not self._todo:
            self._since = time.monotonic()
        with contextlib.suppress(OSError):  # it died; `results` and `lost` will tell
            self.pipe.send(seeds)
        self._todo.extend(seeds)

    def results(self) -> Iterator[Result]:
        """What it has said since."""
        try:
            while self.pipe.poll():
                result = self.pipe.recv()
                self._todo.popleft()
                self._done += 1
                self._since = time.monotonic()
                yield result
        except (EOFError, OSError):
            self._process.join()
            self._how = f"exit {self._process.exitcode}"

    def lost(self, queue: _Queue, patience: float) -> Iterator[Result]:
        """The seed at which it died, or for which it took too long."""
        if not self._how and self._todo and time.monotonic() - self._since > patience:
            self._how = f"no answer in {patience:g} s"
            self._ask_where()
        if not self._how:
            return
        self.stop()
        if self._todo:
            yield {"seed": self._todo.popleft(), "died": self._how, "said": self._said()}
            queue.give_back(self._todo)
        self._log.close()

    def _ask_where(self) -> None:
        """Has the process write the stacks of its threads to its log."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGUSR1)
        self._process.join(STACK_SECONDS)

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-LAST_WORDS:].decode(errors="replace")

    def stop(self) -> None:
        """Ends the process."""
        self.is_gone = True
        self._process.kill()
        self._process.join()
        self.pipe.close()


def die_with_parent() -> None:
    """Has the kernel end this process when the one that forked it ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(start: Callable[[], Task], pipe: Any, log: int) -> None:
    die_with_parent()
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(log, 2)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)
    task = start()
    while seeds := pipe.recv():
        for seed in seeds:
            pipe.send(task(seed))


def told(error: BaseException, root: Path) -> tuple[str, str]:
    """Return the innermost place of an error in our own code, if any, and its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "sardonyx" in f.filename] or list(frames)
    place = f"{os.path.relpath(ours[-1].filename, root)}:{ours[-1].lineno}" if ours else "nowhere"
    return place, "".join(traceback.format_exception(error))[-4000:]
