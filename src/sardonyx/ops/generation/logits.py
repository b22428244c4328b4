"""What changes scores before a token is chosen: penalties, masks, lengths, nuclei."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array

SHUT: Final = np.finfo(np.float32).min  # the score of a token that must not come


@frozen
class Rules:
    """How scores are changed; `prompts` counts the rows that masks of first tokens are for."""

    eos: int
    min_length: int = 0
    repetition: float = 1.0
    ngram: int = 0
    vocabulary: Array | None = None  # 0 where a token may never come
    first: Array | None = None  # 0 where it may not come first, by prompt
    temperature: float = 1.0
    presence: float = 0.0
    present: Array | None = None  # 1 where a token is penalized, by prompt

    def apply(self, scores: Array, sequences: Array, is_first: bool) -> Array:
        """The scores of each row's next token, given what the row holds so far."""
        scores = scores.copy()
        n_tokens = scores.shape[1]
        if self.repetition != 1.0:
            _penalize(scores, sequences, np.float32(self.repetition))
        if self.ngram > 0:
            for row, sequence in zip(scores, sequences, strict=True):
                row[repeating(sequence, self.ngram, n_tokens)] = SHUT
        if self.vocabulary is not None:
            _check_mask("vocab_mask", self.vocabulary.shape[-1], n_tokens)
            scores[:, self.vocabulary.reshape(-1) == 0] = SHUT
        if self.first is not None and is_first:
            _check_mask("prefix_vocab_mask", self.first.shape[-1], n_tokens)
            scores[_spread(self.first, scores) == 0] = SHUT
        if sequences.shape[1] < self.min_length and 0 <= self.eos < n_tokens:
            scores[:, self.eos] = SHUT
        if self.temperature != 1.0:
            with np.errstate(over="ignore"):  # of tokens that are shut out
                scores /= np.float32(self.temperature)
        if self.present is not None:
            scores -= _spread(self.present, scores).astype(np.float32) * np.float32(self.presence)
        return scores


def _check_mask(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise InvalidArgument(f"{name} is for {given} tokens, and the decoder knows {wanted}")


def _spread(by_prompt: Array, rows: Array) -> Array:
    """Rows by prompt as rows by sequence."""
    if by_prompt.ndim != 2 or not len(by_prompt) or len(rows) % len(by_prompt):
        raise InvalidArgument(
            f"a mask by prompt is of shape {list(by_prompt.shape)}, for {len(rows)} sequences"
        )
    return np.repeat(by_prompt, len(rows) // len(by_prompt), 0)


def _penalize(scores: Array, sequences: Array, penalty: np.float32) -> None:
    """Makes tokens that a row holds already less likely."""
    for row, sequence in zip(scores, sequences, strict=True):
        seen = np.unique(sequence[(sequence >= 0) & (sequence < len(row))])
        row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)


def repeating(sequence: Array, size: int, n_tokens: int) -> list[int]:
    """Tokens that would end a run of `size` tokens that the sequence holds already."""
    tokens = sequence.tolist()
    if len(tokens) < size:
        return []
    tail = tokens[len(tokens) - size + 1 :]
    found = {
        tokens[i + size - 1]
        for i in range(len(tokens) - size + 1)
        if tokens[i : i + size - 1] == tail
    }
    for token in found:
        if not 0 <= token < n_tokens:
            raise InvalidArgument(f"the token {token} is outside [0, {n_tokens})")
    return sorted(found)


def nucleus(scores: Array, top_p: float, fill: float, at_least: int) -> Array:
    """Scores with `fill` for all but the likeliest tokens that together have probability top_p."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, 1)
    shares = np.exp(ranked - ranked[:, :1])
    before = np.cumsum(shares / shares.sum(1, keepdims=True), 1) - shares / shares.sum(
        1, keepdims=True
    )
    drop = before >= np.float32(top_p)
    drop[:, : max(1, at_least)] = False
    kept = scores.copy()
    np.put_along_axis(kept, order, np.where(drop, np.float32(fill), ranked), 1)
    return kept
