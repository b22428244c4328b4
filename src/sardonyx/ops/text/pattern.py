"""Parses the subset of RE2's syntax that automaton.py supports into syntax trees."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import frozen

LAST: Final = 0x10FFFF
MAX_REPEAT: Final = 1000  # RE2's limit of a repetition count

Ranges = tuple[tuple[int, int], ...]  # ranges of characters, both ends included

_DIGITS: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}


class UnsupportedPattern(Exception):
    """The pattern is invalid, or uses syntax that automata do not support."""


@frozen
class CharClass:
    """One character out of ranges."""

    ranges: Ranges


@frozen
class Concatenation:
    """A concatenation; without parts, the empty string."""

    parts: tuple[Tree, ...]


@frozen
class Alternation:
    """An alternation: a|b."""

    parts: tuple[Tree, ...]


@frozen
class Repetition:
    """A part repeated `least` to `most` times; unbounded where `most` is None."""

    part: Tree
    least: int
    most: int | None


Tree = CharClass | Concatenation | Alternation | Repetition


def negated(ranges: Ranges) -> Ranges:
    """Return the complement of ranges."""
    result, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            result.append((at, low - 1))
        at = max(at, high + 1)
    if at <= LAST:
        result.append((at, LAST))
    return tuple(result)


_LINE: Final = CharClass(negated(((10, 10),)))


class _Parser:
    """A recursive-descent parser of a pattern."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0

    def peek(self, ahead: str) -> bool:
        return self.text.startswith(ahead, self.at)

    def take(self, ahead: str) -> bool:
        if not self.peek(ahead):
            return False
        self.at += len(ahead)
        return True

    def next(self) -> str:
        if self.at == len(self.text):
            raise UnsupportedPattern
        self.at += 1
        return self.text[self.at - 1]

    def choice(self) -> Tree:
        self.depth += 1
        if self.depth > 50:
            raise UnsupportedPattern
        parts = [self.chain()]
        while self.take("|"):
            parts.append(self.chain())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def chain(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def repeated(self, part: Tree) -> Tree:
        for mark, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(mark):
                self.take("?")  # a lazy quantifier, which longest-match semantics ignore
                return self.once(Repetition(part, least, most))
        if self.peek("{"):
            return self.once(self.counted(part))
        return part

    def once(self, part: Tree) -> Tree:
        if any(self.peek(mark) for mark in "*+?{"):
            raise UnsupportedPattern
        return part

    def counted(self, part: Tree) -> Tree:
        # {n}, {n,} or {n,m}.
        inside, closing, _ = self.text[self.at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        numbers = [least, most] if comma and most else [least]
        if not closing or not all(n.isascii() and n.isdigit() and len(n) < 5 for n in numbers):
            raise UnsupportedPattern
        self.at += len(inside) + 2
        self.take("?")
        top = int(most) if most else None if comma else int(least)
        if int(least) > MAX_REPEAT or (top is not None and not int(least) <= top <= MAX_REPEAT):
            raise UnsupportedPattern
        return Repetition(part, int(least), top)

    def atom(self) -> Tree:
        c = self.next()
        if c == "(":
            return self.group()
        if c == "[":
            return CharClass(self.bracket())
        if c == ".":
            return _LINE
        if c == "\\":
            return CharClass(self.escape())
        if c in "^$*+?{)":
            raise UnsupportedPattern
        return CharClass(((ord(c), ord(c)),))

    def group(self) -> Tree:
        if self.take("?") and not self.take(":"):
            raise UnsupportedPattern
        inside = self.choice()
        if not self.take(")"):
            raise UnsupportedPattern
        return inside

    def escape(self) -> Ranges:
        c = self.next()
        if c in _CLASSES:
            return _CLASSES[c]
        if c.lower() in _CLASSES:
            return negated(_CLASSES[c.lower()])
        point = _CONTROLS.get(c, ord(c))
        if c == "x":
            point = self.hexadecimal()
        elif c not in _CONTROLS and (c.isalnum() or c == "_" or point >= 128):
            raise UnsupportedPattern
        return ((point, point),)

    def hexadecimal(self) -> int:
        if self.take("{"):
            digits, closing, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits, closing = self.text[self.at : self.at + 2], "}"
            self.at += 2
        is_whole = 1 <= len(digits) <= 6 and all(d in "0123456789abcdefABCDEF" for d in digits)
        if not closing or not is_whole or self.at > len(self.text) or int(digits, 16) > LAST:
            raise UnsupportedPattern
        return int(digits, 16)

    def bracket(self) -> Ranges:
        is_negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self.peek("]"):
            is_first = False
            ranges.extend(self.member())
        self.at += 1
        return negated(tuple(ranges)) if is_negated else tuple(ranges)

    def member(self) -> Ranges:
        if self.peek("[:"):
            raise UnsupportedPattern
        c = self.next()
        low = self.escape() if c == "\\" else ((ord(c), ord(c)),)
        # A hyphen before the closing bracket is a literal.
        follows = self.text[self.at + 1 : self.at + 2]
        if not self.peek("-") or follows in ("]", ""):
            return low
        self.at += 1
        c = self.next()
        high = self.escape() if c == "\\" else ((ord(c), ord(c)),)
        if any(len(end) > 1 or end[0][0] != end[0][1] for end in (low, high)):
            raise UnsupportedPattern  # a class cannot be the end of a range
        if high[0][0] < low[0][0]:
            raise UnsupportedPattern
        return ((low[0][0], high[0][0]),)


def parse(pattern: str) -> Tree:
    """Return the syntax tree; raise UnsupportedPattern for anchors, flags and invalid syntax."""
    parser = _Parser(pattern)
    result = parser.choice()
    if parser.at != len(pattern):
        raise UnsupportedPattern
    return result
