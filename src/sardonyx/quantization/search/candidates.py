"""Candidate models: written to the work folder, opened as sessions, and published at the end."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Sequence
from typing import Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.errors import Fail, SardonyxError
from sardonyx.quantization.document import ModelDoc, save_document
from sardonyx.quantization.search.evaluate import Evaluator, RunTimes, session_options
from sardonyx.quantization.search.journal import Journal
from sardonyx.quantization.search.outcome import SearchOptions, Trial
from sardonyx.quantization.search.samples import Feed, Part
from sardonyx.session import InferenceSession

_RETRIES: Final = 2  # timings of a candidate that is barely too slow
_CLOSE: Final = 0.8  # of the speedup that is asked
CANDIDATE_ERRORS: Final = (
    SardonyxError,
    ValueError,
)  # raised by quantizers and by models they make


@frozen
class Candidate:
    """A model in a file, and its session."""

    path: str
    session: InferenceSession
    n_bytes: int


class Candidates:
    """Makes candidates for one output; each replaces the file of the one before it."""

    def __init__(
        self, output: str, journal: Journal, evaluator: Evaluator, options: SearchOptions
    ) -> None:
        self.output = output
        self.journal = journal
        self.evaluator = evaluator
        self.options = options
        self._folder = journal.path("candidate")
        os.makedirs(self._folder, exist_ok=True)
        self.path = os.path.join(self._folder, os.path.basename(output))

    def of_document(self, document: ModelDoc) -> Candidate:
        """Write a document, whose weights are computed as they are written, and open it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}.data")  # of a candidate that had some
        save_document(document, self.path)
        return self.opened()

    def opened(self) -> Candidate:
        """Return the candidate that was written to `path`."""
        session = InferenceSession(self.path, session_options(self.options.threads))
        n_bytes = sum(os.path.getsize(p) for p in self._files())
        return Candidate(self.path, session, n_bytes)

    def _files(self) -> list[str]:
        return [p for p in (self.path, f"{self.path}.data") if os.path.exists(p)]

    def speed(self, candidate: Candidate, feeds: Sequence[Feed]) -> RunTimes:
        """Return the run times of both; a candidate that is barely too slow is measured again.

        Load from other processes adds noise but no bias to the ratio, so the last figure counts.
        """
        least, seconds = self.options.resolved_min_speedup, self.options.seconds
        speed = self.evaluator.speed(candidate.session, feeds, seconds)
        for _ in range(_RETRIES):
            if speed.is_enough(least) or speed.speedup < _CLOSE * least:
                break
            seconds *= 2
            speed = self.evaluator.speed(candidate.session, feeds, seconds)
        return speed

    def checked(
        self, trial: Trial, candidate: Candidate, part: Part, feeds: Sequence[Feed]
    ) -> Trial:
        """Measure a candidate, on samples that no search has used; return the filled trial."""
        try:
            losses = self.evaluator.loss(candidate.session, part)
            trial.loss, trial.error = losses.loss, losses.error
            trial.speed = self.speed(candidate, feeds)
        except CANDIDATE_ERRORS as error:
            trial.loss = trial.error = math.inf
            build_error(error)
        trial.n_bytes = candidate.n_bytes
        return trial

    def publish(self) -> None:
        """Move the candidate to the output: the very files that were measured.

        A model is never beside the data of another one, not even if this is interrupted.
        """
        data, stored = f"{self.path}.data", f"{self.output}.data"
        try:
            if os.path.exists(data):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.output)
                _move(data, stored)
            _move(self.path, self.output)
        except OSError as error:
            raise Fail(
                f"the model could not be written to {self.output}: {error.strerror or error}",
                hint="choose another output; the same command continues from here",
            ) from error


def build_error(error: Exception) -> str:
    """Return why a candidate cannot be built or run; raise if no other one could be either."""
    if isinstance(error.__cause__, OSError):  # such as a full disk
        raise error
    what = error.what if isinstance(error, SardonyxError) else str(error)
    return f"cannot be made: {what}".splitlines()[0]


def _move(source: str, target: str) -> None:
    """Move a file, atomically on its own file system, else by an atomic write."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with open(source, "rb") as read, writing(target) as file:
            shutil.copyfileobj(read, file)
