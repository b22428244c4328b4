"""Ops over strings."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.sweep.case import Array, Case
from bench.sweep.draw import MICROSOFT, Draw, Family

_COUNTS: Final = {"tiny": 3, "typical": 1000, "large": 20_000}


def words(d: Draw) -> Array:
    """Short words, many of them equal."""
    known = np.array([f"Word{i}" for i in range(200)], object)
    return known[d.array((_COUNTS[d.size],), "int64", 0, 200)]


def _sentences(d: Draw) -> Array:
    known = np.array([f"the {i} quick brown foxes {i * 7}" for i in range(200)], object)
    return known[d.array((_COUNTS[d.size] // 4 + 1,), "int64", 0, 200)]


def _normalizer(d: Draw, op: str) -> Case:
    attrs = {
        "case_change_action": d.pick(("LOWER", "UPPER", "NONE")),
        "stopwords": ["word3"],
        "locale": "C",
    }
    return Case(op, [words(d)], attrs)


def _concat(d: Draw, op: str) -> Case:
    x = words(d)
    return Case(op, [x, d.pick((x, np.array("_end", object)))])


def _split(d: Draw, op: str) -> Case:
    attrs = {"delimiter": " ", "maxsplit": 2} if d.chance(0.5) else {"delimiter": " "}
    return Case(op, [_sentences(d)], attrs, n_outputs=2)


def _match(d: Draw, op: str) -> Case:
    return Case(op, [words(d)], {"pattern": d.pick((r"Word\d+", r"[A-Z]\w*1", r"(Word1|Word2)\d"))})


def _hash(d: Draw, op: str) -> Case:
    x = words(d) if d.chance(0.5) else d.array((_COUNTS[d.size],), "int32")
    return Case(op, [x], {"positive": d.pick((0, 1)), "seed": 3}, domain=MICROSOFT)


def _tokenizer(d: Draw, op: str) -> Case:
    attrs = {"mark": 0, "pad_value": "#", "separators": [" "], "mincharnum": 1}
    return Case(op, [_sentences(d)], attrs, domain=MICROSOFT)


FAMILIES: Final[dict[str, Family]] = {
    "StringNormalizer": _normalizer,
    "StringConcat": _concat,
    "StringSplit": _split,
    "RegexFullMatch": _match,
    "MurmurHash3": _hash,
    "Tokenizer": _tokenizer,
}
