"""Endpoints of the Open Inference Protocol v2 and of Triton's model repository extension."""

from __future__ import annotations

from functools import partial
from typing import Final

from sardonyx.serve.batching.pending import Pending
from sardonyx.serve.http.exchange import Exchange
from sardonyx.serve.http.responses import send_bytes, send_json, send_tensors
from sardonyx.serve.http.watcher import Watcher
from sardonyx.serve.models.loaded import LoadedModel
from sardonyx.serve.protocol.json_codec import decode, encode, parse_object
from sardonyx.serve.refusals import BadRequest, Cancelled, Forbidden, Unavailable

_HEADER: Final = b"inference-header-content-length"
_TRACE: Final = ("traceparent", "tracestate")


async def infer(exchange: Exchange) -> None:
    """Run a model."""
    service = exchange.service
    if service.is_stopping:
        raise Unavailable("the server is stopping")
    body = await exchange.body()
    request = decode(body, _json_size(exchange.headers.get(_HEADER)), service.limits)
    if service.tracer.is_on:
        request.headers = {
            name: exchange.headers[name.encode()].decode("latin-1")
            for name in _TRACE
            if name.encode() in exchange.headers
        }
    watcher = Watcher(exchange)

    def watch(pending: Pending, model: LoadedModel) -> None:
        exchange.has_model = True
        watcher.start(partial(model.batcher.abandon, pending, Cancelled("the client has left")))

    try:
        name, version = exchange.params["model"], exchange.params.get("version", "")
        response = await service.infer(name, version, request, "http", watch)
    finally:
        watcher.stop()
    parts, json_size = encode(response)
    await send_tensors(exchange.send, parts, json_size)


def _json_size(header: bytes | None) -> int | None:
    if header is None:
        return None
    if not header.isdigit() or len(header) > 12:
        raise BadRequest("Inference-Header-Content-Length must be a number of bytes")
    return int(header)


async def live(exchange: Exchange) -> None:
    """Answer the liveness probe."""
    await send_json(exchange.send, {"live": True})


async def ready(exchange: Exchange) -> None:
    """Answer the readiness probe."""
    is_ready = exchange.service.is_ready
    await send_json(exchange.send, {"ready": is_ready}, 200 if is_ready else 503)


async def server_metadata(exchange: Exchange) -> None:
    """Describe the server."""
    await send_json(exchange.send, exchange.service.metadata())


def _model(exchange: Exchange) -> LoadedModel:
    return exchange.service.loaded(exchange.params["model"], exchange.params.get("version", ""))


async def model_metadata(exchange: Exchange) -> None:
    """Describe a model."""
    model = _model(exchange)
    versions = sorted(exchange.service.repository.entry(model.name).loaded, key=int)
    await send_json(exchange.send, model.metadata(versions))


async def model_ready(exchange: Exchange) -> None:
    """Say whether a model is loaded."""
    if exchange.service.is_stopping:
        raise Unavailable("the server is stopping")
    model = _model(exchange)
    await send_json(exchange.send, {"name": model.name, "ready": True})


async def index(exchange: Exchange) -> None:
    """List the models that the server knows."""
    body = await exchange.body()
    wanted = parse_object(body).get("ready", False) if body.strip() else False
    await send_json(exchange.send, exchange.service.index(only_ready=wanted is True))


async def load(exchange: Exchange) -> None:
    """Load or reload a model."""
    await _change(exchange, "load")


async def unload(exchange: Exchange) -> None:
    """Unload a model."""
    await _change(exchange, "unload")


async def _change(exchange: Exchange, action: str) -> None:
    body = await exchange.body()
    parameters = parse_object(body).get("parameters") if body.strip() else None
    # Triton's may contain a configuration and files, which would come from who may ask, not from
    # who runs the server.
    if action == "load" and parameters:
        raise Forbidden("a model is loaded as the server is configured: no parameters")
    await exchange.service.change(action, exchange.params["model"])
    await send_bytes(exchange.send, b"", [])
