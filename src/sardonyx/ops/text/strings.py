"""StringConcat, StringSplit, StringNormalizer and RegexFullMatch."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, NotImplemented, ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BOOL, I64, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, array, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.inference import broadcast_shapes
from sardonyx.ops.memoize import Memoized
from sardonyx.ops.text.case import change_case, is_dotted

STRINGS: Final = frozenset((STRING,))


def optional_package(name: str, distribution: str, extra: str, op: str) -> Any:
    """Import an optional package when an op first needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplemented(
            f"{op} needs the package {distribution}: pip install sardonyx[{extra}]"
        ) from error


concat = Op("StringConcat", 20, "x:T y:T", "z:T", types={"T": STRINGS})
concat.infer(lambda g, x, y: Fact(STRING, broadcast_shapes(g, x.dims, y.dims)))
concat.reference(lambda x, y: np.asarray(x + y, object))


split = Op(
    "StringSplit",
    20,
    "x:T",
    "y:T z:I",
    attrs={"delimiter": optional("bytes"), "maxsplit": optional("int")},
    types={"T": STRINGS, "I": frozenset((I64,))},
    unranked=True,
)


@split.infer
def _(g: Scope, x: Fact, *, delimiter: bytes | None, maxsplit: int | None) -> tuple[Fact, Fact]:
    shape: Shape | None = None if x.shape is None else (*x.shape, g.new_dim("substrings"))
    return Fact(STRING, shape), Fact(I64, x.shape)


@split.reference
def _(x: Array, *, delimiter: bytes | None, maxsplit: int | None) -> tuple[Array, Array]:
    mark = delimiter.decode("utf-8", "replace") if delimiter else None
    max_splits = -1 if maxsplit is None else maxsplit
    parts = [_parts(s, mark, max_splits) for s in x.reshape(-1).tolist()]
    counts = np.array([len(p) for p in parts], np.int64)
    width = int(counts.max(initial=0))
    table = np.full((len(parts), width), "", object)
    for row, substrings in zip(table, parts, strict=True):
        row[: len(substrings)] = substrings
    return table.reshape(*x.shape, width), counts.reshape(x.shape)


def _parts(text: str, mark: str | None, max_splits: int) -> list[str]:
    """Return the substrings of a string; an empty string has none."""
    if mark is None:
        return text.strip().split(None, max_splits)
    return text.split(mark, max_splits) if text else []


normalizer = Op(
    "StringNormalizer",
    10,
    "x:T",
    "y:T",
    attrs={
        "case_change_action": b"NONE",
        "is_case_sensitive": 0,
        "locale": optional("bytes"),
        "stopwords": array("strings"),
    },
    types={"T": STRINGS},
    unranked=True,
)


@normalizer.infer
def _(g: Scope, x: Fact, *, case_change_action: bytes, stopwords: Any, **_: Any) -> Fact:
    if case_change_action not in (b"NONE", b"LOWER", b"UPPER"):
        odd = case_change_action.decode(errors="replace")
        raise InvalidGraph(f"case_change_action must be NONE, LOWER or UPPER, got {odd}")
    if x.shape is None:
        return x.without_contents()
    if x.rank not in (1, 2):
        raise ShapeError(f"StringNormalizer takes strings of shape [C] or [1, C], got {x}")
    if x.rank == 2:
        g.equal(x.dims[0], 1, "StringNormalizer takes strings of shape [C] or [1, C]")
    g.at_least(x.dims[-1], 1, "StringNormalizer has no strings to normalize")
    return x.shaped((*x.dims[:-1], g.new_dim("words"))) if stopwords else x.without_contents()


@normalizer.reference
def _(
    x: Array,
    *,
    case_change_action: bytes,
    is_case_sensitive: int,
    locale: bytes | None,
    stopwords: Any,
) -> Array:
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
        raise InvalidArgument(
            f"StringNormalizer takes strings of shape [C] or [1, C], got {x.shape}"
        )
    dotted = is_dotted(locale)
    words: list[str] = x.reshape(-1).tolist()
    if stopwords:
        stopped = stopword_set(stopwords, is_case_sensitive, dotted)
        folded = words if is_case_sensitive else [change_case(w, False, dotted) for w in words]
        words = [w for w, key in zip(words, folded, strict=True) if key not in stopped]
    if case_change_action != b"NONE":
        words = [change_case(w, case_change_action == b"UPPER", dotted) for w in words]
    result = np.empty(max(len(words), 1), object)
    result[:] = words or [""]
    return result.reshape(1, -1) if x.ndim == 2 else result


def _stopword_set(stopwords: list[bytes], is_case_sensitive: int, dotted: bool) -> frozenset[str]:
    words = [w.decode("utf-8", "replace") for w in stopwords]
    return frozenset(words if is_case_sensitive else (change_case(w, False, dotted) for w in words))


stopword_set: Final = Memoized(_stopword_set)  # case-folded unless is_case_sensitive


match = Op(
    "RegexFullMatch",
    20,
    "x:T",
    "y:B",
    attrs={"pattern": optional("bytes")},
    types={"T": STRINGS, "B": frozenset((BOOL,))},
    unranked=True,
)


@functools.lru_cache(maxsize=256)
def compiled(pattern: bytes | str, op: str, is_longest: bool = False) -> Any:
    """Compile a pattern with RE2, which matches in linear time.

    `is_longest`: of the matches at a position, the longest one is taken, not the first.
    """
    re2 = optional_package("re2", "google-re2", "regex", op)
    options = re2.Options()
    options.longest_match = is_longest
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        shown = pattern if isinstance(pattern, str) else pattern.decode("utf-8", "replace")
        raise InvalidGraph(f"the pattern {shown!r} is not valid in RE2: {error}") from error


def _full_match(pattern: bytes) -> Any:
    return compiled(pattern.decode("utf-8", "replace"), "RegexFullMatch")


@match.infer
def _(g: Scope, x: Fact, *, pattern: bytes | None) -> Fact:
    if pattern is None:
        raise InvalidGraph("RegexFullMatch has no pattern")
    from sardonyx.ops.text.automaton import automaton  # rarely needed

    # Kernels run the automaton; compiling with RE2 here reports an invalid pattern at load time.
    if automaton(pattern, is_whole=True) is None:
        _full_match(pattern)
    return Fact(BOOL, x.shape)


@match.reference
def _(x: Array, *, pattern: bytes) -> Array:
    matches = _full_match(pattern).fullmatch
    is_match = [matches(s) is not None for s in x.reshape(-1).tolist()]
    return np.array(is_match, bool).reshape(x.shape)


OPS: Final = (concat, split, normalizer, match)
