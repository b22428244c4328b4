"""The search for an 8-bit model: a scheme for all layers, then layers that fall back to float."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Final

from sardonyx.base.progress import track
from sardonyx.base.records import frozen, replace
from sardonyx.quantization.search.candidates import (
    CANDIDATE_ERRORS,
    Candidate,
    Candidates,
    build_error,
)
from sardonyx.quantization.search.layers import groups_of, names_digest
from sardonyx.quantization.search.outcome import (
    LOSES_TOO_MUCH,
    NOT_COMPARABLE,
    Outcome,
    Trial,
)
from sardonyx.quantization.search.samples import Part
from sardonyx.quantization.search.schemes import COVERAGES, Quantizable, Scheme
from sardonyx.quantization.search.sensitivity import Sensitivity

_MIN_PROBED: Final = 8  # samples on which schemes are compared
_PROBED_S: Final = 1.0  # of the original's run time: more samples are used up to this
_BETTER: Final = 0.98  # a variant is taken if its error is below this share of the best
_SPEED_TIE: Final = 0.97  # speedups above this share of the best count as equal
_REFINED: Final = 3  # coverages whose variants are tried
_ABOUT_EQUAL: Final = 1.05  # a ratio of errors: below it only the faster coverage is refined
_PRUNE_RATIO: Final = 0.25  # a ratio of errors that no variant has been seen to make up for
_OVERFIT_RATIO: Final = 2.0  # of the errors on held-out and on calibration samples
_MAX_BACKOFFS: Final = 6  # retries with more layers in float after validation fails
# Greedy search: changes are tried in this order, each kept if the error falls.
_VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {"is_per_channel": False},
    {"alpha": 0.5},
    {"alpha": 0.8},
    {"ranges": "least squares"},
    {"ranges": "percentile"},
    {"is_symmetric": True},
    {"corrects_bias": True},
)
_DYNAMIC_VARIANTS: Final = 3  # the first ones apply to dynamic scales as well


@frozen
class MixedScheme:
    """Mixed precision: a scheme, and how many of the most sensitive groups stay in float."""

    scheme: Scheme
    n_float: int
    trial: Trial


class Int8Search:
    """A search for the fastest 8-bit model whose loss is small enough."""

    def __init__(
        self, model: Quantizable, candidates: Candidates, parts: tuple[Part, Part]
    ) -> None:
        self._model = model
        self._candidates = candidates
        self._options = candidates.options
        self._calibrating, self._held_out = parts
        self._feeds = self._held_out.of_each_size()
        self._groups = groups_of(model.layers)
        self._probed = self._calibrating.first(
            candidates.journal.remembered("probed", self._n_probed)
        )
        self.sensitivity = Sensitivity(model, candidates, self._calibrating, self._feeds[-1])

    def _n_probed(self) -> int:
        seconds = self._candidates.evaluator.seconds(self._feeds[-1])
        return max(_MIN_PROBED, int(_PROBED_S / max(seconds, 1e-6)))

    def run(self, outcome: Outcome) -> None:
        """Search; set the result, or the reason why there is none, in the outcome."""
        refined = [self._refined(s, trial, outcome) for s, trial in self._coverages(outcome)]
        limit = self._options.searched_loss
        whole = [s for s in refined if self._loss(s, 0) <= limit]
        # Layers in float cost time, so they are a fallback for when no scheme suits all layers.
        for schemes in (whole, [s for s in refined if s not in whole]):
            fitted = [found for s in schemes if (found := self._fitted(s, outcome))]
            for found in self._by_preference(fitted):
                if self._accept(found, outcome):
                    return
        outcome.refusal = (
            f"no 8-bit model loses at most {self._options.max_loss:.2%} ({outcome.metric_text}) "
            f"and is {self._options.resolved_min_speedup:g} times as fast as the original"
        )

    def _by_preference(self, fitted: Sequence[MixedScheme]) -> list[MixedScheme]:
        """Return models by error for the goal accuracy, else the fastest first.

        Of models that are about as fast as the fastest, the one with the least error is first.
        """
        best = max((f.trial.speedup or 0.0 for f in fitted), default=0.0)
        if self._options.goal == "accuracy":
            best = 0.0

        def rank(found: MixedScheme) -> tuple[bool, float]:
            is_fast = (found.trial.speedup or 0.0) >= _SPEED_TIE * best
            order = found.trial.error if is_fast else -(found.trial.speedup or 0.0)
            return not is_fast, order or 0.0

        return sorted(fitted, key=rank)

    def _coverages(self, outcome: Outcome) -> list[tuple[Scheme, Trial]]:
        """Return the coverages that are fast enough with all layers quantized, best first."""
        tried: list[tuple[Scheme, Trial]] = []
        has_products = bool(self._model.op_types & {"MatMul", "Gemm"})
        with track("comparing what to quantize") as progress:
            for i, coverage in enumerate(COVERAGES):
                progress.update(i, len(COVERAGES), f"{i + 1} of {len(COVERAGES)}, {coverage}")
                scheme = Scheme(coverage)
                if scheme.is_static or has_products:
                    trial = self._try(scheme, 0, outcome, is_timed=True)
                    tried += [(scheme, trial)] if trial is not None else []
        fast = [t for t in tried if t[1].is_fast(self._options.resolved_min_speedup)]
        if not fast:
            return sorted(tried, key=lambda t: -(t[1].speedup or 0.0))[:1]
        if self._options.goal == "accuracy":
            return sorted(fast, key=lambda t: t[1].error or 0.0)[:_REFINED]
        good: list[tuple[Scheme, Trial]] = []
        for scheme, trial in sorted(fast, key=lambda t: -(t[1].speedup or 0.0)):
            if not any(_prunes(*better, scheme, trial) for better in good):
                good.append((scheme, trial))
        return sorted(good, key=lambda t: t[1].error or 0.0)[:_REFINED]

    def _refined(self, scheme: Scheme, first: Trial, outcome: Outcome) -> Scheme:
        """Return the variant of a scheme that has the least error."""
        best, least = scheme, first.error or 0.0
        variants = _VARIANTS if scheme.is_static else _VARIANTS[:_DYNAMIC_VARIANTS]
        with track(f"comparing variants of {scheme.coverage!r}") as progress:
            for i, change in enumerate(variants):
                progress.update(i, len(variants), f"{i + 1} of {len(variants)}")
                if "alpha" in change and not self._model.can_smooth():
                    continue
                variant = replace(best, **change)
                trial = self._try(variant, 0, outcome)
                if trial is not None and (trial.error or 0.0) < _BETTER * least:
                    best, least = variant, trial.error or 0.0
        return best

    def _try(
        self, scheme: Scheme, n_float: int, outcome: Outcome, is_timed: bool = False
    ) -> Trial | None:
        """Return the error of a model on few samples, and its time; None if it cannot be made."""
        kept = self._kept(scheme, n_float)
        trial = Trial(str(scheme), len(kept))
        outcome.trials.append(trial)
        made = list[Candidate]()

        def measure() -> float:
            made.append(self._build(scheme, kept))
            return self._candidates.evaluator.error(made[0].session, self._probed)

        try:
            key = f"error|{scheme}|{names_digest(kept)}"
            trial.error = self._candidates.journal.remembered(key, measure)
            if is_timed:
                candidate = made[0] if made else self._build(scheme, kept)
                trial.speed = self._candidates.speed(candidate, self._feeds)
                trial.n_bytes = candidate.n_bytes
        except CANDIDATE_ERRORS as error:
            trial.verdict = build_error(error)
            return None
        if math.isfinite(trial.error):
            return trial
        trial.verdict = NOT_COMPARABLE
        return None

    def _kept(self, scheme: Scheme, n_float: int) -> frozenset[str]:
        """Return the layers that stay in float: those of the most sensitive groups."""
        if not n_float:
            return frozenset()
        return frozenset(layer.name for group in self.sensitivity.order(scheme)[:n_float]
                         for layer in group)  # fmt: skip

    def _build(self, scheme: Scheme, kept: Collection[str]) -> Candidate:
        layers = [layer for layer in self._model.layers if layer.name not in kept]
        return self._candidates.of_document(self._model.quantized(scheme, layers))

    def _loss(self, scheme: Scheme, n_float: int) -> float:
        """Return the loss on the calibration samples."""
        kept = self._kept(scheme, n_float)

        def measure() -> float:
            try:
                session = self._build(scheme, kept).session
                return self._candidates.evaluator.loss(session, self._calibrating).loss
            except CANDIDATE_ERRORS as error:
                build_error(error)
                return math.inf

        return self._candidates.journal.remembered(f"loss|{scheme}|{names_digest(kept)}", measure)

    def _fitted(self, scheme: Scheme, outcome: Outcome) -> MixedScheme | None:
        """Bisect for the fewest layers in float with which the loss is small enough."""
        low, high = -1, len(self._groups)  # too few, enough: with all in float nothing is lost
        loss = self._loss(scheme, 0)
        if loss <= self._options.searched_loss:
            high = 0
        with track("choosing layers that stay in floats") as progress:
            tried = 0
            while high - low > 1:
                tried += 1
                middle = max(0, (low + high) // 2)
                progress.update(0, 0, f"{middle} of {len(self._groups)}, try {tried}")
                if self._loss(scheme, middle) <= self._options.searched_loss:
                    high = middle
                else:
                    low = middle
        if high >= len(self._groups):
            trial = self._try(scheme, 0, outcome, is_timed=True)
            if trial is not None:
                trial.loss, trial.verdict = loss, "loses too much with any layer quantized"
            return None
        trial = self._try(scheme, high, outcome, is_timed=True)
        if trial is None:
            return None
        trial.loss = self._loss(scheme, high)
        if not trial.is_fast(self._options.resolved_min_speedup):
            trial.verdict = "too slow"
            return None
        return MixedScheme(scheme, high, trial)

    def _accept(self, found: MixedScheme, outcome: Outcome) -> bool:
        """Validate on the held-out samples; on failure keep more layers in float and retry."""
        n_float, step = found.n_float, max(1, len(self._groups) // 16)
        for _ in range(_MAX_BACKOFFS):
            if n_float >= len(self._groups):
                break
            kept = self._kept(found.scheme, n_float)
            made = self._build(found.scheme, kept)
            trial = self._candidates.checked(
                Trial(str(found.scheme), len(kept)), made, self._held_out, self._feeds
            )
            outcome.trials.append(trial)
            if not trial.is_fast(self._options.resolved_min_speedup):
                trial.verdict = "too slow when it was timed again"
                return False
            if trial.loss is not None and trial.loss <= self._options.max_loss:
                outcome.choose(trial)
                outcome.layers = self.sensitivity.results(found.scheme, kept, made)
                outcome.remarks += _overfitting_remarks(
                    trial.error or 0.0, found.trial.error or 0.0
                )
                return True
            trial.verdict = LOSES_TOO_MUCH
            n_float += step
        return False


def _prunes(scheme: Scheme, trial: Trial, other: Scheme, theirs: Trial) -> bool:
    """Return whether the variants of another scheme can be pruned, as this one is better.

    Static scales gain more from variants than dynamic ones, which are computed in each run.
    """
    if scheme == other or (trial.speedup or 0.0) < _SPEED_TIE * (theirs.speedup or 0.0):
        return False
    ratio = (trial.error or 0.0) / max(theirs.error or 0.0, 1e-30)
    if scheme.is_static or not other.is_static:
        return ratio <= _ABOUT_EQUAL
    return ratio <= _PRUNE_RATIO


def _overfitting_remarks(error: float, searched: float) -> list[str]:
    """Return a remark if the error is much larger on the held-out samples (overfitting)."""
    if error <= _OVERFIT_RATIO * searched:
        return []
    text = f"the error on held-out samples is {error / max(searched, 1e-30):.1f} times that on"
    return [f"{text} the others: more samples, or more varied ones, would calibrate better"]
