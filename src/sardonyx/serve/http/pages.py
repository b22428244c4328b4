"""Metrics, and the status page with its data."""

from __future__ import annotations

import pathlib
from typing import Final

from sardonyx.serve.http.exchange import Exchange
from sardonyx.serve.http.responses import send_bytes, send_json
from sardonyx.serve.metrics import CONTENT_TYPE
from sardonyx.serve.status import status_of

_FOLDER: Final = pathlib.Path(__file__).parent.parent / "page"
_FILES: Final = {
    "/": ("status.html", b"text/html; charset=utf-8"),
    "/status.css": ("status.css", b"text/css; charset=utf-8"),
    "/status.js": ("status.js", b"text/javascript; charset=utf-8"),
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def metrics(exchange: Exchange) -> None:
    """Send the metrics for Prometheus."""
    text = exchange.service.metrics.text()
    await send_bytes(exchange.send, text, [(b"content-type", CONTENT_TYPE.encode())])


async def status(exchange: Exchange) -> None:
    """Send what the status page shows."""
    await send_json(exchange.send, status_of(exchange.service))


async def page(exchange: Exchange) -> None:
    """Send a file of the status page."""
    name, kind = _FILES[exchange.path]
    headers = [
        (b"content-type", kind),
        (b"content-security-policy", _POLICY),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-cache"),
    ]
    await send_bytes(exchange.send, (_FOLDER / name).read_bytes(), headers)
