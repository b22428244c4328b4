"""The operations of the server, independent of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Final

from sardonyx.errors import InvalidArgument
from sardonyx.serve.batching.pending import Pending
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.held import HeldBytes
from sardonyx.serve.metrics import Metrics
from sardonyx.serve.models.loaded import LoadedModel
from sardonyx.serve.models.repository import LOADING, READY, UNAVAILABLE, Entry, Repository
from sardonyx.serve.protocol.messages import InferRequest, InferResponse
from sardonyx.serve.refusals import Cancelled, DeadlineExceeded, Forbidden, Refusal, Unavailable
from sardonyx.serve.traces import Tracer
from sardonyx.version import __version__

EXTENSIONS: Final = ("binary_tensor_data", "model_repository", "schedule_policy")
Watch = Callable[[Pending, LoadedModel], None]
# Applies a change of models in all workers, this one included.
Control = Callable[[str, str], Awaitable[None]]


class Service:
    """The models and their state. Owned by one event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.limits = config.limits()
        self.metrics = Metrics()
        self.repository = Repository(config, self.metrics.of)
        self.tracer = Tracer(config.traces)
        self.started = time.time()
        self.is_started = False
        self.is_leaving = False  # not ready any more, but answering
        self.is_stopping = False
        self.n_active = 0
        self.held = HeldBytes(config.max_held)
        self.connections: Collection[object] = ()  # those of HTTP that are open
        self.control: Control = self.apply
        self._idle: asyncio.Event = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Return whether the server should get requests."""
        is_leaving = self.is_leaving or self.is_stopping
        return self.is_started and not is_leaving and self.repository.is_ready()

    def metadata(self) -> dict[str, object]:
        """Return the server's metadata."""
        return {"name": "sardonyx", "version": __version__, "extensions": list(EXTENSIONS)}

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request until its answer is made, or refuse it because the server stops."""
        if self.is_stopping:
            raise Unavailable("the server is stopping")
        self.n_active += 1
        try:
            yield
        finally:
            self.n_active -= 1
            if self.is_stopping and not self.n_active:
                self._idle.set()

    async def infer(
        self,
        name: str,
        version: str,
        request: InferRequest,
        protocol: str,
        watch: Watch | None = None,
    ) -> InferResponse:
        """Answer a request; `watch` is called with the pending request."""
        with self.answering():
            return await self.infer_part(name, version, request, protocol, watch)

    async def infer_part(
        self,
        name: str,
        version: str,
        request: InferRequest,
        protocol: str,
        watch: Watch | None = None,
    ) -> InferResponse:
        """Answer a part of a request that is counted already."""
        started, arrived_s = time.perf_counter(), asyncio.get_running_loop().time()
        model = self.repository.find(name, version)
        if model is None:
            model = await self._load_in_time(name, version, request.timeout_s)
        metrics = self.metrics.of(model.name, model.version)
        code = "OK"
        with self.tracer.span(model.name, request.headers):
            try:
                return await self._run(model, request, arrived_s, watch)
            except Refusal as refusal:
                code = refusal.grpc_code
                raise
            except asyncio.CancelledError:
                code = Cancelled.grpc_code
                raise
            finally:
                metrics.answered(protocol, code, time.perf_counter() - started)

    async def _load_in_time(self, name: str, version: str, timeout_s: float | None) -> LoadedModel:
        """Load a model for a request; at its deadline the request ends, and loading goes on."""
        if timeout_s is None:
            timeout_s = self.repository.entry(name).config.timeout_s or None
        try:
            async with asyncio.timeout(timeout_s):
                return await self.repository.get(name, version)
        except TimeoutError:
            what = f"the model {name} was not loaded within {timeout_s:g} s"
            raise DeadlineExceeded(what) from None

    async def _run(
        self, model: LoadedModel, request: InferRequest, arrived_s: float, watch: Watch | None
    ) -> InferResponse:
        model.signature.check(request.feed)
        requested = model.signature.requested(request)
        # No await between `find` and `submit`: a model that is replaced gets no request any more.
        pending = model.batcher.submit(request.feed, request.priority, request.timeout_s, arrived_s)
        if watch is not None:
            watch(pending, model)
        try:
            outputs = await pending.future
        except asyncio.CancelledError:
            model.batcher.abandon(pending)
            raise
        answers = [(output, outputs[position]) for output, position in requested]
        return InferResponse(model.name, model.version, request.id, answers)

    def loaded(self, name: str, version: str) -> LoadedModel:
        """Return a loaded model for a question about it."""
        model = self.repository.find(name, version)
        if model is None:
            raise Unavailable(f"the model {name} is not loaded yet")
        return model

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """Return the repository's index: each version of each model, with its state."""
        rows = []
        for entry in self.repository:
            for version in sorted(entry.versions.keys() | entry.loaded.keys(), key=int):
                state, reason = state_of(entry, version)
                if state == READY or not only_ready:
                    row = {"name": entry.name, "version": version, "state": state, "reason": reason}
                    rows.append(row)
        return rows

    async def change(self, action: str, name: str) -> None:
        """Load or unload a model in every worker, on behalf of a request."""
        if not self.config.model_control:
            raise Forbidden("loading and unloading by requests is off: see --model-control")
        if action == "load":
            self.repository.rescan(name)
        self.repository.entry(name)
        await self.control(action, name)

    async def apply(self, action: str, name: str) -> None:
        """Load or unload a model in this process."""
        if action == "load":
            self.repository.rescan(name)
            await self.repository.load(name)
        elif action == "unload":
            await self.repository.unload(name)
        else:
            raise InvalidArgument(f"there is no action {action!r}")

    async def drain(self) -> None:
        """Stop being ready, and answer the pending requests."""
        self.is_leaving = self.is_stopping = True
        if self.n_active:
            with contextlib.suppress(TimeoutError):  # what is left is cancelled
                await asyncio.wait_for(self._idle.wait(), self.config.drain_s)
        await self.repository.close(0.0)
        self.tracer.stop()


def state_of(entry: Entry, version: str) -> tuple[str, str]:
    """Return the state of a version in the repository's index, and the reason."""
    if version in entry.loaded:
        return READY, ""
    if entry.loading is not None and version in entry.chosen():
        return LOADING, ""
    return UNAVAILABLE, entry.reason or "not asked for"


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
