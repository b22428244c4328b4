"""OpenAI's embeddings API."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.serve.http.exchange import Exchange
from sardonyx.serve.http.responses import send_json
from sardonyx.serve.http.watcher import Watcher
from sardonyx.serve.models.embedder import Embedder
from sardonyx.serve.protocol.datatypes import Array
from sardonyx.serve.protocol.json_codec import parse_object
from sardonyx.serve.protocol.messages import InferRequest
from sardonyx.serve.refusals import BadRequest, Cancelled, TooLarge, Unavailable, Unknown
from sardonyx.serve.service import Service

_MAX_TEXTS: Final = 2048  # as OpenAI's
_AT_ONCE: Final = 32  # texts of one request in the queue, for fairness
_ON_THREAD: Final = 8 << 10  # characters: longer texts are tokenized on a thread


async def models(exchange: Exchange) -> None:
    """List the models that produce embeddings."""
    service = exchange.service
    data = [
        {"id": m.name, "object": "model", "created": int(service.started), "owned_by": "sardonyx"}
        for m in service.repository.loaded()
        if m.ready.embedder is not None
    ]
    await send_json(exchange.send, {"object": "list", "data": data})


async def create(exchange: Exchange) -> None:
    """Return an embedding for each text."""
    if exchange.service.is_stopping:
        raise Unavailable("the server is stopping")
    message = parse_object(await exchange.body())
    with exchange.service.answering():
        await _create(exchange, message)


async def _create(exchange: Exchange, message: Mapping[str, Any]) -> None:
    service = exchange.service
    name = message.get("model")
    if not isinstance(name, str):
        raise BadRequest("model must be the name of a model")
    texts, encoding = _texts(message.get("input")), message.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadRequest("encoding_format must be float or base64")
    model = await service.repository.get(name)
    embedder = model.ready.embedder
    if embedder is None:
        raise Unknown(f"the model {name} makes no embeddings: it needs a tokenizer.json beside it")
    if sum(map(len, texts)) > _ON_THREAD:
        feeds = await asyncio.to_thread(embedder.feeds, texts)
    else:
        feeds = embedder.feeds(texts)
    exchange.has_model = True
    vectors = await _while_present(exchange, _vectors(service, name, embedder, feeds))
    vectors = _shortened(vectors, message)
    n_tokens = sum(next(iter(feed.values())).size for feed in feeds)
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector, encoding)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    answer = {"object": "list", "data": data, "model": name, "usage": usage}
    await send_json(exchange.send, answer)


def _texts(value: Any) -> Sequence[str | Sequence[int]]:
    """Return texts, or lists of token ids, of a request."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value and all(type(each) is int for each in value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise BadRequest("input must be a text, a list of texts, or lists of token ids")
    if len(value) > _MAX_TEXTS:
        raise TooLarge(f"input has {len(value)} texts; at most {_MAX_TEXTS} are accepted")
    for each in value:
        is_ids = isinstance(each, list) and all(type(i) is int and 0 <= i < 2**31 for i in each)
        if not (isinstance(each, str) or is_ids) or not each:
            raise BadRequest("a text of input must be a non-empty string, or token ids")
    texts: list[str | list[int]] = value
    return texts


async def _while_present(
    exchange: Exchange, making: Coroutine[Any, Any, list[Array]]
) -> list[Array]:
    """Return what a coroutine returns, or end it when the client leaves."""
    task, watcher = asyncio.ensure_future(making), Watcher(exchange)
    watcher.start(task.cancel)
    try:
        await asyncio.wait((task,))
        if task.cancelled():
            raise Cancelled("the client has left")
        return task.result()
    finally:
        watcher.stop()
        task.cancel()


async def _vectors(
    service: Service, name: str, embedder: Embedder, feeds: Sequence[dict[str, Array]]
) -> list[Array]:
    """Run each text as a request of its own, which dynamic batching may join with any other."""

    async def embed(feed: dict[str, Array]) -> Array:
        response = await service.infer_part(name, "", InferRequest(feed), "openai")
        return embedder.pool([array for _, array in response.outputs])

    vectors: list[Array] = []
    for begin in range(0, len(feeds), _AT_ONCE):
        tasks = [asyncio.ensure_future(embed(feed)) for feed in feeds[begin : begin + _AT_ONCE]]
        try:
            vectors += await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
    return vectors


def _shortened(vectors: list[Array], message: Mapping[str, Any]) -> list[Array]:
    """Truncate vectors to the requested dimensions and normalize them again."""
    size = message.get("dimensions")
    if size is None:
        return vectors
    if type(size) is not int or not 0 < size <= vectors[0].size:
        raise BadRequest(f"dimensions must be a number up to {vectors[0].size}")
    return [v[:size] / max(float(np.linalg.norm(v[:size])), 1e-12) for v in vectors]


def _encoded(vector: Array, encoding: str) -> Any:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
