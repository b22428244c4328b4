"""Tokenizer of com.microsoft: splits strings by separators, by a token regex, or by character."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.text.automaton import automaton
from sardonyx.ops.text.strings import compiled

START, END = "\x02", "\x03"

tokenizer: Final = contrib_op(
    "Tokenizer",
    "X:T",
    "Y:T",
    attrs={
        "mark": required("int"),
        "mincharnum": required("int"),
        "pad_value": required("bytes"),
        "separators": optional("strings"),
        "tokenexp": optional("bytes"),
    },
    types={"T": frozenset((STRING,))},
)


@tokenizer.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    if x.rank not in (1, 2):
        raise InvalidGraph(f"Tokenizer needs strings of shape [C] or [N, C], got {x}")
    separators, least = attrs["separators"], attrs["mincharnum"]
    if not separators and not attrs["tokenexp"]:
        raise InvalidGraph("Tokenizer needs separators or tokenexp, and has neither")
    if least < 1 or (least > 1 and separators == (b"",)):
        raise InvalidGraph(
            f"mincharnum {least} is out of range: 1 or more, and 1 where each character is a token"
        )
    # Kernels run the automaton; a pattern that it does not support must be valid in RE2.
    for expression in [attrs["tokenexp"]] if attrs["tokenexp"] else separators:
        if expression and automaton(expression) is None:
            _compiled(expression)
    return x.shaped((*x.dims, g.new_dim("tokens")))


@tokenizer.reference
def _(x: Array, **attrs: Any) -> Array:
    rows = [_tokens(text, attrs) for text in x.reshape(-1)]
    longest = max(map(len, rows), default=0)
    width = longest + 2 if attrs["mark"] and longest else longest
    pad = attrs["pad_value"].decode()
    result = np.full((len(rows), width), pad, object)
    for i, row in enumerate(rows if width else ()):
        marked = [START, *row, END] if attrs["mark"] else row
        result[i, : len(marked)] = marked
    return result.reshape(*x.shape, width)


def _tokens(text: str, attrs: dict[str, Any]) -> list[str]:
    """Return the tokens of one string that have at least mincharnum characters."""
    separators, least = attrs["separators"], attrs["mincharnum"]
    if attrs["tokenexp"]:
        pieces, _ = _matches(text.encode(), _compiled(attrs["tokenexp"]))
    elif separators == (b"",):
        return list(text)
    else:
        pieces = [text.encode()]
        for separator in separators:
            pattern = _compiled(separator)
            pieces = [part for piece in pieces for part in _matches(piece, pattern)[1]]
    tokens = (piece.decode("utf-8", "replace") for piece in pieces)
    return [t for t in tokens if len(t) >= least]


def _matches(text: bytes, pattern: Any) -> tuple[list[bytes], list[bytes]]:
    """Return all matches from left to right, and the text between them.

    An empty match also removes the character after it.
    """
    matches, between, at = [], [], 0
    while at < len(text) and (match := pattern.search(text, at)) is not None:
        begin, end = match.span()
        matches.append(text[begin:end])
        between.append(text[at:begin])
        at = end if end > begin else _character_end(text, begin)
    return matches, [*between, text[at:]]


def _character_end(text: bytes, at: int) -> int:
    """Return the end of the UTF-8 character at a position."""
    at += 1
    # Continuation bytes of UTF-8 are 10xxxxxx.
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at


def _compiled(expression: bytes) -> Any:
    return compiled(expression, "Tokenizer", is_longest=True)


OPS: Final = (tokenizer,)
