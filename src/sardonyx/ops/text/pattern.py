"""Regular expressions as trees: the part of RE2's syntax that automata are made for."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import frozen

LAST: Final = 0x10FFFF
MOST: Final = 1000  # times that something is repeated, as in RE2

Ranges = tuple[tuple[int, int], ...]  # of characters, both ends included

_DIGITS: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}


class Unsupported(Exception):
    """The pattern has something that automata are not made for, or is none."""


@frozen
class Letter:
    """One character out of ranges."""

    ranges: Ranges


@frozen
class Chain:
    """One part after the other; none is the empty string."""

    parts: tuple[Tree, ...]


@frozen
class Choice:
    """One of several."""

    parts: tuple[Tree, ...]


@frozen
class Repeat:
    """A part so many times; no limit where `most` is None."""

    part: Tree
    least: int
    most: int | None


Tree = Letter | Chain | Choice | Repeat


def negated(ranges: Ranges) -> Ranges:
    """All other characters."""
    made, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            made.append((at, low - 1))
        at = max(at, high + 1)
    if at <= LAST:
        made.append((at, LAST))
    return tuple(made)


_LINE: Final = Letter(negated(((10, 10),)))


class _Parser:
    """One pass over a pattern, from the left."""

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
            raise Unsupported
        self.at += 1
        return self.text[self.at - 1]

    def choice(self) -> Tree:
        self.depth += 1
        if self.depth > 50:
            raise Unsupported
        parts = [self.chain()]
        while self.take("|"):
            parts.append(self.chain())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def chain(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def repeated(self, part: Tree) -> Tree:
        for mark, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(mark):
                self.take("?")  # fewest first: of no interest to whoever wants the longest
                return self.once(Repeat(part, least, most))
        if self.peek("{"):
            return self.once(self.counted(part))
        return part

    def once(self, part: Tree) -> Tree:
        if any(self.peek(mark) for mark in "*+?{"):
            raise Unsupported
        return part

    def counted(self, part: Tree) -> Tree:
        inside, found, _ = self.text[self.at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        numbers = [least, most] if comma and most else [least]
        if not found or not all(n.isascii() and n.isdigit() and len(n) < 5 for n in numbers):
            raise Unsupported
        self.at += len(inside) + 2
        self.take("?")
        top = int(most) if most else None if comma else int(least)
        if int(least) > MOST or (top is not None and not int(least) <= top <= MOST):
            raise Unsupported
        return Repeat(part, int(least), top)

    def atom(self) -> Tree:
        c = self.next()
        if c == "(":
            return self.group()
        if c == "[":
            return Letter(self.bracket())
        if c == ".":
            return _LINE
        if c == "\\":
            return Letter(self.escape())
        if c in "^$*+?{)":
            raise Unsupported
        return Letter(((ord(c), ord(c)),))

    def group(self) -> Tree:
        if self.take("?") and not self.take(":"):
            raise Unsupported
        inside = self.choice()
        if not self.take(")"):
            raise Unsupported
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
            raise Unsupported
        return ((point, point),)

    def hexadecimal(self) -> int:
        if self.take("{"):
            digits, found, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits, found = self.text[self.at : self.at + 2], "}"
            self.at += 2
        is_whole = 1 <= len(digits) <= 6 and all(d in "0123456789abcdefABCDEF" for d in digits)
        if not found or not is_whole or self.at > len(self.text) or int(digits, 16) > LAST:
            raise Unsupported
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
            raise Unsupported
        c = self.next()
        low = self.escape() if c == "\\" else ((ord(c), ord(c)),)
        follows = self.text[self.at + 1 : self.at + 2]
        if not self.peek("-") or follows in ("]", ""):
            return low
        self.at += 1
        c = self.next()
        high = self.escape() if c == "\\" else ((ord(c), ord(c)),)
        if any(len(end) > 1 or end[0][0] != end[0][1] for end in (low, high)):
            raise Unsupported  # a class is no end of a range
        if high[0][0] < low[0][0]:
            raise Unsupported
        return ((low[0][0], high[0][0]),)


def parse(pattern: str) -> Tree:
    """The tree of a pattern; Unsupported where it has anchors, flags, or what RE2 refuses."""
    parser = _Parser(pattern)
    made = parser.choice()
    if parser.at != len(pattern):
        raise Unsupported
    return made
