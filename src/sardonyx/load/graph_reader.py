"""Reads the small things of the text form: names, numbers, lists, sizes and types."""

from __future__ import annotations

import ast
import re
from typing import Any, Final, NamedTuple, NoReturn

from sardonyx.errors import InvalidGraph, located
from sardonyx.graph.dim import (
    Atom,
    Dim,
    Size,
    broadcast,
    floor_div,
    maximum,
    minimum,
    modulo,
    symbol,
)
from sardonyx.graph.dtype import DType, by_name
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact

_TOKENS: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+ | \#[^\n]*)
      | (?P<string>"(?:[^"\\\n] | \\.)*" | '(?:[^'\\\n] | \\.)*')
      | (?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)
      | (?P<word>[^\W\d]\w*(?:\#\d+ | (?:\.[^\W\d]\w*)*))
      | (?P<mark>// | [-+*%()\[\]{},:=?@])""",
    re.VERBOSE,
)
_CALLS: Final = {
    "div": floor_div, "mod": modulo, "min": minimum, "max": maximum, "broadcast": broadcast,
}  # fmt: skip
NUMBERS: Final = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}
_SIZE_OPS: Final = {"//": floor_div, "%": modulo}


class Token(NamedTuple):
    """A piece of the text that has a meaning of its own."""

    kind: str  # string, number, word, mark; empty at the end
    text: str
    line: int


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    place, line = 0, 1
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise InvalidGraph(f"{text[place : place + 12]!r} is no part of a graph", line=line)
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match[0], line))
        line += match[0].count("\n")
        place = match.end()
    found.append(Token("", "", line))
    return found


class Reader:
    """Recursive descent over the tokens of a text; each method reads one thing."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._place = 0

    @property
    def next(self) -> Token:
        """The token to read next."""
        return self._tokens[self._place]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._place + 1, len(self._tokens) - 1)]

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raises what is wrong with the text, and where."""
        raise InvalidGraph(what, line=self.next.line if line is None else line)

    def take(self) -> Token:
        """The next token, read."""
        token = self.next
        self._place += token.kind != ""
        return token

    def accept(self, text: str) -> bool:
        """Reads this token if it is the next one."""
        found = self.next.text == text and self.next.kind != "string"
        self._place += found and text != ""
        return found

    def expect(self, text: str) -> None:
        """Reads this token, which must be the next one."""
        if not self.accept(text):
            found = self.next.text or "the end"
            self.fail(f"{text or 'the end'} is expected here, not {found}")

    def string(self) -> str:
        """A quoted string."""
        token = self.take()
        if token.kind != "string":
            self.fail(f"a string is expected here, not {token.text or 'the end'}", token.line)
        try:
            return str(ast.literal_eval(token.text))
        except (SyntaxError, ValueError):
            self.fail(f"{token.text} is no string", token.line)

    def name(self) -> str:
        """A word, or anything in quotes."""
        if self.next.kind == "string":
            return self.string()
        token = self.take()
        if token.kind != "word" or "." in token.text or "#" in token.text:
            self.fail(f"a name is expected here, not {token.text or 'the end'}", token.line)
        return token.text

    def data(self) -> Any:
        """A number, a truth value, a string, or a list of such."""
        if self.accept("["):
            items = []
            while not self.accept("]"):
                items.append(self.data())
                if not self.accept(","):
                    self.expect("]")
                    break
            return items
        if self.next.kind == "string":
            return self.string()
        return self._number()

    def _number(self) -> int | float:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind == "number":
            return sign * (int(token.text) if token.text.isdigit() else float(token.text))
        if token.text not in NUMBERS or token.kind != "word":
            self.fail(f"a number is expected here, not {token.text or 'the end'}", token.line)
        return -NUMBERS[token.text] if sign < 0 else NUMBERS[token.text]

    def dtype(self) -> DType:
        """The short name of an element type."""
        token = self.take()
        try:
            return by_name(token.text)
        except KeyError:
            self.fail(f"a type is expected here, not {token.text or 'the end'}", token.line)

    def fact(self) -> AnyFact | None:
        """A type: a tensor with its shape, or what holds such; None for `?`."""
        if self.accept("?"):
            return None
        for word, kind in (("seq", SequenceFact), ("optional", OptionalFact)):
            if self.accept(word):
                self.expect("(")
                elem = self.fact()
                self.expect(")")
                return kind(elem)
        if self.accept("map"):
            self.expect("(")
            key = self.dtype()
            self.expect(",")
            value = self.fact()
            self.expect(")")
            return MapFact(key, value)
        if self.accept("sparse"):
            self.expect("(")
            dense = self._tensor()
            self.expect(")")
            return SparseFact(dense.dtype, dense.shape)
        return self._tensor()

    def _tensor(self) -> Fact:
        dtype = self.dtype()
        self.expect("[")
        if self.accept("?"):
            self.expect("]")
            return Fact(dtype, None)
        dims: list[Size] = []
        while not self.accept("]"):
            dims.append(self._dim())
            if not self.accept(","):
                self.expect("]")
                break
        return Fact(dtype, tuple(dims))

    def _dim(self) -> Size:
        line, size = self.next.line, self.size()
        if isinstance(size, int) and size < 0:
            self.fail(f"a dimension is never negative: {size}", line)
        return size

    def size(self) -> Size:
        """A sum of products of names, numbers and calls."""
        total = self._product()
        while self.next.text in ("+", "-"):
            minus = self.take().text == "-"
            term = self._product()
            total = total - term if minus else total + term
        return total

    def _product(self) -> Size:
        value = self._factor()
        while self.next.text in ("*", "//", "%"):
            mark, line = self.take().text, self.next.line
            right = self._factor()
            with located(line=line):
                value = value * right if mark == "*" else _SIZE_OPS[mark](value, right)
        return value

    def _factor(self) -> Size:
        if self.accept("-"):
            return self._factor() * -1
        if self.accept("("):
            inner = self.size()
            self.expect(")")
            return inner
        if self.next.kind == "string":
            return symbol(self.string())
        token = self.take()
        if token.kind == "number" and token.text.isdigit():
            return int(token.text)
        if token.kind != "word" or "." in token.text:
            self.fail(f"a size is expected here, not {token.text or 'the end'}", token.line)
        if "#" in token.text:  # a dim that inference made up
            return Dim({(Atom("name", token.text),): 1})
        if token.text not in _CALLS or not self.accept("("):
            return symbol(token.text)
        left = self.size()
        self.expect(",")
        right = self.size()
        self.expect(")")
        with located(line=token.line):
            return _CALLS[token.text](left, right)
