"""NGramRepeatBlock and BifurcationDetector (speculative decoding) of com.microsoft."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, required
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.generation.logits import repeated_ngram_tokens

_FLOAT: Final = frozenset((F32,))
_LONG: Final = frozenset((I64,))

ngram_repeat_block: Final = contrib_op(
    "NGramRepeatBlock",
    "input_ids:Tid scores:T",
    "scores_out:T",
    attrs={"ngram_size": required("int")},
    types={"Tid": _LONG, "T": _FLOAT},
)


@ngram_repeat_block.infer
def _(g: Scope, ids: Fact, scores: Fact, *, ngram_size: int) -> Fact:
    if ids.rank != 2 or scores.rank != 2:
        raise ShapeError(f"input_ids and scores must have two dims, got {ids} and {scores}")
    if ngram_size < 1:
        raise InvalidGraph(f"ngram_size must be at least 1, got {ngram_size}")
    g.equal(ids.dims[0], scores.dims[0], "input_ids and scores differ in batch")
    return scores.without_contents()


@ngram_repeat_block.reference
def _(ids: Array, scores: Array, *, ngram_size: int) -> Array:
    out = scores.copy()
    for row, sequence in zip(out, ids, strict=True):
        row[repeated_ngram_tokens(sequence, ngram_size, len(row))] = -np.inf
    return out


bifurcation_detector: Final = contrib_op(
    "BifurcationDetector",
    "src_tokens:T cur_tokens:T prev_suffix_match_idx:T pred_tokens:T?",
    "tokens:T suffix_match_idx:T",
    attrs={"min_ngram_size": 1, "max_ngram_size": 3},
    types={"T": _LONG},
)


@bifurcation_detector.infer
def _(
    g: Scope, source: Fact, current: Fact, at: Fact, predicted: Fact | None, **sizes: int
) -> tuple[Fact, Fact]:
    for tokens in (source, current, predicted):
        if tokens is not None and tokens.rank != 1:
            raise ShapeError(f"tokens must have one dim, got {tokens}")
    if not 1 <= sizes["min_ngram_size"] <= sizes["max_ngram_size"]:
        raise InvalidGraph("min_ngram_size must be at least 1 and at most max_ngram_size")
    return Fact(I64, (g.new_dim("tokens"),)), Fact(I64, ())


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
                "one for each remaining token and one more are needed"
            )
        guesses = predicted.tolist()
        pairs = zip(guesses, words[begin:], strict=False)
        # Accept the predicted tokens up to the first that differs from the source, and that one.
        n_agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(words) - begin)
        tokens += guesses[: n_agreed + 1]
    match_index = _suffix_match(words, tokens, sizes["min_ngram_size"], sizes["max_ngram_size"])
    return np.array(tokens, np.int64), np.array(match_index, np.int64)


def _suffix_match(words: list[int], tokens: list[int], shortest: int, longest: int) -> int:
    """Return the index after the only match of the last tokens in `words`, else -1."""
    # Longer n-grams only disambiguate shorter ones: no match of a short one means none at all.
    for size in range(shortest, min(longest, len(tokens)) + 1):
        tail = tokens[len(tokens) - size :]
        matches = [i for i in range(len(words) - size + 1) if words[i : i + size] == tail]
        if not matches:
            return -1
        if len(matches) == 1 or matches[0] + size >= len(words):
            return matches[0] + size
    return -1


OPS: Final = (bifurcation_detector, ngram_repeat_block)
