"""Regular expressions as DFAs over UTF-8 bytes, which kernels run in linear time.

A pattern becomes an NFA (Thompson's construction), and that a DFA (subset construction) whose
columns are classes of bytes that no edge distinguishes.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from sardonyx.base.records import field, mutable
from sardonyx.ops.arrays import Array
from sardonyx.ops.text.pattern import (
    Alternation,
    CharClass,
    Concatenation,
    Repetition,
    Tree,
    UnsupportedPattern,
    parse,
)

MAX_NODES: Final = 4000  # of the NFA
MAX_TRANSITIONS: Final = 50_000  # of the DFA: states times byte classes
_MAX_PATTERN_BYTES: Final = 20_000  # of a pattern
_MAX_EXPANDED: Final = 40_000  # of a pattern with all repetitions written out
_ENDS: Final = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # the last characters of 1, 2, 3 and 4 bytes
_SURROGATES: Final = (0xD800, 0xDFFF)

Bytes = list[tuple[int, int]]  # ranges of each byte of a sequence


@mutable
class _Nfa:
    """An NFA: nodes with edges for ranges of bytes, and epsilon edges."""

    edges: list[list[tuple[int, int, int]]] = field(default_factory=list)  # low, high, to
    epsilon: list[list[int]] = field(default_factory=list)
    n_expanded: int = 0  # trees added so far, with repetitions written out

    def node(self) -> int:
        if len(self.edges) >= MAX_NODES:
            raise UnsupportedPattern
        self.edges.append([])
        self.epsilon.append([])
        return len(self.edges) - 1

    def add(self, tree: Tree, begin: int) -> int:
        """Add a tree after a node; return the node where it ends."""
        self.n_expanded += 1
        if self.n_expanded > _MAX_EXPANDED:
            raise UnsupportedPattern
        match tree:
            case CharClass(ranges):
                end = self.node()
                for low, high in ranges:
                    self._byte_edges(low, high, begin, end)
                return end
            case Concatenation(parts):
                for part in parts:
                    begin = self.add(part, begin)
                return begin
            case Alternation(parts):
                end = self.node()
                for part in parts:
                    self.epsilon[self.add(part, begin)].append(end)
                return end
            case Repetition(part, least, most):
                return self._repeat(part, least, most, begin)

    def _repeat(self, part: Tree, least: int, most: int | None, begin: int) -> int:
        for _ in range(least):
            begin = self.add(part, begin)
        end = self.node()
        if most is None:
            again = self.node()
            self.epsilon[begin].append(again)
            self.epsilon[self.add(part, again)].append(again)
            self.epsilon[again].append(end)
            return end
        for _ in range(most - least):
            self.epsilon[begin].append(end)
            begin = self.add(part, begin)
        self.epsilon[begin].append(end)
        return end

    def _byte_edges(self, low: int, high: int, begin: int, end: int) -> None:
        """Add edges for the characters of a range, byte by byte in UTF-8."""
        for sequence in _sequences(low, high):
            at = begin
            for position, (first, last) in enumerate(sequence):
                to = end if position + 1 == len(sequence) else self.node()
                self.edges[at].append((first, last, to))
                at = to

    def closure(self, nodes: frozenset[int]) -> frozenset[int]:
        """Return the epsilon closure of nodes."""
        reached, waiting = set(nodes), list(nodes)
        while waiting:
            for to in self.epsilon[waiting.pop()]:
                if to not in reached:
                    reached.add(to)
                    waiting.append(to)
        return frozenset(reached)


def _sequences(low: int, high: int) -> list[Bytes]:
    """Return the UTF-8 byte sequences, as ranges per byte, of a range of characters."""
    if low <= _SURROGATES[1] and high >= _SURROGATES[0]:
        predecessors = _sequences(low, _SURROGATES[0] - 1) if low < _SURROGATES[0] else []
        return predecessors + (
            _sequences(_SURROGATES[1] + 1, high) if high > _SURROGATES[1] else []
        )
    for end in _ENDS:
        if low <= end < high:
            return _sequences(low, end) + _sequences(end + 1, high)
    if high < 0x80:
        return [[(low, high)]]
    # Split until the leading bytes are equal or all continuation bytes span their full range.
    for tail in (0x3F, 0xFFF, 0x3FFFF):
        if low & ~tail != high & ~tail:
            if low & tail:
                return _sequences(low, low | tail) + _sequences((low | tail) + 1, high)
            if high & tail != tail:
                return _sequences(low, (high & ~tail) - 1) + _sequences(high & ~tail, high)
    return [list(zip(chr(low).encode(), chr(high).encode(), strict=True))]


class Automaton:
    """The DFA of a pattern. State 0 is the dead state, 1 the initial state."""

    def __init__(self, tree: Tree) -> None:
        nfa = _Nfa()
        first = nfa.node()
        last = nfa.add(tree, first)
        self.class_of, bytes_ = _classes(nfa)
        states = {frozenset[int](): 0, nfa.closure(frozenset((first,))): 1}
        self.next: list[list[int]] = [[0] * len(bytes_)]
        for state in (waiting := list(states)[1:]):
            row = []
            for byte in bytes_:
                to = nfa.closure(
                    frozenset(t for n in state for low, up, t in nfa.edges[n] if low <= byte <= up)
                )
                if to not in states:
                    states[to] = len(states)
                    waiting.append(to)
                row.append(states[to])
            self.next.append(row)
            if len(states) * len(bytes_) > MAX_TRANSITIONS:
                raise UnsupportedPattern
        self.is_match = [last in state for state in states]

    @property
    def numbers(self) -> Array:
        """The table in the kernels' layout: sizes, byte classes, accepting states, transitions."""
        rows = [n for row in self.next for n in row]
        sizes = [len(self.next), len(self.next[0])]
        return np.array([*sizes, *self.class_of, *self.is_match, *rows], np.int32)

    @property
    def matches_empty(self) -> bool:
        """Whether the empty string is a match."""
        return self.is_match[1]

    @property
    def has_bounded_scan(self) -> bool:
        """Whether the number of bytes read without a match is bounded.

        A search restarts at each position, so that unbounded scans would take quadratic time.
        """
        predecessors = self._predecessors()
        # Kahn's algorithm on the non-accepting states: states that remain are on cycles.
        unmatched = {s for s, is_match in enumerate(self.is_match) if s and not is_match}
        n_successors = {s: len({t for t in self.next[s] if t in unmatched}) for s in unmatched}
        waiting = [s for s, n in n_successors.items() if not n]
        while waiting:
            state = waiting.pop()
            unmatched.remove(state)
            for other in predecessors[state] & unmatched:
                n_successors[other] -= 1
                if not n_successors[other]:
                    waiting.append(other)
        return not unmatched

    def _predecessors(self) -> list[set[int]]:
        """Return the predecessors of each state."""
        reached: list[set[int]] = [set() for _ in self.next]
        for state, row in enumerate(self.next):
            for to in row:
                reached[to].add(state)
        return reached


def _classes(nfa: _Nfa) -> tuple[list[int], list[int]]:
    """Return the class of each byte, and one byte per class; edges do not distinguish a class."""
    edges = {cut for node in nfa.edges for low, high, _ in node for cut in (low, high + 1)}
    bytes_ = sorted({0, *edges} - {256})
    starts = np.zeros(256, np.int64)
    starts[bytes_] = 1
    return (np.cumsum(starts) - 1).tolist(), bytes_


@functools.lru_cache(maxsize=256)
def automaton(expression: bytes, is_whole: bool = False) -> Automaton | None:
    """Return the DFA of an expression, or None if it needs RE2. `is_whole`: for full matches."""
    if len(expression) > _MAX_PATTERN_BYTES:
        return None
    try:
        text = expression.decode()
        if is_whole:  # anchors are redundant in a full match
            text = text.removeprefix("^")
            text = text[:-1] if text.endswith("$") and not text.endswith("\\$") else text
            if text != expression.decode() and "|" in text:
                return None
        return Automaton(parse(text))
    except (UnsupportedPattern, UnicodeDecodeError):
        return None
