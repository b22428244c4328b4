"""An HTTP exchange: one request and its response."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from sardonyx.serve.http.body import BodyReader
from sardonyx.serve.service import Service


class Exchange:
    """The argument of endpoints. Cheaper than starlette's Request, which parses more."""

    __slots__ = (
        "_body", "_send", "has_answered", "has_model", "has_read_body", "headers", "params", "path",
        "receive", "scope", "service", "started", "status",
    )  # fmt: skip

    def __init__(self, service: Service, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.service = service
        self.scope = scope
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: dict[str, str] = {}
        self.receive = receive
        self.started = time.perf_counter()
        self.has_read_body = scope["method"] != "POST"
        self.has_model = False  # the model's metrics count the request
        self.has_answered = False
        self.status = 0
        self._body = BodyReader(receive, service.config, service.held)
        self._send = send

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of ASGI."""
        if message["type"] == "http.response.start":
            self.has_answered, self.status = True, message["status"]
        with contextlib.suppress(RuntimeError):  # uvloop's: the connection is closed already
            await self._send(message)

    async def body(self) -> bytes | bytearray:
        """Return the body, read within the server's limits."""
        body = await self._body.read(self.headers)
        self.has_read_body = True
        return body

    def close(self) -> None:
        """Note that the request is answered."""
        self._body.close()
