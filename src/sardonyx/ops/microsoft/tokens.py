"""Ops over tokens: runs that must not repeat, aggressive decoding, words out of characters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dtype import F32, I32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.microsoft.generation.scores import repeating
from sardonyx.ops.rules import Array, one_int

_FLOAT: Final = frozenset((F32,))
_LONG: Final = frozenset((I64,))

ngram_repeat_block: Final = Op(
    "NGramRepeatBlock",
    1,
    "input_ids:Tid scores:T",
    "scores_out:T",
    domain=MICROSOFT,
    attrs={"ngram_size": required("int")},
    types={"Tid": _LONG, "T": _FLOAT},
)


@ngram_repeat_block.infer
def _(g: Scope, ids: Fact, scores: Fact, *, ngram_size: int) -> Fact:
    if ids.rank != 2 or scores.rank != 2:
        raise ShapeError(f"input_ids and scores have two dims, not {ids} and {scores}")
    if ngram_size < 1:
        raise InvalidGraph(f"ngram_size is 1 or more, not {ngram_size}")
    g.equal(ids.dims[0], scores.dims[0], "input_ids and scores differ in batch")
    return scores.plain()


@ngram_repeat_block.reference
def _(ids: Array, scores: Array, *, ngram_size: int) -> Array:
    out = scores.copy()
    for row, sequence in zip(out, ids, strict=True):
        row[repeating(sequence, ngram_size, len(row))] = -np.inf
    return out


bifurcation_detector: Final = Op(
    "BifurcationDetector",
    1,
    "src_tokens:T cur_tokens:T prev_suffix_match_idx:T pred_tokens:T?",
    "tokens:T suffix_match_idx:T",
    domain=MICROSOFT,
    attrs={"min_ngram_size": 1, "max_ngram_size": 3},
    types={"T": _LONG},
)


@bifurcation_detector.infer
def _(
    g: Scope, source: Fact, current: Fact, at: Fact, predicted: Fact | None, **sizes: int
) -> tuple[Fact, Fact]:
    for tokens in (source, current, predicted):
        if tokens is not None and tokens.rank != 1:
            raise ShapeError(f"tokens have one dim, not {tokens}")
    if not 1 <= sizes["min_ngram_size"] <= sizes["max_ngram_size"]:
        raise InvalidGraph("min_ngram_size is 1 or more, and at most max_ngram_size")
    return Fact(I64, (g.fresh("tokens"),)), Fact(I64, ())


@bifurcation_detector.reference
def _(
    source: Array, current: Array, at: Array, predicted: Array | None, **sizes: int
) -> tuple[Array, Array]:
    tokens = current.tolist()
    words = source.tolist()
    if predicted is not None:
        begin = one_int(at, "prev_suffix_match_idx")
        if not 0 <= begin <= len(words) or len(predicted) != len(words) + 1 - begin:
            raise InvalidArgument(
                f"{len(predicted)} tokens are predicted from {begin} on, of {len(words)}: "
                "there is to be one for each that is left, and one more"
            )
        guesses = predicted.tolist()
        pairs = zip(guesses, words[begin:], strict=False)
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(words) - begin)
        tokens += guesses[: agreed + 1]
    made = _continued(words, tokens, sizes["min_ngram_size"], sizes["max_ngram_size"])
    return np.array(tokens, np.int64), np.array(made, np.int64)


def _continued(words: list[int], tokens: list[int], shortest: int, longest: int) -> int:
    """Where the words go on after the last tokens, if these are found there just once; else -1."""
    for size in range(shortest, min(longest, len(tokens)) + 1):
        tail = tokens[len(tokens) - size :]
        places = [i for i in range(len(words) - size + 1) if words[i : i + size] == tail]
        if not places:
            return -1
        if len(places) == 1 or places[0] + size >= len(words):
            return places[0] + size
    return -1


word_conv_embedding: Final = Op(
    "WordConvEmbedding",
    1,
    "Sequence:T W:T1 B:T1 C:T1",
    "Y:T1",
    domain=MICROSOFT,
    attrs={
        "embedding_size": optional("int"),
        "conv_window_size": optional("int"),
        "char_embedding_size": optional("int"),
    },
    types={"T": frozenset((I32,)), "T1": _FLOAT},
)


@word_conv_embedding.infer
def _(g: Scope, words: Fact, w: Fact, b: Fact, c: Fact, **sizes: int | None) -> Fact:
    if (words.rank, w.rank, b.rank, c.rank) != (2, 4, 1, 2):
        raise ShapeError(
            f"words, weights, bias and table have 2, 4, 1 and 2 dims, not {words}, {w}, {b}, {c}"
        )
    g.equal(w.dims[0], b.dims[0], "weights and bias differ in filters")
    g.equal(w.dims[1], 1, "weights have one channel")
    g.equal(w.dims[3], c.dims[1], "weights and table differ in the size of a character")
    for name, size in zip(("embedding_size", "conv_window_size", "char_embedding_size"),
                          (w.dims[0], w.dims[2], w.dims[3]), strict=True):  # fmt: skip
        given = sizes[name]
        if given is not None:
            g.equal(given, size, f"{name} is not that of the weights")
    return Fact(F32, (words.dims[0], w.dims[0]))


@word_conv_embedding.reference
def _(words: Array, w: Array, b: Array, c: Array, **_: Any) -> Array:
    filters, _one, window, size = w.shape
    wrong = words[(words < 0) | (words >= len(c))]
    if wrong.size:
        raise InvalidArgument(f"the character {int(wrong[0])} is outside [0, {len(c)})")
    if words.shape[1] < window:
        raise InvalidArgument(f"words of {words.shape[1]} characters, and windows of {window}")
    out = np.zeros((len(words), filters), np.float32)
    flat = w.reshape(filters, window * size)
    for row, word in zip(out, words, strict=True):
        length = int(np.argmax(word == 0)) if (word == 0).any() else len(word)
        if length == 0:
            continue  # no word
        spans = range(max(1, length - window + 1))
        seen = np.stack([c[word[i : i + window]].reshape(-1) for i in spans])
        row[:] = np.tanh(seen @ flat.T + b).max(0)
    return out


OPS: Final = (bifurcation_detector, ngram_repeat_block, word_conv_embedding)
