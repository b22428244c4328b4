"""One run of a model for the requests of a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.ort.options import RunOptions
from sardonyx.serve.batching.joining import BatchLayout
from sardonyx.serve.batching.pending import Pending
from sardonyx.serve.protocol.datatypes import Array
from sardonyx.serve.refusals import BadRequest, ModelFailed, Refusal
from sardonyx.session import InferenceSession


class BatchRun:
    """The requests that run together. `execute` is called once, on any thread."""

    __slots__ = (
        "_length",
        "elements",
        "members",
        "n_waiting",
        "options",
        "outcome",
        "rows",
        "seconds",
    )

    def __init__(self, members: Sequence[Pending], length: int, can_stop: bool) -> None:
        self.members = members
        self.rows = sum(each.rows for each in members)
        self.elements = self.rows * length
        self.n_waiting = len(members)
        # Without options a run takes the engine's fast path.
        self.options = RunOptions() if can_stop else None
        self.outcome: list[list[Array]] | Refusal | None = None
        self.seconds = 0.0
        self._length = length

    def leave(self) -> None:
        """Remove a cancelled request. If none is left, the run stops after its current step."""
        self.n_waiting -= 1
        if not self.n_waiting and self.options is not None:
            self.options.terminate = True

    def execute(self, session: InferenceSession, layout: BatchLayout | None) -> None:
        """Run the model, and store the outputs of each request, or the error."""
        members = self.members
        started = time.perf_counter()
        try:
            if layout is None or len(members) == 1:
                self.outcome = [_run(session, dict(members[0].feed), self.options)]
            else:
                feed = layout.join([each.feed for each in members], self._length)
                outputs = _run(session, feed, self.options)
                _check_rows(outputs, self.rows)
                rows, lengths = [m.rows for m in members], [m.length for m in members]
                self.outcome = layout.split(outputs, rows, lengths)
        except Refusal as error:
            self.outcome = error
        except InvalidArgument as error:
            self.outcome = BadRequest(error.what)
        except SardonyxError as error:
            self.outcome = ModelFailed(error.what)
        except Exception as error:
            self.outcome = ModelFailed(f"{type(error).__name__} while the model ran")
        self.seconds = time.perf_counter() - started


def _run(
    session: InferenceSession, feed: dict[str, Array], options: RunOptions | None
) -> list[Array]:
    results: list[Array] = session.run(None, feed, options)
    for result in results:
        if not isinstance(result, np.ndarray):
            raise ModelFailed("an output of this run is not a tensor")
    return results


def _check_rows(outputs: Sequence[Array], rows: int) -> None:
    """Raise an error if an output does not have one row per row of the inputs, as declared."""
    for output in outputs:
        if not output.shape or output.shape[0] != rows:
            raise ModelFailed("an output does not have one row per input row")
