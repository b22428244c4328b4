"""Access control: bearer tokens, and checks of Host and Origin against browsers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.refusals import Forbidden, Unauthorized

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_MIN_TOKEN: Final = 16  # characters


class Access:
    """Authenticates requests by their headers."""

    def __init__(self, config: ServerConfig) -> None:
        self._digests = _read_tokens(config.token_file) if config.token_file else ()
        self._hosts = frozenset(host.lower() for host in config.allow_hosts)
        if config.is_loopback:
            self._hosts |= _LOOPBACK
        self._checks_host = config.is_loopback

    @property
    def needs_token(self) -> bool:
        """Return whether requests need a token."""
        return bool(self._digests)

    def check_token(self, authorization: str) -> None:
        """Raise an error unless a header has one of the tokens (compared in constant time)."""
        if not self._digests:
            return
        kind, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        known = [hmac.compare_digest(digest, each) for each in self._digests]
        if kind.lower() != "bearer" or not any(known):
            raise Unauthorized("this server needs a token: Authorization: Bearer TOKEN")

    def check_browser(self, host: str, origin: str) -> None:
        """Raise an error for requests of web pages of other sites in a browser on this machine.

        A page can reach loopback; its requests name its own origin, or with a name that was bound
        to 127.0.0.1 (DNS rebinding) a host that is not ours.
        """
        name = _hostname(host)
        if self._checks_host and name not in self._hosts:
            raise Forbidden(f"the host {name[:80]!r} is not this server: see allow_hosts")
        if origin and (urlsplit(origin).netloc != host) and _hostname(origin) not in self._hosts:
            raise Forbidden(f"the origin {origin[:80]!r} is not this server: see allow_hosts")


def _hostname(text: str) -> str:
    try:
        return (urlsplit(text if "//" in text else f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


def _read_tokens(path: str) -> tuple[bytes, ...]:
    """Return digests of the tokens of a file, one per line; # begins a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            tokens = list(_tokens(file))
    except OSError as error:
        raise NoSuchFile(f"the tokens in {path} cannot be read: {error.strerror}") from None
    if not tokens:
        raise InvalidArgument(f"{path} has no token")
    if min(map(len, tokens)) < _MIN_TOKEN:
        raise InvalidArgument(
            f"a token of {path} has fewer than {_MIN_TOKEN} characters",
            hint="openssl rand -hex 32 makes one",
        )
    return tuple(hashlib.sha256(token.encode()).digest() for token in tokens)


def _tokens(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        token = line.partition("#")[0].strip()
        if token:
            yield token
