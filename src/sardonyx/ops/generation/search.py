"""Ways to choose tokens: the best of each step, one drawn, or several beams at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from sardonyx.base.records import field, frozen, mutable
from sardonyx.ops.arrays import Array
from sardonyx.ops.generation.decoders import Decoder
from sardonyx.ops.generation.logits import Rules

Choose = Callable[[Array], Array]  # scores of rows -> a token for each


@frozen
class Limits:
    """When sequences end, and what they are filled with."""

    max_length: int
    pad: int
    eos: int


def one_by_one(
    decoder: Decoder, prompts: Array, rules: Rules, limits: Limits, choose: Choose
) -> tuple[Array, Array | None]:
    """Sequences of one token after the other, and the scores that the last was chosen by."""
    rows, length = prompts.shape
    sequences = np.full((rows, limits.max_length), limits.pad, np.int32)
    sequences[:, :length] = prompts
    has_ended = np.zeros(rows, bool)
    scores: Array | None = None
    begin = length
    while length < limits.max_length:
        raw = decoder.first(1) if length == begin else decoder.next(sequences[:, length - 1])
        scores = rules.apply(raw, sequences[:, :length], length == begin)
        tokens = choose(scores)
        has_ended |= tokens == limits.eos
        sequences[:, length] = np.where(has_ended, limits.pad, tokens)
        length += 1
        if has_ended.all():
            break
    return sequences, scores


@mutable
class Finished:
    """The best sequences of one prompt that have ended."""

    count: int
    penalty: float
    stops_early: bool
    kept: list[tuple[np.float32, int, Array]] = field(default_factory=list)  # a heap, worst first
    added: int = 0
    is_done: bool = False

    def add(self, tokens: Array, total: np.float32) -> None:
        """Takes in a sequence, by its score for each of its tokens."""
        score = np.float32(total / np.float32(len(tokens)) ** np.float32(self.penalty))
        if len(self.kept) < self.count or score > self.kept[0][0]:
            # Among equals the one that came later goes first.
            self.added += 1
            heapq.heappush(self.kept, (score, -self.added, tokens.copy()))
            if len(self.kept) > self.count:
                heapq.heappop(self.kept)

    def settle(self, best: np.float32, length: int) -> None:
        """Ends the search for this prompt if no beam can come to be among the best."""
        if self.is_done or len(self.kept) < self.count:
            return
        reachable = best / np.float32(length) ** np.float32(self.penalty)
        self.is_done = self.stops_early or bool(self.kept[0][0] >= reachable)


@frozen
class Beams:
    """How many, and how they are judged."""

    count: int
    returned: int
    penalty: float
    stops_early: bool


def by_beams(
    decoder: Decoder, prompts: Array, rules: Rules, limits: Limits, beams: Beams
) -> tuple[Array, Array, Array]:
    """The best sequences by prompt, their scores, and those of every token in every step."""
    n, (batch, begin) = beams.count, prompts.shape
    sequences = np.repeat(prompts, n, 0)
    totals = np.tile(np.array([0, *[-1e9] * (n - 1)], np.float32), batch)
    finished = [Finished(n, beams.penalty, beams.stops_early) for _ in range(batch)]
    shown = np.zeros((limits.max_length - begin, batch, n, 0), np.float32)
    length = begin
    while length < limits.max_length:
        raw = decoder.first(n) if length == begin else decoder.next(sequences[:, -1])
        with np.errstate(over="ignore"):  # of tokens that are shut out
            scores = rules.apply(_log_softmax(raw), sequences, length == begin) + totals[:, None]
        if length == begin:
            shown = np.zeros((*shown.shape[:3], scores.shape[1]), np.float32)
        shown[length - begin] = scores.reshape(shown.shape[1:])
        rows, tokens, totals = _chosen(scores, sequences, finished, limits)
        sequences = np.concatenate([sequences[rows], tokens[:, None]], 1)
        length += 1
        if all(f.is_done for f in finished):
            break
        if length < limits.max_length:
            decoder.reorder(rows)
    for i, row in enumerate(sequences):
        if not finished[i // n].is_done:
            finished[i // n].add(row, totals[i])
    return *_best(finished, beams, limits), shown


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(1, keepdims=True)
    made: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return made


def _chosen(
    scores: Array, sequences: Array, finished: list[Finished], limits: Limits
) -> tuple[Array, Array, Array]:
    """The rows that go on, the token that each gets, and its score so far."""
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
        for rank, place in enumerate(order.tolist()):
            row, token = b * n + place // n_tokens, place % n_tokens
            if token == limits.eos:
                if rank < n:
                    ended.add(sequences[row], flat[place])
                continue
            rows[at], tokens[at], totals[at] = row, token, flat[place]
            at += 1
            if at == (b + 1) * n:
                break
        ended.settle(flat[order[0]], sequences.shape[1])
    return rows, tokens, totals


def _best(finished: list[Finished], beams: Beams, limits: Limits) -> tuple[Array, Array]:
    """The sequences to return, the best first, filled up to the greatest length."""
    batch = len(finished)
    found = np.full((batch, beams.returned, limits.max_length), limits.pad, np.int32)
    judged = np.zeros((batch, beams.returned), np.float32)
    for b, ended in enumerate(finished):
        ranked = sorted(ended.kept, key=lambda k: -k[0])[: beams.returned]
        for i, (score, _, tokens) in enumerate(ranked):
            found[b, i, : len(tokens)] = tokens
            judged[b, i] = score
    return found, judged
