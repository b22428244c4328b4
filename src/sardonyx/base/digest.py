"""blake2b without importing hashlib, whose OpenSSL takes 3 ms to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    try:
        from _blake2 import blake2b  # the implementation in CPython that hashlib exports
    except ImportError:
        from hashlib import blake2b

__all__ = ["blake2b"]
