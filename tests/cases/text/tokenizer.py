"""Cases of Tokenizer."""

from __future__ import annotations

from typing import Any

from tests.op_cases import Array, Case, ms, no, of


def strings(*texts: Any) -> Array:
    return of(texts, object)


def cut(*texts: Any, mark: int = 0, mincharnum: int = 1, **options: Any) -> Case:
    """Strings to cut, padded with #."""
    return ms(
        "Tokenizer", strings(*texts), mark=mark, mincharnum=mincharnum, pad_value="#", **options
    )


TOKENIZER = [
    cut("Hello World", "I love  computer science !", separators=[" "]),
    cut("Hello World", "I love  computer science !", separators=[" "], mark=1),
    cut(["a b", "c"], ["d e f", ""], separators=[" "]),
    cut("ab", "cé", "", separators=[""]),
    cut("ab", "cé", "", separators=[""], mark=1),
    cut(" ", " ", separators=[" "], mark=1),
    cut("abc--def-g", separators=["--", "-"]),
    cut("aXbcXXd", separators=["X+"], mincharnum=2),
    cut("xaby", separators=["a|ab"]),
    cut("aXbXc", separators=["X", "^b"]),
    cut("éaXXéb", separators=["X*"]),
    cut("Hello, World a", tokenexp="[a-zA-Z0-9_]+"),
    cut("Hello, World a", "é", tokenexp="[a-z]*", mincharnum=2),
    cut("aab abc", tokenexp="a|ab|abc"),
    cut("aéb", tokenexp="."),
    cut("abcab", tokenexp="^ab"),
    cut("..a", "!", tokenexp="[a-z]+", mark=1),
    no("Tokenizer", strings("a"), mark=0, mincharnum=1, pad_value="#", match="has neither"),
    no(
        "Tokenizer",
        strings("a"),
        mark=0,
        mincharnum=1,
        pad_value="#",
        tokenexp="(",
        match="is not valid in RE2",
    ),
    no(
        "Tokenizer",
        strings("a"),
        mark=0,
        mincharnum=2,
        pad_value="#",
        separators=[""],
        match="mincharnum 2",
    ),
]


CASES = [
    *TOKENIZER,
]
