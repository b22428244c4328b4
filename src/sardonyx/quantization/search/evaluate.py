"""Comparison of a quantized model with the original: loss, error and speed."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.ort.options import SessionOptions
from sardonyx.quantization.search.layers import Layer
from sardonyx.quantization.search.metrics import Metric, MetricKind, Outputs, RelativeError
from sardonyx.quantization.search.samples import Feed, Part, Sample
from sardonyx.session import InferenceSession

_CACHED_BYTES: Final = 1 << 28  # of the original's outputs, which candidates are compared with
_MIN_ROUNDS: Final = 10
_MAX_ROUNDS: Final = 2000
_MIN_WHOLE: Final = 3  # calls that were not interrupted
_WARM_UP: Final = 2
_PROFILED: Final = 5  # runs
# What follows the names of nodes and values in names that quantization adds.
_MARKS: Final = ("_QuantizeLinear", "_DequantizeLinear", "_Q", "_quant", "_output_quantized")

Run = Callable[[], Any]


@frozen
class Loss:
    """The loss of a candidate on some samples."""

    loss: float  # by the metric
    error: float  # relative error of the outputs


@frozen
class RunTimes:
    """Seconds of a run of both models, measured in turn; of samples of several sizes, their sum."""

    original_s: float
    candidate_s: float
    is_busy: bool = False  # processor seconds, as no run was undisturbed by other processes
    lowest: float | None = None  # speedup, of the samples of several sizes

    @property
    def speedup(self) -> float:
        """How many times faster the candidate is."""
        return self.original_s / self.candidate_s if self.candidate_s else 0.0

    def is_enough(self, least: float) -> bool:
        """Return whether the candidate is so many times faster, and slower at no size."""
        slowest = self.speedup if self.lowest is None else self.lowest
        return self.speedup >= least and slowest >= min(least, 1.0)


Timer = Callable[[Run, Run, float], RunTimes]


def interleaved(original: Run, candidate: Run, seconds: float) -> RunTimes:
    """Return the minimum seconds of a call of each; the calls are interleaved.

    Calls count that the system did not interrupt to run other processes. On a machine so busy that
    it interrupts all of them, their processor seconds are compared: of elapsed times the longer one
    would contain more of the others' work, and the candidate would seem faster than it is.
    """
    calls, times = (original, candidate), (list[_Call](), list[_Call]())
    for call in calls * _WARM_UP:
        call()
    began = time.perf_counter()
    while len(times[0]) < _MAX_ROUNDS:
        for call, found in zip(calls, times, strict=True):
            found.append(_timed(call))
        if time.perf_counter() - began >= seconds and len(times[0]) >= _MIN_ROUNDS:
            break
    whole = [[c.seconds for c in found if not c.interruptions] for found in times]
    if all(len(found) >= _MIN_WHOLE for found in whole):
        return RunTimes(min(whole[0]), min(whole[1]))
    used = [min(c.processor_s for c in found) for found in times]
    return RunTimes(used[0], used[1], is_busy=True)


@frozen
class _Call:
    """The times of a call, and how often other processes ran instead of one of its threads."""

    seconds: float
    processor_s: float  # of all threads
    interruptions: int


def _timed(call: Run) -> _Call:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    used, began = time.process_time(), time.perf_counter()
    call()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return _Call(seconds, used, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before)


def session_options(threads: int) -> SessionOptions:
    """Return the options of all sessions of a search."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    return options


