"""Prometheus metrics of a server: requests, queues, runs and models.

With several workers prometheus-client keeps values in files that all of them map; a worker that
ends leaves its counts there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from sardonyx.serve.batching.run import BatchRun

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client reads it when imported
_SECONDS: Final = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MODEL: Final = ("model", "version")


class ModelMetrics:
    """The metrics of one version of a model; the observer of its batcher."""

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        labels = (model, version)
        self._requests = metrics.requests
        self._labels = labels
        self._counters: dict[tuple[str, str], Any] = {}
        self._seconds = metrics.seconds.labels(*labels)
        self._waited = metrics.waited.labels(*labels)
        self._run = metrics.run.labels(*labels)
        self._rows = metrics.rows.labels(*labels)
        self._queue = metrics.queue.labels(*labels)

    def answered(self, protocol: str, code: str, seconds: float) -> None:
        """Count a request, answered or refused."""
        key = (protocol, code)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(*self._labels, *key)
        counter.inc()
        if code == "OK":
            self._seconds.observe(seconds)

    def queued(self, change: int) -> None:
        """Count requests that enter or leave the queue."""
        self._queue.inc(change)

    def ran(self, run: BatchRun, waited_s: list[float]) -> None:
        """Count a run."""
        self._run.observe(run.seconds)
        self._rows.observe(run.rows)
        for seconds in waited_s:
            self._waited.observe(seconds)


class Metrics:
    """All metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self.is_shared = FOLDER_VARIABLE in os.environ
        self._registry = CollectorRegistry()
        registry = None if self.is_shared else self._registry
        if not self.is_shared:
            ProcessCollector(registry=self._registry)
        more: dict[str, Any] = {"namespace": "sardonyx", "registry": registry}
        gauge: dict[str, Any] = {**more, "multiprocess_mode": "livesum"}
        self.requests = Counter(
            "requests", "Inference requests", (*_MODEL, "protocol", "code"), **more
        )
        self.seconds = Histogram(
            "request_seconds",
            "From a decoded request to its outputs",
            _MODEL,
            buckets=_SECONDS,
            **more,
        )
        self.waited = Histogram("queue_seconds", "In the queue", _MODEL, buckets=_SECONDS, **more)
        self.run = Histogram("run_seconds", "Of a run", _MODEL, buckets=_SECONDS, **more)
        self.rows = Histogram("batch_rows", "Rows of a run", _MODEL, buckets=_ROWS, **more)
        self.queue = Gauge("queue_requests", "Requests that wait for a run", _MODEL, **gauge)
        self.refused = Counter("refused", "Requests refused before a model", ("code",), **more)
        self._models: dict[tuple[str, str], ModelMetrics] = {}

    def of(self, model: str, version: str) -> ModelMetrics:
        """Return the metrics of a version; labels come from the repository, never from requests."""
        key = (model, version)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelMetrics(self, model, version)
        return found

    def _collected(self) -> CollectorRegistry:
        if not self.is_shared:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return registry

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return bytes(generate_latest(self._collected()))

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the name, labels and value of every sample of a model."""
        for family in self._collected().collect():
            for sample in family.samples:
                if "model" in sample.labels:
                    yield sample.name, sample.labels, sample.value
