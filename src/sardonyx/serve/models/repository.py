"""The models of a server by name and version: loading, unloading, replacing and forgetting.

All state belongs to one event loop. Models are loaded on a loader thread, one at a time; the loop
swaps a version atomically between two requests, so that each request runs on the old or on the new
one, and the old one drains its queue.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sardonyx.base.log import logger
from sardonyx.base.records import field, mutable
from sardonyx.errors import SardonyxError
from sardonyx.serve.batching.batcher import Observer
from sardonyx.serve.config import ModelConfig, ServerConfig
from sardonyx.serve.models.loaded import LoadedModel, Ready, load
from sardonyx.serve.models.sources import Versions, identity, models_in, versions_at
from sardonyx.serve.refusals import ModelFailed, Refusal, Unavailable, Unknown

READY: Final = "READY"
LOADING: Final = "LOADING"
UNAVAILABLE: Final = "UNAVAILABLE"
_DRAIN_S: Final = 60.0  # for the requests of a version that is replaced or unloaded


@mutable(eq=False)
class Entry:
    """A model that the server knows, loaded or not."""

    name: str
    config: ModelConfig
    versions: Versions
    loaded: dict[str, LoadedModel] = field(default_factory=dict)
    reason: str = ""  # why it is not loaded
    loading: asyncio.Task[None] | None = None
    is_wanted: bool = True  # False: unloaded by a request

    @property
    def newest(self) -> LoadedModel | None:
        """Return the loaded version with the highest number."""
        return self.loaded[max(self.loaded, key=int)] if self.loaded else None

    def chosen(self) -> Versions:
        """Return the versions to load."""
        if self.config.versions == "all":
            return self.versions
        newest = max(self.versions, key=int)
        return {newest: self.versions[newest]}


class Repository:
    """Finds, loads and replaces models."""

    def __init__(self, config: ServerConfig, observe: Callable[[str, str], Observer]) -> None:
        """`observe` returns the observer of the runs of a model, by name and version."""
        self._config = config
        self._observe = observe
        self._runs = ThreadPoolExecutor(_run_threads(config), "sardonyx-serve-run")
        self._loads = ThreadPoolExecutor(1, "sardonyx-serve-load")
        self._entries: dict[str, Entry] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        # Whether this process serves and does nothing else, so that its collector may be tuned.
        self.owns_process = False
        self._scan()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def _scan(self) -> None:
        """Discover models in the configured files and folders; known ones are kept."""
        found: dict[str, tuple[ModelConfig, Versions]] = {}
        for folder in self._config.folders:
            for name, versions in models_in(folder).items():
                found.setdefault(name, (self._config.defaults, versions))
        for name, model in self._config.models.items():
            found[name] = (model, versions_at(model.path))
        for name, (model, versions) in found.items():
            entry = self._entries.setdefault(name, Entry(name, model, versions))
            entry.versions = versions

    def rescan(self, name: str) -> None:
        """Rediscover the versions of a model, or a new model of this name."""
        try:
            self._scan()
        except SardonyxError as error:
            logger.warning("%s: %s", name, error.what)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name, or raise an error."""
        entry = self._entries.get(name)
        if entry is None:
            raise Unknown(f"there is no model {name[:80]!r}")
        return entry

    def find(self, name: str, version: str = "") -> LoadedModel | None:
        """Return a loaded model, None if it has to be loaded first, or raise an error."""
        entry = self.entry(name)
        model = entry.loaded.get(version) if version else entry.newest
        if model is not None:
            model.last_used = time.monotonic()
            return model
        if version and version not in entry.versions:
            raise Unknown(f"the model {name} has no version {version[:20]!r}")
        if entry.loading is None:
            if not entry.is_wanted:
                raise Unavailable(f"the model {name} is unloaded")
            if self._config.load != "request" or (version and version not in entry.chosen()):
                what = f"version {version} of {name}" if version else f"the model {name}"
                raise Unavailable(f"{what} is not loaded: {entry.reason or 'ask for it'}")
        return None

    async def get(self, name: str, version: str = "") -> LoadedModel:
        """Return a loaded model; load it on demand if configured so."""
        model = self.find(name, version)
        while model is None:
            await self.load(name)
            model = self.find(name, version)
        return model

    async def load(self, name: str) -> None:
        """Load or reload the chosen versions of a model; concurrent callers share one load."""
        entry = self.entry(name)
        entry.is_wanted = True
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._load(entry))
        await asyncio.shield(entry.loading)

    async def _load(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        try:
            made: dict[str, tuple[str, Ready]] = {}
            size_bytes = 0
            for version, path in entry.chosen().items():
                file = identity(path)
                await self._evict_for(entry, size_bytes + (file.size_bytes if file else 0))
                ready = await loop.run_in_executor(
                    self._loads, load, path, entry.config, self._config
                )
                made[version] = (path, ready)
                size_bytes += ready.size_bytes
                await self._evict_for(entry, size_bytes)  # files of weights count, too
            entry.reason = ""
            self._replace(entry, made)
            self._settle()
        except Refusal as error:
            # Versions that are loaded keep answering.
            entry.reason = error.what
            logger.warning("the model %s is not loaded: %s", entry.name, error.what)
            raise ModelFailed(f"the model {entry.name} is not loaded: {error.what}") from None
        finally:
            entry.loading = None

    def _replace(self, entry: Entry, made: Mapping[str, tuple[str, Ready]]) -> None:
        """Swap in new versions; old ones drain their queues."""
        old, fresh = list(entry.loaded.values()), {}
        for version, (path, ready) in made.items():
            model = LoadedModel(entry.name, version, path, ready)
            model.start(entry.config, self._runs, self._observe(entry.name, version))
            fresh[version] = model
        entry.loaded = fresh
        for model in old:
            self._retire(model)

    def _retire(self, model: LoadedModel) -> None:
        task = asyncio.create_task(model.batcher.close(_DRAIN_S))
        self._retiring.add(task)
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._retiring.discard(task)
        self._settle()

    async def unload(self, name: str) -> None:
        """Unload all versions of a model after draining their queues."""
        entry = self.entry(name)
        entry.is_wanted = False
        if entry.loading is not None:
            await asyncio.wait((entry.loading,))
        models, entry.loaded, entry.reason = list(entry.loaded.values()), {}, "unloaded"
        await asyncio.gather(*(model.batcher.close(_DRAIN_S) for model in models))
        models.clear()
        self._settle()

    async def _evict_for(self, entry: Entry, needed: int) -> None:
        """Evict idle models, least recently used first, until a new one fits the memory limit."""
        limit = self._config.memory_limit
        if not limit:
            return
        if needed > limit:
            raise ModelFailed(f"it has {needed} bytes, and memory_limit is {limit}")
        while sum(m.size_bytes for m in self.loaded()) + needed > limit:
            idle = [
                (max(m.last_used for m in each.loaded.values()), each.name)
                for each in self
                if each is not entry and each.loaded and not _is_busy(each)
            ]
            if not idle:
                raise Unavailable(
                    f"memory_limit is {limit}: {needed} bytes do not fit beside models that are "
                    "busy, or that it replaces"
                )
            name = min(idle)[1]
            logger.info("%s is unloaded: memory_limit is %d", name, limit)
            await self.unload(name)
            self.entry(name).is_wanted = True
            self.entry(name).reason = "unloaded for another: memory_limit"

    def loaded(self) -> Iterator[LoadedModel]:
        """Yield every version that is loaded."""
        for entry in self:
            yield from entry.loaded.values()

    async def load_all(self) -> None:
        """Load every model, as at the start; raise an error if one of those named fails."""
        for entry in list(self):
            try:
                await self.load(entry.name)
            except ModelFailed:
                if entry.name in self._config.models:
                    raise

    def is_ready(self) -> bool:
        """Return whether every model that should be loaded is."""
        return self._config.load == "request" or all(
            entry.loaded or entry.reason for entry in self if entry.is_wanted
        )

    async def watch(self) -> None:
        """Reload models whose files have changed and settled; runs until cancelled."""
        seen: dict[str, object] = {}
        failed: dict[str, object] = {}
        while True:
            await asyncio.sleep(self._config.watch_s)
            self.rescan("watch")
            for entry in list(self):
                state = {v: identity(p) for v, p in entry.chosen().items()}
                loaded = {v: m.ready.file for v, m in entry.loaded.items()}
                is_settled = seen.get(entry.name) == state  # no longer written to
                seen[entry.name] = state
                is_new = entry.loaded and state not in (loaded, failed.get(entry.name))
                if not is_new or not is_settled or None in state.values():
                    continue
                logger.info("%s has changed: it is loaded again", entry.name)
                try:
                    await self.load(entry.name)
                except ModelFailed:
                    failed[entry.name] = state  # logged; the old version stays

    async def close(self, timeout_s: float) -> None:
        """Drain all queues, then shut down the threads."""
        await asyncio.gather(*(model.batcher.close(timeout_s) for model in self.loaded()))
        self._runs.shutdown(wait=False, cancel_futures=True)
        self._loads.shutdown(wait=False, cancel_futures=True)
        if self.owns_process:
            gc.unfreeze()

    def _settle(self) -> None:
        """Free what models left behind, and exclude the rest from later garbage collections.

        The objects of a model are many, and requests make garbage: a collection takes milliseconds.
        """
        if self.owns_process:
            gc.unfreeze()
        gc.collect()
        if self.owns_process:
            gc.freeze()


def _is_busy(entry: Entry) -> bool:
    return any(model.batcher.n_unanswered for model in entry.loaded.values())


def _run_threads(config: ServerConfig) -> int:
    models = [*config.models.values(), config.defaults]
    return max(4, *(model.concurrency for model in models))
