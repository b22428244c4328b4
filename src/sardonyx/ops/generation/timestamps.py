"""Whisper's timestamp rules: which tokens may follow a sequence of text and timestamps."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.ops.arrays import Array

_LATEST_FIRST: Final = 50  # the first timestamp is at most this many steps after 0


@frozen
class TimestampRules:
    """Timestamps are the tokens from `first` on; the other numbers are of special tokens."""

    first: int
    eos: int
    never: tuple[int, ...]  # tokens that are never written
    early: tuple[int, ...]  # tokens that are not written after the first timestamp

    def apply(self, scores: Array, sequences: Array, blocked: np.float32) -> None:
        """Mask the logits of tokens that may not follow each row's sequence."""
        if not 0 < self.first < scores.shape[1]:
            raise InvalidGraph(
                f"beginning_timestamp_token_id is {self.first}, not a token of the "
                f"{scores.shape[1]} after the first"
            )
        for row, sequence in zip(scores, sequences.tolist(), strict=True):
            self._block(row, sequence, blocked)
            self._prefer_timestamps(row, blocked)

    def _block(self, row: Array, sequence: list[int], blocked: np.float32) -> None:
        is_time = [token >= self.first for token in sequence]
        begin = is_time.index(True) + 1 if any(is_time) else len(sequence)
        has_more = len(sequence) > begin
        for token in (*self.never, *(self.early if has_more else ())):
            if 0 <= token < len(row):
                row[token] = blocked
        # Timestamps come in pairs, but for the first one.
        is_closed = not has_more or is_time[-2]
        is_last = bool(is_time) and is_time[-1]
        if is_last and is_closed:
            row[self.first :] = blocked
        elif is_last:
            row[: self.eos] = blocked
        if any(is_time):
            latest = max(i for i, found in enumerate(is_time) if found)
            bound = sequence[latest] + (0 if is_last and not is_closed else 1)
            row[self.first : bound] = blocked
        if not has_more:
            row[self.first + _LATEST_FIRST + 1 :] = blocked

    def _prefer_timestamps(self, row: Array, blocked: np.float32) -> None:
        """Mask text if the total probability of timestamps exceeds that of every text token."""
        times, text = row[self.first :], row[: self.first]
        times = times[times > blocked]
        if times.size:
            top = times.max()
            total = top + np.log(np.exp(times - top).sum(dtype=np.float32))
            if total > text.max():
                text[:] = blocked
