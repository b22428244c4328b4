"""Listening sockets."""

from __future__ import annotations

import socket

from sardonyx.errors import Fail


def bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a bound socket; `is_shared`: other sockets may be bound to the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Fail(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return sock
