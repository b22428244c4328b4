"""Tokenizer and parser of names, numbers, lists, sizes and types in the text form of graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn

from sardonyx.errors import InvalidGraph, located
from sardonyx.graph.dim import CALLS, Atom, Dim, Size, floor_div, modulo, symbol
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
NUMBERS: Final = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}
_SIZE_OPS: Final = {"//": floor_div, "%": modulo}


class Token(NamedTuple):
    """A lexical token."""

    kind: str  # string, number, word, mark; empty at the end
    text: str
    line: int


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    position, line = 0, 1
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            excerpt = text[position : position + 12]
            raise InvalidGraph(f"{excerpt!r} is not part of a graph", line=line)
        if match.lastgroup != "space":
            tokens.append(Token(str(match.lastgroup), match[0], line))
        line += match[0].count("\n")
        position = match.end()
    tokens.append(Token("", "", line))
    return tokens


class Reader:
    """Recursive-descent parser over the tokens of a text; each method parses one construct."""

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
        """Raise an error with the line, by default that of the next token."""
        raise InvalidGraph(what, line=self.next.line if line is None else line)

    def take(self) -> Token:
        """Consume and return the next token."""
        token = self.next
        self._place += token.kind != ""
        return token

    def accept(self, text: str) -> bool:
        """Consume the next token if it has this text; return whether it has."""
        found = self.next.text == text and self.next.kind != "string"
        self._place += found and text != ""
        return found

    def expect(self, text: str) -> None:
        """Consume the next token, which must have this text."""
        if not self.accept(text):
            found = self.next.text or "the end"
            self.fail(f"{text or 'the end'} is expected here, not {found}")

    def items(self, end: str) -> Iterator[None]:
        """Iterate over comma-separated items up to `end`; the caller parses one per iteration."""
        while not self.accept(end):
            yield
            if not self.accept(","):
                self.expect(end)
                return

    def string(self) -> str:
        """Parse a quoted string."""
        token = self.take()
        if token.kind != "string":
            self.fail(f"a string is expected here, not {token.text or 'the end'}", token.line)
        try:
            return str(ast.literal_eval(token.text))
        except (SyntaxError, ValueError):
            self.fail(f"{token.text} is not a string", token.line)

    def name(self) -> str:
        """Parse a word, or a quoted string."""
        if self.next.kind == "string":
            return self.string()
        token = self.take()
        if token.kind != "word" or "." in token.text or "#" in token.text:
            self.fail(f"a name is expected here, not {token.text or 'the end'}", token.line)
        return token.text

    def data(self) -> Any:
        """Parse a number, a bool, a string, or a nested list of them."""
        if self.accept("["):
            return [self.data() for _ in self.items("]")]
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
        """Parse the short name of an element type."""
        token = self.take()
        try:
            return by_name(token.text)
        except KeyError:
            self.fail(f"a type is expected here, not {token.text or 'the end'}", token.line)

    def fact(self) -> AnyFact | None:
        """Parse a type: a tensor with its shape, or a container; None for `?`."""
        if self.accept("?"):
            return None
        if self.next.text not in ("seq", "optional", "map", "sparse"):
            return self._tensor()
        kind = self.take().text
        self.expect("(")
        fact: AnyFact
        if kind == "map":
            key = self.dtype()
            self.expect(",")
            fact = MapFact(key, self.fact())
        elif kind == "sparse":
            dense = self._tensor()
            fact = SparseFact(dense.dtype, dense.shape)
        else:
            fact = SequenceFact(self.fact()) if kind == "seq" else OptionalFact(self.fact())
        self.expect(")")
        return fact

    def _tensor(self) -> Fact:
        dtype = self.dtype()
        self.expect("[")
        if self.accept("?"):
            self.expect("]")
            return Fact(dtype, None)
        return Fact(dtype, tuple([self._dim() for _ in self.items("]")]))

    def _dim(self) -> Size:
        line, size = self.next.line, self.size()
        if isinstance(size, int) and size < 0:
            self.fail(f"a dimension is never negative: {size}", line)
        return size

    def size(self) -> Size:
        """Parse a sum of products of names, numbers and calls."""
        total = self._product()
        while self.next.text in ("+", "-"):
            minus = self.take().text == "-"
            term = self._product()
            total = total - term if minus else total + term
        return total

    def _product(self) -> Size:
        value = self._factor()
        while self.next.text in ("*", "//", "%"):
            sign, line = self.take().text, self.next.line
            right = self._factor()
            with located(line=line):
                value = value * right if sign == "*" else _SIZE_OPS[sign](value, right)
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
        if "#" in token.text:  # a symbol from `Scope.new_dim`
            return Dim({(Atom("name", token.text),): 1})
        if token.text not in CALLS or not self.accept("("):
            return symbol(token.text)
        left = self.size()
        self.expect(",")
        right = self.size()
        self.expect(")")
        with located(line=token.line):
            return CALLS[token.text](left, right)
