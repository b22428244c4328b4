"""A pre-fork supervisor: several worker processes on one port.

The supervisor binds the sockets, forks the workers, and restarts those that exit. It loads no model
and has one thread, so that it can fork at any time. Workers share the listening socket of HTTP;
for gRPC each has one of its own on the same port, among which the kernel distributes connections.
The first worker packs the weights; the others start when it is ready and map its packs.

A socket pair per worker carries lines of JSON: loads and unloads, which are broadcast to all
workers, and the message that a worker is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any, Final, NoReturn

import sardonyx._native as native
from sardonyx.base.log import logger
from sardonyx.base.records import field, mutable, replace
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.logs import announce
from sardonyx.serve.sockets import bind

_MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
_FAILED_TO_START: Final = 3  # the exit status of a worker that cannot load its models
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_LINE: Final = 1 << 16  # bytes
_LATE_S: Final = 10.0  # after its time to stop, until a worker is killed
_MAX_DELAY_S: Final = 10.0  # between the starts of a worker that keeps dying


@mutable(eq=False)
class Worker:
    """A worker process, as the supervisor sees it."""

    pid: int
    channel: socket.socket
    number: int
    buffer: bytearray = field(default_factory=bytearray)
    is_ready: bool = False
    has_left: bool = False  # it has closed its end of the channel; SIGCHLD follows


@mutable(eq=False)
class Change:
    """A load or unload that workers are applying for one of them."""

    origin: Worker
    number: int  # of the request, by its origin
    waiting: set[int]  # pids
    error: str = ""


class Supervisor:
    """Forks workers and restarts them until it is stopped."""

    def __init__(self, config: ServerConfig, folder: str) -> None:
        """`folder` is for the metrics of all workers, and for packs unless one is configured."""
        share = max(1, native.usable_cpus() // config.workers)
        self._config = replace(
            config, pack_cache=config.pack_cache or folder, threads=config.threads or share
        )
        self._folder = folder
        self._listener = bind(config.host, config.port)
        self._listener.listen(2048)
        # Bound but not listening: it keeps the port while workers come and go.
        is_grpc = config.grpc_port >= 0
        self._grpc = bind(config.host, config.grpc_port, is_shared=True) if is_grpc else None
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}
        self._changes: dict[int, Change] = {}
        self._n_changes = 0
        self._actions: dict[str, str] = {}  # the last of each model, for workers to come
        self._starts: dict[int, float] = {}  # when workers that died may start again, by number
        self._n_failures = 0
        self._is_stopping = False
        self._kill_at = 0.0  # when workers are killed that do not stop
        self._has_first = False  # the first worker was ready: its packs are there
        self._is_announced = False
        self._status = 0

    @property
    def _grpc_port(self) -> int:
        return -1 if self._grpc is None else int(self._grpc.getsockname()[1])

    def run(self) -> int:
        """Supervise until a signal; return the exit status."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._selector.register(wake, selectors.EVENT_READ)
        self._start(0)
        while self._workers or not self._is_stopping:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is wake:
                    self._on_signals(wake.recv(64))
                else:
                    self._on_data(key.data)
            self._start_due()
            self._kill_late()
        signal.set_wakeup_fd(-1)
        return self._status

    def _timeout_s(self) -> float | None:
        times = [self._kill_at] if self._is_stopping else list(self._starts.values())
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _kill_late(self) -> None:
        if self._is_stopping and time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            for pid in self._workers:
                logger.warning("worker %d does not stop: it is killed", pid)
                os.kill(pid, signal.SIGKILL)

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [n for n, at in self._starts.items() if at <= now and not self._is_stopping]:
            del self._starts[number]
            self._start(number)

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(number, ours, theirs)
        theirs.close()
        worker = self._workers[pid] = Worker(pid, ours, number)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become_worker(self, number: int, ours: socket.socket, theirs: socket.socket) -> NoReturn:
        """Serve in this forked process, and end it."""
        status = _FAILED_TO_START
        try:
            signal.set_wakeup_fd(-1)
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            self._selector.close()
            ours.close()
            for worker in self._workers.values():
                worker.channel.close()
            from sardonyx.serve.worker import name_metrics, run_worker

            name_metrics(number)
            is_first = not self._has_first
            run_worker(
                self._config, self._listener, self._grpc_port, theirs, self._actions, is_first
            )
            status = 0
        except BaseException as error:
            text = getattr(error, "what", "") or f"{type(error).__name__}: {error}"
            print(f"sardonyx: {text}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def _on_signals(self, numbers: bytes) -> None:
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._stop()

    def _stop(self) -> None:
        if not self._is_stopping:
            config = self._config
            self._kill_at = time.monotonic() + config.linger_s + config.drain_s + _LATE_S
        self._is_stopping = True
        self._starts.clear()
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        while self._workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._on_end(worker, os.waitstatus_to_exitcode(status))

    def _on_end(self, worker: Worker, code: int) -> None:
        _forget_gauges(self._folder, worker.number)
        if not worker.has_left:
            self._selector.unregister(worker.channel)
        worker.channel.close()
        for change in list(self._changes.values()):
            self._applied(change, worker.pid, "")
        if self._is_stopping:
            return
        if code == _FAILED_TO_START and not self._has_first:
            self._status = 1
            self._stop()
            return
        self._n_failures = 0 if worker.is_ready else self._n_failures + 1
        delay_s = min(_MAX_DELAY_S, 0.1 * 2**self._n_failures) if self._n_failures else 0.0
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        logger.warning("worker %d ended with %s: it is replaced", worker.pid, how)
        self._starts[worker.number] = time.monotonic() + delay_s

    def _on_data(self, worker: Worker) -> None:
        try:
            data = worker.channel.recv(_LINE)
        except OSError:
            data = b""
        worker.buffer += data
        while (end := worker.buffer.find(b"\n")) >= 0:
            line = bytes(worker.buffer[:end])
            del worker.buffer[: end + 1]
            self._on_message(worker, json.loads(line))
        if not data:
            worker.has_left = True
            self._selector.unregister(worker.channel)

    def _on_message(self, worker: Worker, message: dict[str, Any]) -> None:
        match message["op"]:
            case "ready":
                self._on_ready(worker)
            case "change":
                self._on_change(worker, message)
            case "applied":
                change = self._changes.get(message["change"])
                if change is not None:
                    self._applied(change, worker.pid, message["error"])

    def _on_ready(self, worker: Worker) -> None:
        worker.is_ready = True
        self._n_failures = 0
        if self._is_stopping:
            return
        if not self._has_first:
            self._has_first = True
            for number in range(1, self._config.workers):
                self._start(number)
        n_ready = sum(each.is_ready for each in self._workers.values())
        if n_ready == self._config.workers and not self._is_announced:
            self._is_announced = True
            announce(self._config, self._listener.getsockname()[1], self._grpc_port)

    def _on_change(self, worker: Worker, message: dict[str, Any]) -> None:
        self._n_changes += 1
        self._actions[message["name"]] = message["action"]
        change = Change(worker, message["id"], set(self._workers))
        self._changes[self._n_changes] = change
        order = {
            "op": "apply",
            "change": self._n_changes,
            "action": message["action"],
            "name": message["name"],
        }
        for each in self._workers.values():
            _send(each, order)

    def _applied(self, change: Change, pid: int, error: str) -> None:
        change.waiting.discard(pid)
        change.error = change.error or error
        if not change.waiting:
            self._changes = {n: c for n, c in self._changes.items() if c is not change}
            if change.origin.pid in self._workers:
                _send(change.origin, {"op": "done", "id": change.number, "error": change.error})


def _forget_gauges(folder: str, number: int) -> None:
    """Remove what a worker that ended has queued from the metrics; its counts stay."""
    from prometheus_client.multiprocess import mark_process_dead  # only now: see `supervise`

    mark_process_dead(number, folder)


def _send(worker: Worker, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it has died: SIGCHLD follows
        worker.channel.sendall(json.dumps(message).encode() + b"\n")


def supervise(config: ServerConfig) -> int:
    """Serve with several workers until a signal; return the exit status."""
    folder = tempfile.mkdtemp(prefix="sardonyx-serve-")
    os.environ[_MULTIPROCESS] = folder  # before prometheus-client is imported
    owner = os.getpid()
    try:
        return Supervisor(config, folder).run()
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
