"""Request bodies: read within limits of size and time, and decompressed."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

from sardonyx.serve.config import ServerConfig
from sardonyx.serve.held import HeldBytes
from sardonyx.serve.refusals import (
    BadRequest,
    Cancelled,
    RequestTimeout,
    TooLarge,
    UnsupportedEncoding,
)

# zlib's window bits: gzip, and zlib, which HTTP calls deflate.
_WINDOWS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_SLICE: Final = 64 << 10  # bytes of a compressed body that are taken at a time
_STEP: Final = 1 << 20  # bytes decompressed at a time, between which other requests are served


class BodyReader:
    """Reads the body of one request within the limits of a server."""

    __slots__ = ("_held", "_limit", "_n_taken", "_receive", "_timeout_s")

    def __init__(self, receive: Any, settings: ServerConfig, held: HeldBytes) -> None:
        self._receive = receive
        self._limit = settings.max_body
        self._timeout_s = settings.body_timeout_s
        self._held = held
        self._n_taken = 0

    def close(self) -> None:
        """Note that the body is no longer needed."""
        self._held.give_back(self._n_taken)
        self._n_taken = 0

    def _take(self, count: int) -> None:
        self._held.take(count)
        self._n_taken += count

    async def read(self, headers: dict[bytes, bytes]) -> bytes | bytearray:
        """Return the whole body of a request, or refuse it as soon as it exceeds a limit."""
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._limit:  # digits: the HTTP parser has checked
            raise TooLarge(f"the body has {int(length)} bytes; at most {self._limit} are accepted")
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._whole()
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {self._timeout_s:g} s") from None
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        return body if encoding == b"identity" else await self._decompressed(body, encoding)

    async def _whole(self) -> bytes | bytearray:
        body, more = await self._part()
        while more:  # small bodies arrive with their headers
            part, more = await self._part()
            if len(body) + len(part) > self._limit:
                raise TooLarge(f"the body has more than {self._limit} bytes")
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += part
        return body

    async def _part(self) -> tuple[bytes | bytearray, bool]:
        """Return what has arrived, and whether more follows."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client has left")
        self._take(len(message["body"]))
        return message["body"], message["more_body"]

    async def _decompressed(self, body: bytes | bytearray, encoding: bytes) -> bytearray:
        """Return the decompressed body; at most one byte more than the limit is ever made."""
        if encoding not in _WINDOWS:
            raise UnsupportedEncoding(
                f"the content encoding {encoding[:20]!r} is not supported: gzip and deflate are"
            )
        inflater, content = zlib.decompressobj(_WINDOWS[encoding]), bytearray()
        try:
            for begin in range(0, len(body), _SLICE):
                rest = bytes(body[begin : begin + _SLICE])
                while rest and not inflater.eof:
                    part = inflater.decompress(rest, min(_STEP, self._limit + 1 - len(content)))
                    self._take(len(part))
                    content += part
                    if len(content) > self._limit:
                        raise TooLarge(f"the decompressed body has more than {self._limit} bytes")
                    rest = inflater.unconsumed_tail
                    await asyncio.sleep(0)
                if rest or inflater.unused_data:
                    raise BadRequest(f"the {encoding.decode()} body is followed by other bytes")
        except zlib.error as error:
            raise BadRequest(f"the body is not {encoding.decode()}: {error}") from None
        if not inflater.eof:
            raise BadRequest(f"the {encoding.decode()} body is cut off")
        return content
