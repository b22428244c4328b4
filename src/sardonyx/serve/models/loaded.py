"""A loaded version of a model: its session, signature and queue."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor

from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.errors import SardonyxError
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.options import SessionOptions
from sardonyx.program.limit import LIMIT
from sardonyx.serve.batching.batcher import Batcher, Observer
from sardonyx.serve.batching.cost import CostModel
from sardonyx.serve.batching.joining import BatchLayout, Padding, batch_layout, padding_of
from sardonyx.serve.config import ModelConfig, ServerConfig
from sardonyx.serve.models.embedder import Embedder, embedder_beside
from sardonyx.serve.models.probe import Prober
from sardonyx.serve.models.signature import Signature, signature_of
from sardonyx.serve.models.sources import Identity, identity
from sardonyx.serve.refusals import ModelFailed
from sardonyx.session import InferenceSession


@frozen(eq=False)
class Ready:
    """The result of a loader thread, from which the event loop creates a `LoadedModel`."""

    session: InferenceSession
    signature: Signature
    layout: BatchLayout | None
    cost: CostModel
    embedder: Embedder | None
    file: Identity | None
    size_bytes: int
    load_s: float
    is_predictable: bool  # sizes alone decide how long a run takes


class LoadedModel:
    """A version that answers requests."""

    def __init__(self, name: str, version: str, path: str, ready: Ready) -> None:
        self.name = name
        self.version = version
        self.path = path
        self.ready = ready
        self.signature = ready.signature
        self.last_used = time.monotonic()
        self.batcher: Batcher

    def start(self, config: ModelConfig, executor: Executor, observer: Observer) -> None:
        """Open the queue."""
        ready = self.ready
        settings = config.batch_settings()
        self.batcher = Batcher(ready.session, ready.layout, settings, executor, observer)
        self.batcher.cost = ready.cost
        self.batcher.is_predictable = ready.is_predictable and not config.providers

    @property
    def size_bytes(self) -> int:
        """Return the bytes that count against the memory limit."""
        return self.ready.size_bytes

    def metadata(self, versions: list[str]) -> dict[str, object]:
        """Return the model's metadata in the protocol."""
        return {
            "name": self.name,
            "versions": versions,
            "platform": "sardonyx_onnx",
            "inputs": [spec.as_metadata() for spec in self.signature.inputs],
            "outputs": [spec.as_metadata() for spec in self.signature.outputs],
        }


def load(path: str, model: ModelConfig, server: ServerConfig) -> Ready:
    """Load, check and warm up a model. Called on a thread; may take long."""
    started = time.perf_counter()
    file = identity(path)  # before the file is read: what changes later is seen
    try:
        providers = [(name, dict(options)) for name, options in model.providers] or None
        session = InferenceSession(path, _options(model, server), providers)
        signature = signature_of(session)
    except SardonyxError as error:
        raise ModelFailed(error.what) from None
    except (OSError, MemoryError) as error:
        raise ModelFailed(f"{type(error).__name__}: {error}") from None
    prober, cost = Prober(session, signature), CostModel()
    layout = _layout(model, signature, prober)
    prober.fit(cost, layout)
    embedder = embedder_beside(os.path.dirname(path), signature)
    size_bytes = _size_of(session)
    seconds = time.perf_counter() - started
    logger.info("%s: loaded in %.2f s, batching %s", path, seconds, describe(layout))
    is_predictable = not _has_loops(session)
    return Ready(
        session, signature, layout, cost, embedder, file, size_bytes, seconds, is_predictable
    )


def _has_loops(session: InferenceSession) -> bool:
    nodes = session._compiled.model.graph.all_nodes()
    return any(node.op.name in ("Loop", "Scan") for node in nodes)


def describe(layout: BatchLayout | None) -> str:
    """Return a description of how requests are batched."""
    if layout is None:
        return "off"
    return "on" if layout.padding is None else f"on, {layout.padding.dim} is padded"


def _options(model: ModelConfig, server: ServerConfig) -> SessionOptions:
    options = SessionOptions()
    options.intra_op_num_threads = model.threads or server.threads
    entries: dict[str, str] = {Keys.PRECISION: model.precision}
    if server.pack_cache:
        entries[Keys.PACK_CACHE] = server.pack_cache
    if server.max_run_memory:
        entries[LIMIT] = str(server.max_run_memory)
    for key, value in {**entries, **model.session}.items():
        options.add_session_config_entry(key, value)
    return options


def _layout(model: ModelConfig, signature: Signature, prober: Prober) -> BatchLayout | None:
    """Return how requests are batched, if trial runs show that it does not change results."""
    layout = batch_layout(signature) if model.max_batch > 1 else None
    if layout is None:
        return None
    padding = _padding(model.pad, model.pad_values, signature)
    if padding is not None and (model.pad == "always" or prober.joins(BatchLayout(padding))):
        return BatchLayout(padding)
    return layout if prober.joins(layout) else None


def _padding(mode: str, fill: Mapping[str, float], signature: Signature) -> Padding | None:
    """Return the padding to try; by default only models with a mask are padded."""
    has_mask = any("mask" in spec.name.lower() for spec in signature.inputs)
    if mode == "off" or (mode == "auto" and not has_mask and not fill):
        return None
    return padding_of(signature, fill)


def _size_of(session: InferenceSession) -> int:
    """Return the size of the model with its external data."""
    source = session._source
    opened = {id(each): each for each in (source.given, *source.files.sources())}
    return sum(len(each.data) for each in opened.values())
