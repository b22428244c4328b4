"""Sensitivity analysis: the error of each layer quantized alone, its time, and its treatment."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from sardonyx.base.progress import track
from sardonyx.quantization.document.session import open_session
from sardonyx.quantization.search.candidates import (
    CANDIDATE_ERRORS,
    Candidate,
    Candidates,
    build_error,
)
from sardonyx.quantization.search.evaluate import layer_seconds, session_options
from sardonyx.quantization.search.layers import TABLE, Layer, groups_of
from sardonyx.quantization.search.outcome import FLOAT, NOT_COMPARABLE, LayerResult
from sardonyx.quantization.search.samples import Feed, Part
from sardonyx.quantization.search.schemes import Quantizable, Scheme

MEASURED: Final = 4  # samples on which each layer is measured
_SMALL_SHARE: Final = 0.01  # of the run time: below it a layer does not matter for the speed

Group = tuple[Layer, ...]


class Sensitivity:
    """Errors of single layers by scheme, and times of layers."""

    def __init__(
        self, model: Quantizable, candidates: Candidates, calibrating: Part, feed: Feed
    ) -> None:
        self._model = model
        self._candidates = candidates
        self._part = calibrating.first(MEASURED)
        self._feed = feed
        self._groups = groups_of(model.layers)
        self._errors: dict[Scheme, list[float]] = {}
        self._seconds: dict[str, float] | None = None

    def errors(self, scheme: Scheme) -> list[float]:
        """Return the relative error of the outputs with each group alone quantized."""
        if scheme not in self._errors:
            found: list[float] = []
            with track("measuring layers") as progress:
                for i, group in enumerate(self._groups):
                    progress.update(i, len(self._groups), f"{i + 1} of {len(self._groups)}")
                    key = f"layer|{scheme}|{group[0].name}"
                    measure = lambda g=group: self._error(scheme, g)  # noqa: E731
                    found.append(self._candidates.journal.remembered(key, measure))
            self._errors[scheme] = found
        return self._errors[scheme]

    def _error(self, scheme: Scheme, group: Group) -> float:
        options = session_options(self._candidates.options.threads)
        try:
            session = open_session(self._model.quantized(scheme, group), options=options)
            return self._candidates.evaluator.error(session, self._part)
        except CANDIDATE_ERRORS as error:
            build_error(error)
            return math.inf

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each layer in floats."""
        if self._seconds is None:
            threads = self._candidates.options.threads
            self._seconds = layer_seconds(self._model.path, self._model.layers, self._feed, threads)
        return self._seconds

    def order(self, scheme: Scheme) -> list[Group]:
        """Return the groups by the gain of leaving them in float: error per time, most first.

        Errors of layers are roughly independent, so their variances add up.
        """
        seconds, errors = self.seconds(), self.errors(scheme)
        least = _SMALL_SHARE * sum(seconds.values())
        times = [sum(seconds.get(layer.name, 0.0) for layer in group) for group in self._groups]
        gains = [e * e / max(t, least, 1e-9) for e, t in zip(errors, times, strict=True)]
        return [self._groups[i] for i in sorted(range(len(gains)), key=lambda i: -gains[i])]

    def results(self, scheme: Scheme, kept: Collection[str], made: Candidate) -> list[LayerResult]:
        """Return what was measured and done, layer by layer."""
        threads = self._candidates.options.threads
        after = layer_seconds(made.path, self._model.layers, self._feed, threads)
        before, ranked = self.seconds(), self.errors(scheme)
        found = []
        for group, error in zip(self._groups, ranked, strict=True):
            for layer in group:
                choice, why = _choice(scheme, layer, layer.name in kept)
                is_float = choice == FLOAT
                found.append(
                    LayerResult(
                        layer.name,
                        layer.op,
                        choice,
                        why or _why(is_float, error, ranked, bool(kept)),
                        error,
                        len(group),
                        layer.weight_bytes,
                        layer.weight_bytes if is_float else layer.weight_count,
                        before.get(layer.name, 0.0),
                        after.get(layer.name, 0.0),
                    )
                )
        return found


def _choice(scheme: Scheme, layer: Layer, is_kept: bool) -> tuple[str, str]:
    """Return the treatment of a layer, and the reason unless it is its error."""
    if is_kept:
        return FLOAT, ""
    if not layer.weight_count:
        if not scheme.is_static:
            return FLOAT, "both operands are computed: scales of each run would cost more"
        return "8 bits, both operands", ""
    if layer.op == TABLE or not scheme.is_per_channel:
        return "8 bits per tensor", ""
    return "8 bits per channel", ""


def _why(is_float: bool, error: float, errors: list[float], some_float: bool) -> str:
    """Return the reason for a choice: the layer's share of the total squared error."""
    if not math.isfinite(error):
        return NOT_COMPARABLE
    total = sum(e * e for e in errors if math.isfinite(e)) or 1.0
    rank = 1 + sum(e > error for e in errors)
    share = error * error / total
    of_all = f"{share:.0%} of the squared error, rank {rank} of {len(errors)}"
    if is_float:
        return f"too sensitive: {of_all}"
    return f"loses little: {of_all}" if some_float else f"all layers fit: {of_all}"
