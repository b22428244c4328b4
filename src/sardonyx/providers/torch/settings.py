"""What torch knows for the whole process, and runs of sessions want each in their own way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import torch

State = tuple[bool, bool, bool]


class Settings:
    """Whether float32 products and convolutions may round, and whether cuDNN searches.

    Runs that want the same go side by side; others wait until these are over. What was set before
    the first of them is there again after the last.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_running = 0
        self._n_waiting = 0
        self._now: State = _state()
        self._before: State = self._now

    @contextlib.contextmanager
    def held(self, allows_tf32: bool, searches: bool) -> Iterator[None]:
        """Within this, torch has these settings: TF32, and a search of cuDNN for new sizes."""
        self._enter((allows_tf32, allows_tf32, searches))
        try:
            yield
        finally:
            with self._changed:
                self._n_running -= 1
                if not self._n_running:
                    _change(self._now, self._before)
                    self._changed.notify_all()

    def _enter(self, wanted: State) -> None:
        with self._changed:
            # Nobody overtakes those who wait: many threads on one session never end all at once.
            while self._n_running and (self._now != wanted or self._n_waiting):
                self._n_waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._n_waiting -= 1
            if not self._n_running:
                self._before, self._now = _state(), wanted
                _change(self._before, wanted)
            self._n_running += 1


def _state() -> State:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    return products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark


def _change(now: State, then: State) -> None:
    if now != then:
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = then


SETTINGS: Final = Settings()
