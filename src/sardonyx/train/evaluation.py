"""Evaluation of a model on validation data: the mean loss, and means of metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
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
                totals[name] += n * float(metric(outputs, feeds))
            count += n
        if not count:
            raise InvalidArgument("the evaluation data has no batches")
        return {name: total / count for name, total in totals.items()}