class Evaluator:
    """The original model, which candidates are compared with."""

    def __init__(self, model: Any, kind: MetricKind, threads: int, timer: Timer) -> None:
        self.threads = threads
        self._session = InferenceSession(model, session_options(threads))
        self._kind = kind
        self._timer = timer
        self._cached: dict[int, Outputs] = {}
        self._bytes = 0

    def own_loss(self, part: Part) -> float:
        """Return the loss of the original beside itself; raise if its outputs have NaN."""
        metric = self._kind.make()
        for index in part.indices:
            sample = part.samples[index]
            outputs = self._expected(index, sample)
            self._check_finite(outputs, part.samples.name(index))
            metric.add(outputs, outputs, sample)
        return metric.loss()

    def _check_finite(self, outputs: Outputs, where: str) -> None:
        names = (output.name for output in self._session.get_outputs())
        for name, array in zip(names, outputs, strict=True):
            if not _is_finite(array):
                raise InvalidArgument(
                    f"the model's output {name} has NaN or infinity for {where}",
                    hint="the samples may not be what the model expects",
                )

    def loss(self, candidate: InferenceSession, part: Part) -> Loss:
        """Return the loss of a candidate on some samples; infinite for outputs with NaN."""
        metric, error = self._kind.make(), RelativeError()
        if not self._compare(candidate, part, (metric, error)):
            return Loss(math.inf, math.inf)
        return Loss(_comparable(metric.loss()), error.loss())

    def error(self, candidate: InferenceSession, part: Part) -> float:
        """Return the relative error of a candidate alone; infinite for outputs with NaN."""
        metric = RelativeError()
        return metric.loss() if self._compare(candidate, part, (metric,)) else math.inf

    def _compare(self, candidate: InferenceSession, part: Part, metrics: Sequence[Metric]) -> bool:
        """Add samples to metrics; return False for outputs that no metric is asked about.

        Those have other shapes than the original's, or NaN or infinity where that has numbers:
        the largest score of a row of NaN is its first one, and may happen to be right.
        """
        for index in part.indices:
            sample = part.samples[index]
            expected = self._expected(index, sample)
            actual = candidate.run(None, sample.feed)
            if not all(_is_comparable(y, z) for y, z in zip(expected, actual, strict=True)):
                return False
            for metric in metrics:
                metric.add(expected, actual, sample)
        return True

    def _expected(self, index: int, sample: Sample) -> Outputs:
        """Return the outputs of the original, which are kept while they are small."""
        found = self._cached.get(index)
        if found is None:
            found = self._session.run(None, sample.feed)
            self._bytes += sum(getattr(array, "nbytes", 0) for array in found)
            if self._bytes <= _CACHED_BYTES:
                self._cached[index] = found
        return found

    def seconds(self, feed: Feed) -> float:
        """Return how long a run of the original takes, roughly."""
        self._session.run(None, feed)
        return _timed(lambda: self._session.run(None, feed)).seconds

    def speed(self, candidate: InferenceSession, feeds: Sequence[Feed], seconds: float) -> RunTimes:
        """Return the time of runs of both, measured in turn in this process."""
        found = [self._speed(candidate, feed, seconds / len(feeds)) for feed in feeds]
        if len(found) == 1:
            return found[0]
        original, quantized = sum(s.original_s for s in found), sum(s.candidate_s for s in found)
        lowest = min(s.speedup for s in found)
        return RunTimes(original, quantized, any(s.is_busy for s in found), lowest)

    def _speed(self, candidate: InferenceSession, feed: Feed, seconds: float) -> RunTimes:
        return self._timer(
            lambda: self._session.run(None, feed), lambda: candidate.run(None, feed), seconds
        )


def first_outputs(model: Any, part: Part, threads: int) -> Outputs:
    """Return the outputs of the first sample; an error names the sample that does not run."""
    session = InferenceSession(model, session_options(threads))
    try:
        outputs: Outputs = session.run(None, next(iter(part)).feed)
    except SardonyxError as error:
        raise error.add_context(sample="the first one") from None
    return outputs


def _is_finite(value: Any) -> bool:
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return not is_float or bool(np.isfinite(value).all())


def _is_comparable(expected: Any, actual: Any) -> bool:
    """Return whether an output has numbers wherever the original's has, and the same shape."""
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f":
        return True
    if expected.shape != actual.shape:
        return False
    return _is_finite(actual) or np.array_equal(np.isfinite(expected), np.isfinite(actual))


def _comparable(loss: float) -> float:
    """Return a loss; one that is not a number is infinite, as no limit is below it."""
    return math.inf if math.isnan(loss) else loss


def layer_seconds(
    model: Any, layers: Iterable[Layer], feed: Feed, threads: int
) -> dict[str, float]:
    """Return the seconds of each layer of a model in a run, by the layer's name.

    A fused step counts for the layer of its first node; steps of no layer are under "".
    """
    options = session_options(threads)
    options.enable_profiling, options.profile_file_prefix = True, os.devnull
    session = InferenceSession(model, options)
    profile = session._profile
    assert profile is not None
    owners = {name: layer.name for layer in layers for name in (*layer.nodes, *layer.values)}
    runs: list[dict[str, float]] = []
    for i in range(_PROFILED + 1):
        profile.events.clear()
        session.run(None, feed)
        if i:  # the first one binds sizes
            runs.append(_by_layer(profile.events, owners))
    names = {name for run in runs for name in run}
    return {name: min(run.get(name, 0.0) for run in runs) for name in names}


def _by_layer(events: Iterable[Any], owners: Mapping[str, str]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for event in events:
        if event.step is None:
            continue
        names = [n for node in event.step.nodes for n in (node.name, *_outputs(node))]
        owner = next((owners[n] for name in names for n in _originals(name) if n in owners), "")
        seconds[owner] = seconds.get(owner, 0.0) + event.end - event.begin
    return seconds


def _outputs(node: Any) -> list[str]:
    return [value.name for value in node.outputs]


def _originals(name: str) -> Iterable[str]:
    """Yield a name, and what it may have been before its node was quantized."""
    yield name
    for mark in _MARKS:
        before, found, _ = name.rpartition(mark)
        if found:
            yield before
