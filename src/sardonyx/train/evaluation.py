"""Evaluation of a model on validation data: the mean loss, and means of metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.load.model import Model
from sardonyx.session.inference import InferenceSession
from sardonyx.train.batches import Batches, Feeds, samples_in
from sardonyx.train.inference_form import inference_form

_RESERVED: Final = ("loss", "step")  # entries of every evaluation
# From the outputs and the feeds of a batch to a number, as its share of right answers.
Metric = Callable[[Mapping[str, Array], Feeds], float]


class Evaluation:
    """Runs a model on data that it is not trained on."""

    def __init__(self, batches: Batches, loss: str, metrics: Mapping[str, Metric]) -> None:
        for name in _RESERVED:
            if name in metrics:
                raise InvalidArgument(
                    f"a metric is called {name!r}, which evaluations have already",
                    hint="give it another name",
                )
        for name, metric in metrics.items():
            if not callable(metric):
                raise InvalidArgument(
                    f"the metric {name} is a {type(metric).__name__}, not a function of the "
                    "outputs and feeds of a batch"
                )
        self._batches = batches
        self._loss = loss
        self._metrics = dict(metrics)

    @property
    def names(self) -> list[str]:
        """The names of the results."""
        return ["loss", *self._metrics]

    def run(self, model: Model) -> dict[str, float]:
        """Return the means over all samples: the loss as "loss", and each metric by its name."""
        session = InferenceSession(inference_form(model))
        names = [output.name for output in session.get_outputs()]
        known = {i.name for i in session.get_inputs()}
        totals, count = dict.fromkeys(self.names, 0.0), 0
        for feeds in self._batches.epoch(0):
            fed = {name: array for name, array in feeds.items() if name in known}
            outputs: dict[str, Any] = dict(zip(names, session.run(None, fed), strict=True))
            n = samples_in(feeds)
            totals["loss"] += n * float(np.mean(outputs[self._loss]))
            for name, metric in self._metrics.items():
                totals[name] += n * _value_of(name, metric, outputs, feeds)
            count += n
        if not count:
            raise InvalidArgument("the evaluation data has no batches")
        return {name: total / count for name, total in totals.items()}


def _value_of(name: str, metric: Metric, outputs: Mapping[str, Array], feeds: Feeds) -> float:
    """Return a metric of one batch; errors name the metric."""
    try:
        value = metric(outputs, feeds)
    except Exception as error:
        raise Fail(
            f"the metric {name} raises {type(error).__name__}: {error}",
            outputs=", ".join(outputs),
            feeds=", ".join(feeds),
        ) from error
    try:
        return float(value)
    except (TypeError, ValueError):
        kind = (
            f"an array {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
        )
        raise InvalidArgument(
            f"the metric {name} returns {kind}, not a number",
            hint="return the mean over the samples of the batch",
        ) from None
