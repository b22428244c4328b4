"""The case of letters, one by one as C++ locales have it: no letter becomes two."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from sardonyx.ops.arrays import Array

DOTTED: Final = ("tr", "az")  # languages with an i that keeps its dot and an I without one
_SPECIAL: Final = {
    False: {"I": "\u0131"},  # to lower case
    True: {"i": "\u0130", "\u0131": "I"},  # to upper case
}
# Those of 256 characters in which there are letters of two cases.
_PAGES: Final = (
    *range(0x06), 0x10, 0x13, *range(0x1C, 0x22), 0x24, 0x2C, 0x2D, 0xA6, 0xA7, 0xAB, 0xFF,
    0x104, 0x105, 0x10C, 0x10D, 0x118, 0x16E, 0x1E9,
)  # fmt: skip


def is_dotted(locale: bytes | None) -> bool:
    """Whether a locale is one of a language with two kinds of i."""
    return (locale or b"").decode("utf-8", "replace").lower().startswith(DOTTED)


def changed(text: str, upper: bool, dotted: bool) -> str:
    """A string in one case, as long as before."""
    if text.isascii() and not dotted:
        return text.upper() if upper else text.lower()
    special = _SPECIAL[upper] if dotted else {}
    change = _upper if upper else _lower
    return "".join(special[c] if c in special else change(c) for c in text)


def _lower(letter: str) -> str:
    # More than one letter comes only of the dotted I, and the first is right.
    return letter.lower()[0]


def _upper(letter: str) -> str:
    for made in (letter.upper(), letter.title()):
        if len(made) == 1:
            return made
    return letter


@functools.cache
def letters(upper: bool, dotted: bool) -> Array:
    """The characters that a change of case changes, in order, and below them what they become."""
    before = [chr(page * 256 + i) for page in _PAGES for i in range(256) if page or i]
    joined = "\0".join(before)  # all at once; one by one would take ten times as long
    after = (joined.upper() if upper else joined.lower()).split("\0")
    special = _SPECIAL[upper] if dotted else {}
    one_by_one = _upper if upper else _lower
    pairs = [
        (ord(a), ord(b))
        for a, made in zip(before, after, strict=True)
        if (b := special.get(a) or (made if len(made) == 1 else one_by_one(a))) != a
    ]
    return np.array(pairs, np.uint32).reshape(-1, 2).T.copy()
