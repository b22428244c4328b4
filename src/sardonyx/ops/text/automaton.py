"""Regular expressions as tables over bytes, which kernels run in time that grows with the text."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from sardonyx.base.records import field, mutable
from sardonyx.ops.arrays import Array
from sardonyx.ops.text.pattern import Chain, Choice, Letter, Repeat, Tree, Unsupported, parse

MOST_NODES: Final = 4000  # of what a pattern is first made into
MOST_STEPS: Final = 50_000  # of the table: states by classes of bytes
_MOST_BYTES: Final = 20_000  # of a pattern
_MOST_PARTS: Final = 40_000  # of a pattern with all repetitions written out
_ENDS: Final = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # the last characters of one byte, two and so on
_SURROGATES: Final = (0xD800, 0xDFFF)

Bytes = list[tuple[int, int]]  # ranges of each byte of a sequence


@mutable
class _Net:
    """Nodes with edges for ranges of bytes, and others that cost none."""

    edges: list[list[tuple[int, int, int]]] = field(default_factory=list)  # low, high, to
    free: list[list[int]] = field(default_factory=list)
    parts: int = 0  # so far; those that match nothing have no node

    def node(self) -> int:
        if len(self.edges) >= MOST_NODES:
            raise Unsupported
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, tree: Tree, begin: int) -> int:
        """A tree behind a node; returns the node where it ends."""
        self.parts += 1
        if self.parts > _MOST_PARTS:
            raise Unsupported
        match tree:
            case Letter(ranges):
                end = self.node()
                for low, high in ranges:
                    self._letters(low, high, begin, end)
                return end
            case Chain(parts):
                for part in parts:
                    begin = self.add(part, begin)
                return begin
            case Choice(parts):
                end = self.node()
                for part in parts:
                    self.free[self.add(part, begin)].append(end)
                return end
            case Repeat(part, least, most):
                return self._repeat(part, least, most, begin)

    def _repeat(self, part: Tree, least: int, most: int | None, begin: int) -> int:
        for _ in range(least):
            begin = self.add(part, begin)
        end = self.node()
        if most is None:
            again = self.node()
            self.free[begin].append(again)
            self.free[self.add(part, again)].append(again)
            self.free[again].append(end)
            return end
        for _ in range(most - least):
            self.free[begin].append(end)
            begin = self.add(part, begin)
        self.free[begin].append(end)
        return end

    def _letters(self, low: int, high: int, begin: int, end: int) -> None:
        """Edges for the characters of a range, byte by byte in UTF-8."""
        for sequence in _sequences(low, high):
            at = begin
            for position, (first, last) in enumerate(sequence):
                to = end if position + 1 == len(sequence) else self.node()
                self.edges[at].append((first, last, to))
                at = to

    def reach(self, nodes: frozenset[int]) -> frozenset[int]:
        """The nodes, and all that lie behind them for free."""
        found, waiting = set(nodes), list(nodes)
        while waiting:
            for to in self.free[waiting.pop()]:
                if to not in found:
                    found.add(to)
                    waiting.append(to)
        return frozenset(found)


def _sequences(low: int, high: int) -> list[Bytes]:
    """The ranges of bytes that the characters of a range are made of."""
    if low <= _SURROGATES[1] and high >= _SURROGATES[0]:
        before = _sequences(low, _SURROGATES[0] - 1) if low < _SURROGATES[0] else []
        return before + (_sequences(_SURROGATES[1] + 1, high) if high > _SURROGATES[1] else [])
    for end in _ENDS:
        if low <= end < high:
            return _sequences(low, end) + _sequences(end + 1, high)
    if high < 0x80:
        return [[(low, high)]]
    for tail in (0x3F, 0xFFF, 0x3FFFF):  # what the last bytes say: all of it, or one value ahead
        if low & ~tail != high & ~tail:
            if low & tail:
                return _sequences(low, low | tail) + _sequences((low | tail) + 1, high)
            if high & tail != tail:
                return _sequences(low, (high & ~tail) - 1) + _sequences(high & ~tail, high)
    return [list(zip(chr(low).encode(), chr(high).encode(), strict=True))]


class Automaton:
    """What a pattern matches, state by state. State 0 leads nowhere, 1 is the first."""

    def __init__(self, tree: Tree) -> None:
        net = _Net()
        first = net.node()
        last = net.add(tree, first)
        self.class_of, bytes_ = _classes(net)
        states = {frozenset[int](): 0, net.reach(frozenset((first,))): 1}
        self.next: list[list[int]] = [[0] * len(bytes_)]
        for state in (waiting := list(states)[1:]):
            row = []
            for byte in bytes_:
                to = net.reach(
                    frozenset(t for n in state for low, up, t in net.edges[n] if low <= byte <= up)
                )
                if to not in states:
                    states[to] = len(states)
                    waiting.append(to)
                row.append(states[to])
            self.next.append(row)
            if len(states) * len(bytes_) > MOST_STEPS:
                raise Unsupported
        self.is_match = [last in state for state in states]

    @property
    def numbers(self) -> Array:
        """The form that kernels read."""
        rows = [n for row in self.next for n in row]
        sizes = [len(self.next), len(self.next[0])]
        return np.array([*sizes, *self.class_of, *self.is_match, *rows], np.int32)

    @property
    def matches_nothing(self) -> bool:
        """Whether the empty string is a match."""
        return self.is_match[1]

    @property
    def is_prompt(self) -> bool:
        """Whether it never reads on for long without a match.

        Whoever looks for the next match begins anew at each place, so that this must not be far.
        """
        before = self._before()
        # States that are left when those that lead to no other are taken away lie on circles.
        open_ = {s for s, is_match in enumerate(self.is_match) if s and not is_match}
        ahead = {s: len({t for t in self.next[s] if t in open_}) for s in open_}
        waiting = [s for s, n in ahead.items() if not n]
        while waiting:
            state = waiting.pop()
            open_.remove(state)
            for other in before[state] & open_:
                ahead[other] -= 1
                if not ahead[other]:
                    waiting.append(other)
        return not open_

    def _before(self) -> list[set[int]]:
        """From which states each is reached."""
        found: list[set[int]] = [set() for _ in self.next]
        for state, row in enumerate(self.next):
            for to in row:
                found[to].add(state)
        return found


def _classes(net: _Net) -> tuple[list[int], list[int]]:
    """The class of each byte, and one byte of each class: no edge tells those of one apart."""
    edges = {cut for node in net.edges for low, high, _ in node for cut in (low, high + 1)}
    bytes_ = sorted({0, *edges} - {256})
    starts = np.zeros(256, np.int64)
    starts[bytes_] = 1
    return (np.cumsum(starts) - 1).tolist(), bytes_


@functools.lru_cache(maxsize=256)
def automaton(expression: bytes, is_whole: bool = False) -> Automaton | None:
    """The automaton of an expression; None where that takes RE2. `is_whole`: for whole strings."""
    if len(expression) > _MOST_BYTES:
        return None
    try:
        text = expression.decode()
        if is_whole:  # where anchors say nothing new
            text = text.removeprefix("^")
            text = text[:-1] if text.endswith("$") and not text.endswith("\\$") else text
            if text != expression.decode() and "|" in text:
                return None
        return Automaton(parse(text))
    except (Unsupported, UnicodeDecodeError):
        return None
