"""Decoding loops: token by token (greedy or sampled), and beam search."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from sardonyx.base.records import field, frozen, mutable
from sardonyx.ops.arrays import Array
from sardonyx.ops.generation.decoders import Decoder
from sardonyx.ops.generation.logits import LogitsProcessor

Choose = Callable[[Array], Array]  # scores of rows -> a token for each


@frozen
class SequenceLimits:
    """The maximum length, and the pad and end-of-sequence tokens."""

    max_length: int
    pad: int
    eos: int


def decode_greedily(
    decoder: Decoder,
    prompts: Array,
    processor: LogitsProcessor,
    limits: SequenceLimits,
    choose: Choose,
) -> tuple[Array, Array | None]:
    """Return sequences decoded token by token, and the scores of the last step."""
    rows, length = prompts.shape
    sequences = np.full((rows, limits.max_length), limits.pad, np.int32)
    sequences[:, :length] = prompts
    has_ended = np.zeros(rows, bool)
    scores: Array | None = None
    begin = length
    while length < limits.max_length:
        raw = decoder.first(1) if length == begin else decoder.next(sequences[:, length - 1])
        scores = processor.apply(raw, sequences[:, :length], length == begin)
        tokens = choose(scores)
        has_ended |= tokens == limits.eos
        sequences[:, length] = np.where(has_ended, limits.pad, tokens)
        length += 1
        if has_ended.all():
            break
    return sequences, scores


@mutable
class FinishedBeams:
    """The best finished sequences of one prompt."""

    count: int
    penalty: float
    stops_early: bool
    heap: list[tuple[np.float32, int, Array]] = field(default_factory=list)  # a heap, worst first
    n_added: int = 0
    is_done: bool = False

    def add(self, tokens: Array, total: np.float32) -> None:
        """Add a sequence with the score total / length^penalty, if it is among the best."""
        score = np.float32(total / np.float32(len(tokens)) ** np.float32(self.penalty))
        if len(self.heap) < self.count or score > self.heap[0][0]:
            # Among equals the later one is evicted first.
            self.n_added += 1
            heapq.heappush(self.heap, (score, -self.n_added, tokens.copy()))
            if len(self.heap) > self.count:
                heapq.heappop(self.heap)

    def settle(self, best: np.float32, length: int) -> None:
        """End the search for this prompt if no open beam can still enter the best."""
        if self.is_done or len(self.heap) < self.count:
            return
        # The score that the best open beam would have if it ended now; longer sums only fall.
        reachable = best / np.float32(length) ** np.float32(self.penalty)
        self.is_done = self.stops_early or bool(self.heap[0][0] >= reachable)


@frozen
class BeamSettings:
    """The number of beams and of returned sequences, and their scoring."""

    count: int
    returned: int
    penalty: float
    stops_early: bool


def decode_beams(
    decoder: Decoder,
    prompts: Array,
    processor: LogitsProcessor,
    limits: SequenceLimits,
    beams: BeamSettings,
) -> tuple[Array, Array, Array]:
    """Return the best sequences by prompt, their scores, and all token scores of every step."""
    n, (batch, begin) = beams.count, prompts.shape
    sequences = np.repeat(prompts, n, 0)
    # Only the first beam of a prompt is active at first: all beams are equal then.
    totals = np.tile(np.array([0, *[-1e9] * (n - 1)], np.float32), batch)
    finished = [FinishedBeams(n, beams.penalty, beams.stops_early) for _ in range(batch)]
    step_scores = np.zeros((limits.max_length - begin, batch, n, 0), np.float32)
    length = begin
    while length < limits.max_length:
        raw = decoder.first(n) if length == begin else decoder.next(sequences[:, -1])
        with np.errstate(over="ignore"):  # scores of forbidden tokens may overflow
            scores = processor.apply(_log_softmax(raw), sequences, length == begin)
            scores = scores + totals[:, None]
        if length == begin:
            step_scores = np.zeros((*step_scores.shape[:3], scores.shape[1]), np.float32)
        step_scores[length - begin] = scores.reshape(step_scores.shape[1:])
        rows, tokens, totals = _advance(scores, sequences, finished, limits)
        sequences = np.concatenate([sequences[rows], tokens[:, None]], 1)
        length += 1
        if all(f.is_done for f in finished):
            break
        if length < limits.max_length:
            decoder.reorder(rows)
    for i, row in enumerate(sequences):
        if not finished[i // n].is_done:
            finished[i // n].add(row, totals[i])
    return *_best(finished, beams, limits), step_scores


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _advance(
    scores: Array, sequences: Array, finished: list[FinishedBeams], limits: SequenceLimits
) -> tuple[Array, Array, Array]:
    """Return the rows that continue, the token of each, and its total score.

    Of the 2n best candidates of a prompt, at most n end; so n that continue always remain.
    """
    batch, n_tokens = len(finished), scores.shape[1]
    n = len(scores) // batch
    rows = np.zeros(len(scores), np.int64)
    tokens = np.full(len(scores), limits.pad, np.int32)
    totals = np.zeros(len(scores), np.float32)
    for b, ended in enumerate(finished):
        if ended.is_done:
            continue
        flat = scores[b * n : (b + 1) * n].reshape(-1)
        order = np.argsort(-flat, kind="stable")[: 2 * n]
        at = b * n
        for rank, index in enumerate(order.tolist()):
            row, token = b * n + index // n_tokens, index % n_tokens
            if token == limits.eos:
                if rank < n:
                    ended.add(sequences[row], flat[index])
                continue
            rows[at], tokens[at], totals[at] = row, token, flat[index]
            at += 1
            if at == (b + 1) * n:
                break
        ended.settle(flat[order[0]], sequences.shape[1])
    return rows, tokens, totals


def _best(
    finished: list[FinishedBeams], beams: BeamSettings, limits: SequenceLimits
) -> tuple[Array, Array]:
    """Return the best sequences first, padded to the maximum length, and their scores."""
    batch = len(finished)
    sequences = np.full((batch, beams.returned, limits.max_length), limits.pad, np.int32)
    scores = np.zeros((batch, beams.returned), np.float32)
    for b, ended in enumerate(finished):
        ranked = sorted(ended.heap, key=lambda k: -k[0])[: beams.returned]
        for i, (score, _, tokens) in enumerate(ranked):
            sequences[b, i, : len(tokens)] = tokens
            scores[b, i] = score
    return sequences, scores
