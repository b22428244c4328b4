"""TfIdfVectorizer: counts of n-grams of words or numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dtype import F32, INDEX, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, array, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.lookup_table import LookupTable, StringTable
from sardonyx.ops.memoize import Memoized

MODES: Final = (b"TF", b"IDF", b"TFIDF")
MAX_COLUMNS: Final = 2**28  # of the result; more means an invalid model

vectorizer = Op(
    "TfIdfVectorizer",
    9,
    "x:T",
    "y:F",
    attrs={
        "max_gram_length": required("int"),
        "max_skip_count": required("int"),
        "min_gram_length": required("int"),
        "mode": required("bytes"),
        "ngram_counts": required("array ints"),
        "ngram_indexes": required("array ints"),
        "pool_int64s": array("ints"),
        "pool_strings": array("strings"),
        "weights": array("floats"),
    },
    types={"T": INDEX | {STRING}, "F": frozenset((F32,))},
    unranked=True,
)


class NGramTrie:
    """The n-grams of a pool as a trie: (prefix, next token) maps to a longer prefix."""

    def __init__(self, pool: Any, starts: Array, longest: int) -> None:
        """The pool has all 1-grams, then all 2-grams and so on, each n-gram as n tokens.

        A string token is numbered by its last index in the pool, another by its rank among the
        sorted tokens.
        """
        self.words: StringTable | None = None
        self.numbers: Array = np.zeros(0, np.int64)
        if isinstance(pool, list):
            self.words = StringTable(pool)
            tokens, self.n_words = self.words.numbers(), len(pool)
        else:
            self.numbers, tokens = np.unique(pool, return_inverse=True)
            self.n_words = len(self.numbers)
        self.keys: list[Array] = []  # by length: sorted keys (shorter prefix, token)
        self.gram: list[
            Array
        ] = []  # by length: the number of the n-gram that equals a prefix, or -1
        blocks = _blocks(tokens, starts, longest)
        # By block, the prefix that each n-gram has reached; all start at the empty prefix, 0.
        at = [rows[:, :1].reshape(-1) * 0 for _, rows in blocks]
        for length in range(1, longest + 1):
            self._level(length, blocks, at)

    def _tokens(self, x: Array) -> Array:
        """Return the numbers of tokens, -1 for those not in the pool."""
        if self.words is None:
            return LookupTable(self.numbers, np.arange(self.n_words), -1)(x)
        return self.words.find(x)

    def _level(self, length: int, blocks: list[tuple[int, Array]], at: list[Array]) -> None:
        """Extend the prefixes in `at` by one token, and number those that are complete n-grams."""
        extended = [
            prefix * self.n_words + rows[:, length - 1] if rows.shape[1] >= length else prefix[:0]
            for prefix, (_, rows) in zip(at, blocks, strict=True)
        ]
        keys = np.sort(np.concatenate(extended))
        keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
        gram = np.full(len(keys), -1)
        for i, (first, rows) in enumerate(blocks):
            at[i] = np.searchsorted(keys, extended[i])
            if rows.shape[1] == length:
                gram[at[i]] = first + np.arange(len(rows))
                if np.count_nonzero(gram >= 0) != len(rows):
                    raise InvalidGraph(f"the pool has one of its {length}-grams twice")
        self.keys.append(keys)
        self.gram.append(gram)

    def find(self, rows: Array, shortest: int, skips: int) -> tuple[Array, Array]:
        """Return the row and number of every n-gram (skip-gram of up to `skips`) in rows."""
        tokens = self._tokens(rows)
        width = rows.shape[1]
        matches: list[tuple[Array, Array]] = []
        # A skip-gram takes every gap-th token; a 1-gram is the same for all gaps and counted once.
        for gap in range(1, min(skips, width) + 2):
            prefix = np.zeros_like(tokens)
            for length, (keys, gram) in enumerate(zip(self.keys, self.gram, strict=True), 1):
                reach = (length - 1) * gap
                if reach >= width or not len(keys):
                    break
                prefix = self._step(prefix[:, : width - reach], tokens[:, reach:], keys)
                if length >= shortest and (length > 1 or gap == 1):
                    hit = np.where(prefix >= 0, gram[prefix], -1)
                    row, _ = at = np.nonzero(hit >= 0)
                    matches.append((row, hit[at]))
        if not matches:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        return np.concatenate([f[0] for f in matches]), np.concatenate([f[1] for f in matches])

    def _step(self, prefix: Array, token: Array, keys: Array) -> Array:
        key = prefix * self.n_words + token
        at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where((prefix >= 0) & (token >= 0) & (keys[at] == key), at, -1)


def _spans(size: int, starts: Array) -> list[tuple[int, int, int]]:
    """Return (length, begin, end) in the pool for the n-grams of each length."""
    ends = [*starts.tolist()[1:], size]
    spans = []
    for n, (begin, end) in enumerate(zip(starts.tolist(), ends, strict=True), 1):
        if not 0 <= begin <= end <= size or (end - begin) % n:
            raise InvalidGraph(
                f"ngram_counts puts {n}-grams at {begin} to {end} of a pool of {size}"
            )
        spans.append((n, begin, end))
    return spans


def _blocks(tokens: Array, starts: Array, longest: int) -> list[tuple[int, Array]]:
    """Return, for each length, the number of its first n-gram and a matrix of tokens."""
    blocks, first = [], 0
    for n, begin, end in _spans(len(tokens), starts):
        if n <= longest:
            blocks.append((first, tokens[begin:end].reshape(-1, n)))
        first += (end - begin) // n
    return blocks


gram_table: Final = Memoized(NGramTrie)


def _count(size: int, starts: Array, longest: int) -> int:
    """Return the number of a pool's n-grams of up to this length."""
    return sum((end - begin) // n for n, begin, end in _spans(size, starts) if n <= longest)


def pool_of(x_is_text: bool, attrs: dict[str, Any]) -> Any:
    return attrs["pool_strings"] if x_is_text else attrs["pool_int64s"]


@vectorizer.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    pool = pool_of(x.dtype is STRING, attrs)
    if pool is None:
        name = "pool_strings" if x.dtype is STRING else "pool_int64s"
        raise InvalidGraph(f"TfIdfVectorizer of {x.dtype} needs {name}")
    if attrs["mode"] not in MODES:
        odd = attrs["mode"].decode(errors="replace")
        raise InvalidGraph(f"mode must be TF, IDF or TFIDF, got {odd}")
    shortest, longest = attrs["min_gram_length"], attrs["max_gram_length"]
    n_lengths = len(attrs["ngram_counts"])
    if not 1 <= shortest <= longest <= n_lengths or attrs["max_skip_count"] < 0:
        raise InvalidGraph(
            f"TfIdfVectorizer counts {shortest}- to {longest}-grams with up to "
            f"{attrs['max_skip_count']} skips, and its pool has 1- to {n_lengths}-grams"
        )
    width = _check_columns(_count(len(pool), attrs["ngram_counts"], longest), attrs)
    if x.shape is not None and x.rank not in (1, 2):
        raise ShapeError(f"TfIdfVectorizer needs one row of tokens, or several, got {x}")
    return Fact(F32, None if x.shape is None else (*x.dims[:-1], width))


def _check_columns(count: int, attrs: dict[str, Any]) -> int:
    """Check ngram_indexes and weights, and return the number of columns of the result."""
    columns, weights = attrs["ngram_indexes"], attrs["weights"]
    if len(columns) < count or (weights is not None and len(weights) < count):
        n_entries = len(columns) if len(columns) < count else len(weights)
        name = "ngram_indexes" if len(columns) < count else "weights"
        raise InvalidGraph(f"the pool has {count} n-grams, and {name} has {n_entries} entries")
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= MAX_COLUMNS:
        raise InvalidGraph(
            f"ngram_indexes go from {columns.min()} to {columns.max()}, outside [0, {MAX_COLUMNS})"
        )
    return int(columns.max(initial=-1)) + 1


@vectorizer.reference
def _(x: Array, **attrs: Any) -> Array:
    pool = pool_of(x.dtype == object, attrs)
    grams = gram_table(pool, attrs["ngram_counts"], attrs["max_gram_length"])
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    row, gram = grams.find(rows, attrs["min_gram_length"], attrs["max_skip_count"])
    size = max(len(attrs["ngram_indexes"]), 1)
    # Occurrences are counted per (row, n-gram) cell.
    cell, count = np.unique(row * size + gram, return_counts=True)
    row, gram = cell // size, cell % size
    value = np.ones(len(count)) if attrs["mode"] == b"IDF" else count.astype(np.float64)
    if attrs["weights"] is not None and attrs["mode"] != b"TF":
        value = value * attrs["weights"][gram]
    columns = attrs["ngram_indexes"]
    result = np.zeros((len(rows), int(columns.max(initial=-1)) + 1), np.float32)
    np.add.at(result, (row, columns[gram]), value)
    return result[0] if x.ndim == 1 else result


OPS: Final = (vectorizer,)
