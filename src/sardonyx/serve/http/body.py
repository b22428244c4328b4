"""Request bodies: read within limits of size and time, and decompressed."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

from sardonyx.serve.config import ServerConfig
from sardonyx.serve.refusals import BadRequest, Cancelled, TooLarge, TooSlow, UnsupportedEncoding

# zlib's window bits: gzip, and zlib, which HTTP calls deflate.
_WINDOWS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_STEP: Final = 1 << 20  # bytes decompressed at a time, between which other requests are served


async def read_body(
    receive: Any, headers: dict[bytes, bytes], settings: ServerConfig
) -> bytes | bytearray:
    """Return the whole body of a request, or refuse it as soon as it exceeds a limit."""
    limit = settings.max_body
    length = headers.get(b"content-length")
    if length is not None and int(length) > limit:  # digits: the HTTP parser has checked
        raise TooLarge(f"the body has {int(length)} bytes; at most {limit} are accepted")
    message = await _first(receive, settings.body_timeout_s)
    body: bytes | bytearray = message["body"]
    if message["more_body"]:
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                body = await _rest(receive, bytearray(body), limit)
        except TimeoutError:
            raise _slow(settings.body_timeout_s) from None
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    return body if encoding == b"identity" else await _decompressed(body, encoding, limit)


async def _first(receive: Any, timeout_s: float) -> dict[str, Any]:
    """Return the first part; small bodies usually arrive with their headers, without a timer."""
    try:
        message: dict[str, Any] = await asyncio.wait_for(receive(), timeout_s)
    except TimeoutError:
        raise _slow(timeout_s) from None
    if message["type"] == "http.disconnect":
        raise Cancelled("the client has left")
    return message


async def _rest(receive: Any, body: bytearray, limit: int) -> bytearray:
    more = True
    while more:
        if len(body) > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client has left")
        body += message["body"]
        more = message["more_body"]
    if len(body) > limit:
        raise TooLarge(f"the body has more than {limit} bytes")
    return body


def _slow(timeout_s: float) -> TooSlow:
    return TooSlow(f"the body did not arrive within {timeout_s:g} s")


async def _decompressed(body: bytes | bytearray, encoding: bytes, limit: int) -> bytearray:
    """Return the decompressed body; at most one byte more than the limit is ever made."""
    if encoding not in _WINDOWS:
        raise UnsupportedEncoding(
            f"the content encoding {encoding[:20]!r} is not supported: gzip and deflate are"
        )
    inflater = zlib.decompressobj(_WINDOWS[encoding])
    content, rest = bytearray(), bytes(body)
    try:
        while rest and not inflater.eof:
            content += inflater.decompress(rest, min(_STEP, limit + 1 - len(content)))
            if len(content) > limit:
                raise TooLarge(f"the decompressed body has more than {limit} bytes")
            rest = inflater.unconsumed_tail
            await asyncio.sleep(0)
    except zlib.error as error:
        raise BadRequest(f"the body is not {encoding.decode()}: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise BadRequest(f"the {encoding.decode()} body is cut off, or followed by other bytes")
    return content
