"""Logits processing before a token is chosen: penalties, masks, minimum length, top-p."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array
from sardonyx.ops.generation.timestamps import TimestampRules

BLOCKED_SCORE: Final = np.finfo(np.float32).min  # the score of a forbidden token


@frozen
class LogitsProcessor:
    """The settings by which the logits of next tokens are modified."""

    eos: int
    min_length: int = 0
    repetition: float = 1.0
    ngram: int = 0
    vocabulary: Array | None = None  # 0 for a forbidden token
    first: Array | None = None  # by prompt: 0 for a token that is forbidden at first
    temperature: float = 1.0
    presence: float = 0.0
    present: Array | None = None  # by prompt: 1 for a token that is penalized
    timestamps: TimestampRules | None = None

    def apply(self, scores: Array, sequences: Array, is_first: bool) -> Array:
        """Return the modified scores of each row's next token after its sequence so far."""
        scores = scores.copy()
        n_tokens = scores.shape[1]
        if self.repetition != 1.0:
            _penalize(scores, sequences, np.float32(self.repetition))
        if self.ngram > 0:
            for row, sequence in zip(scores, sequences, strict=True):
                row[repeated_ngram_tokens(sequence, self.ngram, n_tokens)] = BLOCKED_SCORE
        if self.vocabulary is not None:
            _check_mask("vocab_mask", self.vocabulary.shape[-1], n_tokens)
            scores[:, self.vocabulary.reshape(-1) == 0] = BLOCKED_SCORE
        if self.first is not None and is_first:
            _check_mask("prefix_vocab_mask", self.first.shape[-1], n_tokens)
            scores[_per_sequence(self.first, scores) == 0] = BLOCKED_SCORE
        if sequences.shape[1] < self.min_length and 0 <= self.eos < n_tokens:
            scores[:, self.eos] = BLOCKED_SCORE
        if self.temperature != 1.0:
            with np.errstate(over="ignore"):  # scores of forbidden tokens may overflow
                scores /= np.float32(self.temperature)
        if self.present is not None:
            present = _per_sequence(self.present, scores).astype(np.float32)
            scores -= present * np.float32(self.presence)
        if self.timestamps is not None:
            self.timestamps.apply(scores, sequences, np.float32(BLOCKED_SCORE))
        return scores


def _check_mask(name: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise InvalidArgument(f"{name} is for {actual} tokens, and the decoder has {expected}")


def _per_sequence(by_prompt: Array, rows: Array) -> Array:
    """Repeat the rows of prompts for their sequences."""
    if by_prompt.ndim != 2 or not len(by_prompt) or len(rows) % len(by_prompt):
        raise InvalidArgument(
            f"a mask by prompt is of shape {list(by_prompt.shape)}, for {len(rows)} sequences"
        )
    return np.repeat(by_prompt, len(rows) // len(by_prompt), 0)


def _penalize(scores: Array, sequences: Array, penalty: np.float32) -> None:
    """Apply the repetition penalty (CTRL): divide positive and multiply negative scores."""
    for row, sequence in zip(scores, sequences, strict=True):
        present = np.unique(sequence[(sequence >= 0) & (sequence < len(row))])
        row[present] = np.where(row[present] < 0, row[present] * penalty, row[present] / penalty)


def repeated_ngram_tokens(sequence: Array, size: int, n_tokens: int) -> list[int]:
    """Return the tokens that would complete an n-gram that the sequence already contains."""
    tokens = sequence.tolist()
    if len(tokens) < size:
        return []
    tail, starts = tokens[len(tokens) - size + 1 :], range(len(tokens) - size + 1)
    tokens_found = {tokens[i + size - 1] for i in starts if tokens[i : i + size - 1] == tail}
    for token in tokens_found:
        if not 0 <= token < n_tokens:
            raise InvalidArgument(f"the token {token} is outside [0, {n_tokens})")
    return sorted(tokens_found)


def nucleus(scores: Array, top_p: float, fill: float, at_least: int) -> Array:
    """Nucleus (top-p) filtering: set all but the likeliest tokens, of mass top_p, to `fill`."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, 1)
    shares = np.exp(ranked - ranked[:, :1])
    shares = shares / shares.sum(1, keepdims=True)
    preceding = np.cumsum(shares, 1) - shares
    drop = preceding >= np.float32(top_p)
    drop[:, : max(1, at_least)] = False
    filtered = scores.copy()
    np.put_along_axis(filtered, order, np.where(drop, np.float32(fill), ranked), 1)
    return filtered
