"""Case mapping letter by letter, as C++ locales do it: strings keep their length."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from sardonyx.ops.arrays import Array

DOTTED: Final = ("tr", "az")  # languages with dotted and dotless i
_SPECIAL: Final = {
    False: {"I": "\u0131"},  # to lower case
    True: {"i": "\u0130", "\u0131": "I"},  # to upper case
}
# Blocks of 256 characters that contain letters with case.
_PAGES: Final = (
    *range(0x06), 0x10, 0x13, *range(0x1C, 0x22), 0x24, 0x2C, 0x2D, 0xA6, 0xA7, 0xAB, 0xFF,
    0x104, 0x105, 0x10C, 0x10D, 0x118, 0x16E, 0x1E9,
)  # fmt: skip


def is_dotted(locale: bytes | None) -> bool:
    """Whether a locale's language has dotted and dotless i."""
    return (locale or b"").decode("utf-8", "replace").lower().startswith(DOTTED)


def change_case(text: str, upper: bool, dotted: bool) -> str:
    """Return a string in upper or lower case, of the same length."""
    if text.isascii() and not dotted:
        return text.upper() if upper else text.lower()
    special = _SPECIAL[upper] if dotted else {}
    change = _upper if upper else _lower
    return "".join(special[c] if c in special else change(c) for c in text)


def _lower(letter: str) -> str:
    # Only the dotted capital I maps to two characters, of which the first is right.
    return letter.lower()[0]


def _upper(letter: str) -> str:
    for cased in (letter.upper(), letter.title()):
        if len(cased) == 1:
            return cased
    return letter


@functools.cache
def case_pairs(upper: bool, dotted: bool) -> Array:
    """Return the characters that a case change affects, sorted, and below them their images."""
    characters = [chr(page * 256 + i) for page in _PAGES for i in range(256) if page or i]
    joined = "\0".join(characters)  # one call is ten times as fast as one per character
    changed_characters = (joined.upper() if upper else joined.lower()).split("\0")
    special = _SPECIAL[upper] if dotted else {}
    one_by_one = _upper if upper else _lower
    pairs = [
        (ord(a), ord(b))
        for a, cased in zip(characters, changed_characters, strict=True)
        if (b := special.get(a) or (cased if len(cased) == 1 else one_by_one(a))) != a
    ]
    return np.array(pairs, np.uint32).reshape(-1, 2).T.copy()
