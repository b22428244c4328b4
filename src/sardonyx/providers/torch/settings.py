"""Process-wide settings of torch (TF32, cuDNN search) that sessions set differently."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import torch

State = tuple[bool, bool, bool]  # TF32 of matmuls, TF32 of convolutions, cuDNN benchmark


class ProcessSettings:
    """Shares the settings between runs: like a read-write lock, with one group per state.

    Runs with equal settings are concurrent; others wait until these have ended. The settings from
    before the first run are restored after the last.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_running = 0
        self._n_waiting = 0
        self._current: State = _state()
        self._saved: State = self._current

    @contextlib.contextmanager
    def applied(self, allows_tf32: bool, searches: bool) -> Iterator[None]:
        """Run a block with these settings: TF32, and cuDNN's search of algorithms for new sizes."""
        self._enter((allows_tf32, allows_tf32, searches))
        try:
            yield
        finally:
            with self._changed:
                self._n_running -= 1
                if not self._n_running:
                    _change(self._current, self._saved)
                    self._changed.notify_all()

    def _enter(self, requested: State) -> None:
        with self._changed:
            # First come, first served: else many threads of one session could starve another.
            while self._n_running and (self._current != requested or self._n_waiting):
                self._n_waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._n_waiting -= 1
            if not self._n_running:
                self._saved, self._current = _state(), requested
                _change(self._saved, requested)
            self._n_running += 1


def _state() -> State:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark


def _change(old: State, new: State) -> None:
    if old != new:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = new


SETTINGS: Final = ProcessSettings()
