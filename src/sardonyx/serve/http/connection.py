"""Connections of uvicorn with limits on header size, idle time and their number.

uvicorn limits neither the size of headers and trailers nor the time that a client takes to send
them, or to read its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sardonyx.serve.config import ServerConfig

_MAX_FRAMING: Final = 32 << 10  # bytes of a request line with its headers, or of trailers
_FRAMING_PER_BYTE: Final = 8  # that a chunked body may have: chunks of one byte have five
_MIN_READ_BYTES: Final = 64 << 10  # of an answer that a client reads within the time for bodies


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
    """A connection that is closed if its client sends too slowly, too much, or does not read."""

    settings: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_headers = True
        self._n_framing_bytes = 0  # of the request line, headers, chunk sizes and trailers
        self._n_unread = 0
        self._idle_since = self.loop.time()
        self._header_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections and not self._replaces_idle():
            self._end(_TOO_MANY)
            return
        self._expect_headers()

    def _replaces_idle(self) -> bool:
        """Close the connection that has been without a request for longest, if there is one."""
        others = (each for each in self.connections if each is not self)
        idle = [each for each in others if isinstance(each, _Connection) and each._is_idle]
        if idle:
            min(idle, key=lambda each: each._idle_since).transport.abort()
        return bool(idle)

    @property
    def _is_idle(self) -> bool:
        has_request = self.cycle is not None and not self.cycle.response_complete
        return not has_request and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_headers and self._header_timer is None:  # the first bytes after a keep-alive
            self._expect_headers()
        self._n_framing_bytes = max(0, self._n_framing_bytes) + len(data)
        super().data_received(data)
        if self._n_framing_bytes > _MAX_FRAMING:
            self._end(_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_headers:  # nothing reads trailers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._stop_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_framing_bytes -= len(body) * (1 + _FRAMING_PER_BYTE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_headers = True
        self._n_framing_bytes = 0

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._expect_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        self._stop_reader_timer()
        super().resume_writing()

    def _expect_headers(self) -> None:
        timeout_s = self.settings.header_timeout_s
        self._header_timer = self.loop.call_later(timeout_s, self._end, _TOO_SLOW)

    def _expect_reader(self) -> None:
        """Close the connection of a client that stops reading: its unsent responses hold memory."""
        self._stop_reader_timer()
        self._n_unread = self.transport.get_write_buffer_size()
        timeout_s = self.settings.body_timeout_s
        self._reader_timer = self.loop.call_later(timeout_s, self._check_reader)

    def _check_reader(self) -> None:
        size = self.transport.get_write_buffer_size()
        if size > max(0, self._n_unread - _MIN_READ_BYTES):
            self.transport.abort()
        elif size:
            self._expect_reader()

    def _stop_timers(self) -> None:
        self._stop_header_timer()
        self._stop_reader_timer()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _end(self, answer: bytes) -> None:
        self._stop_header_timer()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


def connection_class(settings: ServerConfig) -> type[asyncio.Protocol]:
    """Return the class of a server's connections."""
    return type("Connection", (_Connection,), {"settings": settings})
