"""Responses of HTTP: JSON, tensors, and refusals in the form that each protocol has for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sardonyx.serve.protocol.tensors import Buffer
from sardonyx.serve.refusals import Refusal, Unauthorized

Headers = list[tuple[bytes, bytes]]
_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_OWN_MESSAGE: Final = 64 << 10  # bytes: larger parts are sent without a copy


async def send_json(send: Any, content: Any, status: int = 200) -> None:
    """Send an object as JSON."""
    await send_bytes(send, json.dumps(content).encode(), [_JSON], status)


async def send_bytes(send: Any, body: bytes, headers: Headers, status: int = 200) -> None:
    """Send a body."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_tensors(send: Any, parts: Sequence[Buffer], json_size: int | None) -> None:
    """Send an inference response, whose large tensors are not copied."""
    size = sum(map(len, parts))
    headers = [(b"content-length", str(size).encode())]
    if json_size is None:
        headers.append(_JSON)
    else:
        headers += [_BINARY, (b"inference-header-content-length", str(json_size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if size < _OWN_MESSAGE:
        await send({"type": "http.response.body", "body": b"".join(parts)})
        return
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def send_refusal(send: Any, refusal: Refusal, path: str, closes: bool) -> None:
    """Send the reason of a refusal; `closes`: the rest of the request is not read."""
    status = refusal.http_status
    if path.startswith("/v1/"):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        content: Any = {"error": {"message": refusal.what, "type": kind, "code": status}}
    else:
        content = {"error": refusal.what}
    headers: Headers = [_JSON]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if isinstance(refusal, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if closes:
        headers.append((b"connection", b"close"))
    await send_bytes(send, json.dumps(content).encode(), headers, status)
