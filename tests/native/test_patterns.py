"""Regular expressions as automata: what RE2 matches, and only patterns that stay small."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.ops import lookup
from sardonyx.ops.text.automaton import Automaton, automaton
from tests.native.test_strings import MICROSOFT, STRING, node, python_steps, session_of, text

PIECES = ["a", "b", "ab", r"\w", r"\d", ".", "[ab]", "[^a]", "[a-c0-9]", "é", "[à-ÿ]", r"\s", "😀"]
PATTERNS = st.recursive(
    st.sampled_from(PIECES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from("abc01_ \néÀÿ😀-"), max_size=12)


def expressions(pattern: str) -> tuple[Automaton, Any]:
    made = automaton(pattern.encode())
    assert made is not None
    re2 = pytest.importorskip("re2", reason="automata are held against google-re2")
    options = re2.Options()
    options.longest_match = True
    return made, re2.compile(pattern, options)


def run_automaton(made: Automaton, data: bytes) -> bool:
    state = 1
    for byte in data:
        state = made.next[state][made.class_of[byte]]
    return made.is_match[state]


@settings(max_examples=300, deadline=None)
@given(PATTERNS, st.lists(TEXTS, max_size=8))
def test_automata_match_what_re2_matches(pattern: str, words: list[str]) -> None:
    made, other = expressions(pattern)
    for word in words:
        assert run_automaton(made, word.encode()) == (other.fullmatch(word) is not None), word


@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.integers(1, 2))
def test_tokens_are_those_of_re2(pattern: str, words: list[str], between: bool, least: int) -> None:
    attrs = {"mark": 1, "mincharnum": least, "pad_value": "#"}
    how = {"separators": [pattern, " "]} if between else {"tokenexp": pattern}
    session = session_of(
        [node("Tokenizer", "x", "y", MICROSOFT, **attrs, **how)],
        {"x": (STRING, ["n"])},
        {"y": STRING},
    )
    (y,) = session.run(None, {"x": text(*words)})
    op = lookup(MICROSOFT, "Tokenizer")
    assert op is not None
    given_ = {
        "mark": 1, "mincharnum": least, "pad_value": b"#",
        "separators": (pattern.encode(), b" ") if between else None,
        "tokenexp": None if between else pattern.encode(),
    }  # fmt: skip
    (want,) = op.run([text(*words)], given_)
    assert y.tolist() == want.tolist()


@pytest.mark.parametrize(
    ("pattern", "is_known"),
    [
        ("[a-zA-Z0-9_]+", True),
        (r"\x{1F600}+\x41", True),
        ("[]a^-]", True),
        (r"[^\d\s]+", True),
        (r"\bword\b", False),
        ("(?i)a", False),
        (r"\pL", False),
        ("[[:alpha:]]", False),
        ("a**", False),
        ("a{2", False),
        ("(", False),
        ("[b-a]", False),
        (r"[!-\d]", False),
        ("(" * 60 + ")" * 60, False),
        ("a{1000}{1000}", False),
        ("((a{100}){100}){100}", False),
        ("((" + "()" * 5000 + "){1000}){1000}", False),
        ("[" + "ab" * 20_000 + "]", False),
        ("(a|b)*a" + "(a|b)" * 14, False),
        ("\udcff", False),
    ],
)
def test_which_patterns_become_automata(pattern: str, is_known: bool) -> None:
    """Patterns that are too large or not supported are left to RE2."""
    assert (automaton(pattern.encode("utf-8", "surrogateescape")) is not None) == is_known


@pytest.mark.parametrize(
    ("pattern", "has_bounded_scan"),
    [("a+b", False), ("a+b?", True), ("ab{3}c", True), (r"a|a*[^\x00-\x{10FFFF}]", False)],
)
def test_patterns_of_unbounded_lookahead(pattern: str, has_bounded_scan: bool) -> None:
    """Such a search takes time that grows with the square of the text."""
    made = automaton(pattern.encode())
    assert made is not None
    assert made.has_bounded_scan == has_bounded_scan


def test_patterns_of_unbounded_lookahead_run_in_re2() -> None:
    session = session_of(
        [node("Tokenizer", "x", "y", MICROSOFT, mark=0, mincharnum=1, pad_value="#",
              tokenexp='"[^"]*"')],
        {"x": (STRING, ["n"])},
        {"y": STRING},
    )  # fmt: skip
    assert python_steps(session) == 1
    (y,) = session.run(None, {"x": text('say "a b" and "c" or "')})
    assert y.tolist() == [['"a b"', '"c"']]
