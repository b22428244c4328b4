"""What a search found: the quantized model, or why there is none, and how each layer fared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from sardonyx.base.records import as_dict, field, frozen, mutable
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.quantization.search.evaluate import RunTimes, Timer, interleaved
from sardonyx.quantization.search.metrics import AUTO

GOALS: Final = ("speed", "accuracy", "size")
FLOAT: Final = "float"  # the choice for a layer that is not quantized
_SPEEDUPS: Final = {"speed": 1.5, "accuracy": 1.5, "size": 1.0}  # that a goal asks for by default
NOT_COMPARABLE: Final = "its outputs have NaN, infinity or another shape"
CHECKED: Final = "checked on samples that were held out"
LOSES_TOO_MUCH: Final = "loses too much on samples that were held out"
_MARGIN: Final = 0.9  # of max_loss, on the samples that the search sees


@frozen
class SearchOptions:
    """What is asked of the quantized model, and how the search measures."""

    max_loss: float = 0.005
    metric: str | Callable[..., float] = AUTO
    goal: str = GOALS[0]
    min_speedup: float | None = None
    bits: tuple[int, ...] = (4, 8)  # of weights, for the goal size
    label: str | None = None
    batch: int | None = None
    work: str | None = None
    threads: int = 0
    seconds: float = 2.0
    timer: Timer = interleaved

    def __post_init__(self) -> None:
        """Check the values."""
        if self.goal not in GOALS:
            raise InvalidArgument(
                f"the goal must be {', '.join(GOALS[:-1])} or {GOALS[-1]}, got {self.goal!r}"
            )
        if not self.max_loss >= 0:
            raise InvalidArgument(f"max_loss must be at least 0, got {self.max_loss}")
        if self.min_speedup is not None and not 0 <= self.min_speedup < math.inf:
            raise InvalidArgument(f"min_speedup must be at least 0, got {self.min_speedup}")
        if self.batch is not None and self.batch < 1:
            raise InvalidArgument(f"batch must be at least 1, got {self.batch}")
        if not self.bits or not set(self.bits) <= {2, 3, 4, 8}:
            raise InvalidArgument(f"bits must be 2, 3, 4 or 8, got {self.bits}")

    @property
    def resolved_min_speedup(self) -> float:
        """How many times faster than the original the result must be; the goal has a default."""
        return _SPEEDUPS[self.goal] if self.min_speedup is None else self.min_speedup

    @property
    def searched_loss(self) -> float:
        """The loss that the search aims at, somewhat lower than what is asked."""
        return self.max_loss * _MARGIN


@frozen
class LayerResult:
    """A layer: what it loses alone, its size and time before and after, and the choice."""

    name: str
    op: str
    choice: str
    why: str
    error: float | None  # of the outputs, if this layer alone is quantized
    n_measured: int  # layers that were measured together with it, itself included
    bytes_before: int
    bytes_after: int
    seconds_before: float
    seconds_after: float


@mutable
class Trial:
    """A model that was tried."""

    what: str
    n_float: int  # layers that stay in floats
    error: float | None = None
    loss: float | None = None  # on the samples that calibrate
    speed: RunTimes | None = None
    n_bytes: int = 0
    verdict: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times faster than the original it is."""
        return None if self.speed is None else self.speed.speedup

    def is_fast(self, least: float) -> bool:
        """Return whether it was timed, and is so many times faster."""
        return self.speed is not None and self.speed.is_enough(least)


@mutable
class Outcome:
    """The result of a search."""

    model: str
    metric: str
    metric_text: str
    goal: str
    max_loss: float
    min_speedup: float
    n_calibrating: int
    n_held_out: int
    bytes_before: int
    output: str | None = None
    what: str = ""
    loss: float | None = None  # on the samples that were held out
    error: float | None = None
    speed: RunTimes | None = None
    bytes_after: int = 0
    layers: list[LayerResult] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    refusal: str = ""
    seconds: float = 0.0
    n_resumed: int = 0

    def choose(self, trial: Trial) -> None:
        """Take a model that was checked as the result."""
        n_before = sum(t.verdict == LOSES_TOO_MUCH for t in self.trials)
        trial.verdict = f"chosen: {CHECKED}"
        self.what, self.bytes_after = trial.what, trial.n_bytes
        self.loss, self.error, self.speed = trial.loss, trial.error, trial.speed
        if n_before:
            self.remarks.append(
                f"{n_before} of the models that were {CHECKED} lost too much there: the loss of "
                "the one that was chosen after them may be higher on other samples"
            )

    def facts(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return {
            **_facts(self),
            "speed": _speed(self.speed),
            "layers": [_facts(layer) for layer in self.layers],
            "trials": [{**_facts(t), "speed": _speed(t.speed)} for t in self.trials],
        }


class QuantizationRefused(Fail):
    """No model is as accurate and as fast as asked; `outcome` has what was tried."""

    outcome: Outcome


def refused(outcome: Outcome) -> QuantizationRefused:
    """Return the error for an outcome without a model."""
    error = QuantizationRefused(outcome.refusal, hint=_advice(outcome))
    error.outcome = outcome
    return error


def _advice(outcome: Outcome) -> str:
    tried = [t for t in outcome.trials if t.loss is not None and t.speed is not None]
    if not tried:
        return "see the table of what was tried"
    close = [t for t in tried if (t.loss or 0) <= outcome.max_loss]
    fast = [t for t in tried if t not in close and t.is_fast(outcome.min_speedup)]
    if fast := [t for t in fast if math.isfinite(t.loss or 0)]:
        best = min(fast, key=lambda t: t.loss or 0)
        return (
            f"a higher --max-loss gets one: {best.loss:.2%} are lost at {best.speedup:.2f}x; "
            "more samples, or more varied ones, may help too"
        )
    if close:
        quickest = max(close, key=lambda t: t.speedup or 0)
        if not quickest.is_fast(outcome.min_speedup):
            return f"a lower --min-speedup gets one: the fastest has {quickest.speedup:.2f}x"
    return "a higher --max-loss and a lower --min-speedup may get one"


def percent(share: float | None, digits: int = 3) -> str:
    """Return a loss or an error for people; of outputs with NaN it is infinite."""
    if share is None:
        return ""
    return f"{share:.{digits}%}" if math.isfinite(share) else "infinite"


def _facts(record: Any) -> dict[str, Any]:
    """Return the fields of a record; JSON has no infinite numbers."""
    fields = as_dict(record).items()
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields}


def _speed(speed: RunTimes | None) -> dict[str, Any] | None:
    return None if speed is None else {**_facts(speed), "speedup": speed.speedup}
