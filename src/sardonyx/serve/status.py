"""The data of the status page, as JSON."""

from __future__ import annotations

import os
import time
from typing import Any

from sardonyx.serve.models.loaded import describe
from sardonyx.serve.service import Service, memory_bytes, state_of
from sardonyx.version import __version__


def status_of(service: Service) -> dict[str, Any]:
    """Return the state of the server, its models and their histograms since the start."""
    numbers = _numbers(service)
    return {
        "version": __version__,
        "state": _state(service),
        "uptime_s": time.time() - service.started,
        "now": time.time(),
        "workers": service.config.workers,
        "pid": os.getpid(),
        "memory_bytes": memory_bytes(),
        "memory_limit": service.config.memory_limit,
        "active": service.n_active,
        "connections": len(service.connections),
        "models": [
            _model(service, entry.name, version, numbers.get((entry.name, version), {}))
            for entry in service.repository
            for version in sorted(entry.versions.keys() | entry.loaded.keys(), key=int)
        ],
    }


def _state(service: Service) -> str:
    if service.is_leaving:
        return "stopping"
    return "ready" if service.is_ready else "starting"


def _model(service: Service, name: str, version: str, numbers: dict[str, Any]) -> dict[str, Any]:
    entry = service.repository.entry(name)
    state, reason = state_of(entry, version)
    facts: dict[str, Any] = {"name": name, "version": version, "state": state, "reason": reason}
    model = entry.loaded.get(version)
    if model is not None:
        cost = model.batcher.cost
        facts |= {
            "bytes": model.size_bytes,
            "load_s": model.ready.load_s,
            "batching": describe(model.ready.layout) if model.batcher.is_batching else "off",
            "fixed_s": cost.fixed_s,
            "per_element_s": cost.per_element_s,
            "embeddings": model.ready.embedder is not None,
            "inputs": [spec.as_metadata() for spec in model.signature.inputs],
            "outputs": [spec.as_metadata() for spec in model.signature.outputs],
        }
    return {**facts, **numbers}


def _numbers(service: Service) -> dict[tuple[str, str], dict[str, Any]]:
    """Return counts and histograms by model and version."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, labels, value in service.metrics.samples():
        key = (labels["model"], labels.get("version", ""))
        facts = found.setdefault(key, {"codes": {}, "histograms": {}, "queued": 0})
        name = name.removeprefix("sardonyx_")
        if name == "requests_total":
            code = labels["code"]
            facts["codes"][code] = facts["codes"].get(code, 0) + value
        elif name == "queue_requests":
            facts["queued"] = value
        elif name.endswith(("_bucket", "_sum", "_count")):
            base, _, kind = name.rpartition("_")
            histogram = facts["histograms"].setdefault(base, {"buckets": []})
            if kind == "bucket":
                histogram["buckets"].append([labels["le"], value])
            else:
                histogram[kind] = value
    return found
