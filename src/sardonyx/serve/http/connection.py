"""Connections of uvicorn with limits on header size, idle time and their number.

uvicorn limits neither the size of headers nor the time that a client takes to send them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sardonyx.serve.config import ServerConfig

_MAX_HEADERS: Final = 32 << 10  # bytes of a request line and its headers


def _refusal(status: str, text: str) -> bytes:
    body = f'{{"error":"{text}"}}'
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"connection: close\r\n\r\n{body}"
    ).encode()


_TOO_LARGE: Final = _refusal("431 Request Header Fields Too Large", "the headers are too large")
_TOO_SLOW: Final = _refusal("408 Request Timeout", "no request was sent in time")
_TOO_MANY: Final = _refusal("503 Service Unavailable", "too many connections")


class _Connection(HttpToolsProtocol):
    """A connection that is closed if its headers are too large or too slow (slowloris)."""

    settings: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_headers = True
        self._n_header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._end(_TOO_MANY)
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_headers:
            if self._header_timer is None:  # the first bytes after a keep-alive
                self._expect_headers()
            self._n_header_bytes += len(data)
        super().data_received(data)
        if self._is_in_headers and self._n_header_bytes > _MAX_HEADERS:
            self._end(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_headers = True
        self._n_header_bytes = 0

    def timeout_keep_alive_handler(self) -> None:
        # A client that does not read its answer would keep it in memory for ever.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _expect_headers(self) -> None:
        timeout_s = self.settings.header_timeout_s
        self._header_timer = self.loop.call_later(timeout_s, self._end, _TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end(self, answer: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


def connection_class(settings: ServerConfig) -> type[asyncio.Protocol]:
    """Return the class of a server's connections."""
    return type("Connection", (_Connection,), {"settings": settings})
