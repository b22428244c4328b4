"""Metrics: the loss of accuracy of a quantized model, which `max_loss` limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.quantization.document import ModelDoc
from sardonyx.quantization.search.samples import Sample

Outputs = Sequence[Any]
_TINY: Final = 1e-30
_SCORES: Final = ("logit", "score", "prob", "class", "softmax")  # in names of outputs
_CERTAIN: Final = 3  # rule of three: no failure in n rows: rate < 3 / n (95 % sure)


class Metric(Protocol):
    """Accumulates a loss over runs of both models on the same samples."""

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Add the outputs of the original and of the quantized model."""
        ...

    def loss(self) -> float:
        """Return the loss over all samples added; 0 is none, 0.01 is 1 %."""
        ...


class RelativeError:
    """Relative L2 error: norm of the difference over norm of the output, the worst output's."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Add squared norms."""
        for i, (y, z) in enumerate(zip(expected, actual, strict=True)):
            if not _is_float(y):
                continue
            sums = self._sums.setdefault(i, [0.0, 0.0])
            numbers = np.isfinite(y)  # where the original has others, both do
            wide, other = (np.asarray(a, np.float64)[numbers] for a in (y, z))
            other = other - wide
            sums[0] += float(other @ other)
            sums[1] += float(wide @ wide)

    def loss(self) -> float:
        """Return the error of the worst output."""
        return max((_ratio(*sums) for sums in self._sums.values()), default=0.0)


class Cosine:
    """Cosine distance: 1 minus the mean cosine similarity of rows along the last axis."""

    def __init__(self) -> None:
        self._total, self._rows = 0.0, 0

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Add the cosines of the first output in floats."""
        y, z = next((y, z) for y, z in zip(expected, actual, strict=True) if _is_float(y))
        a, b = (np.asarray(v, np.float64).reshape(-1, y.shape[-1]) for v in (y, z))
        lengths = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        cosines = (a * b).sum(1) / np.maximum(lengths[0] * lengths[1], _TINY)
        are_zero = (lengths[0] == 0) & (lengths[1] == 0)  # such as rows of padding
        self._total += float(np.where(are_zero, 1.0, cosines).sum())
        self._rows += len(a)

    def loss(self) -> float:
        """Return the distance."""
        return 1 - self._total / max(self._rows, 1)


class Top1:
    """Top-1 disagreement: the share of rows whose argmax changes."""

    def __init__(self) -> None:
        self.rows = self.changed = 0

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Count the rows of the first output in floats."""
        y, z = next((y, z) for y, z in zip(expected, actual, strict=True) if _is_float(y))
        changed = y.argmax(-1) != z.argmax(-1)
        self.rows += changed.size
        self.changed += int(changed.sum())

    def loss(self) -> float:
        """Return the share."""
        return self.changed / max(self.rows, 1)


class Accuracy:
    """The accuracy by labels of the original, minus that of the quantized model."""

    def __init__(self) -> None:
        self.rows, self.right, self.classes = 0, [0, 0], 0

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Count right answers."""
        assert sample.labels is not None
        labels = np.asarray(sample.labels).reshape(-1)
        self.rows += labels.size
        for i, outputs in enumerate((expected, actual)):
            scores = next(y for y in outputs if _is_float(y))
            answers, self.classes = scores.argmax(-1).reshape(-1), scores.shape[-1]
            if answers.size != labels.size:
                raise InvalidArgument(
                    f"{labels.size} labels do not fit scores of the shape {list(scores.shape)}"
                )
            self.right[i] += int((answers == labels).sum())

    def loss(self) -> float:
        """Return how much lower the accuracy is; negative if it is higher.

        Raises if the original only guesses, as then no model loses anything.
        """
        if self.right[0] * self.classes <= self.rows:
            raise InvalidArgument(
                f"the original is right in {self.right[0]} of {self.rows} rows, which is no better "
                f"than a guess among {self.classes} classes: accuracy cannot show a loss",
                hint="labels are positions of the right scores, from 0; --metric top1 compares "
                "answers without labels",
            )
        return (self.right[0] - self.right[1]) / self.rows


class Perplexity:
    """The relative increase of the perplexity of predicted tokens."""

    def __init__(self) -> None:
        self._lost, self._tokens = [0.0, 0.0], 0

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Add the likelihoods of each token after those before it; labels below 0 do not count."""
        tokens = sample.feed.get("input_ids") if sample.labels is None else sample.labels
        targets = np.asarray(tokens)
        for i, outputs in enumerate((expected, actual)):
            logits = next((y for y in outputs if _is_float(y) and y.ndim == 3), None)
            if logits is None or logits.shape[:2] != targets.shape:
                found = "none" if logits is None else list(logits.shape)
                raise InvalidArgument(
                    f"tokens of the shape {list(targets.shape)} have no perplexity by scores of "
                    f"the shape {found}",
                    hint="an output has scores for each token, [batch, length, vocabulary]",
                )
            for row, target in zip(logits[:, :-1], targets[:, 1:], strict=True):
                self._lost[i] += _log_loss(row[target >= 0], target[target >= 0])
        self._tokens += int((targets[:, 1:] >= 0).sum())

    def loss(self) -> float:
        """Return the growth."""
        original, quantized = (lost / max(self._tokens, 1) for lost in self._lost)
        return math.expm1(min(quantized - original, 700.0))


class Custom:
    """The mean of a function of both models' outputs and the sample."""

    def __init__(self, function: Callable[..., float]) -> None:
        self._function, self._losses = function, list[float]()

    def add(self, expected: Outputs, actual: Outputs, sample: Sample) -> None:
        """Call the function."""
        self._losses.append(float(self._function(expected, actual, sample)))

    def loss(self) -> float:
        """Return the mean."""
        return float(np.mean(self._losses)) if self._losses else 0.0


@frozen
class MetricKind:
    """A metric, and what it is called."""

    name: str
    text: str
    make: Callable[[], Metric]

    def sample_size_remark(self, rows: int, max_loss: float) -> str:
        """Return a remark if there are too few rows to show a loss as small as `max_loss`."""
        if self.name not in ("top1", "accuracy") or rows * max_loss >= _CERTAIN:
            return ""
        share = min(1.0, _CERTAIN / max(rows, 1))
        needed = math.ceil(_CERTAIN / max_loss) if max_loss else 0
        more = f"; {needed} would show {max_loss:.2%}" if needed else ""
        return f"no change in {rows} rows still allows for one in {share:.1%} of all{more}"


KINDS: Final = {
    kind.name: kind
    for kind in (
        MetricKind("error", "relative error of the outputs", RelativeError),
        MetricKind("cosine", "1 - cosine similarity", Cosine),
        MetricKind("top1", "answers that change", Top1),
        MetricKind("accuracy", "accuracy lost", Accuracy),
        MetricKind("perplexity", "growth of the perplexity", Perplexity),
    )
}
AUTO: Final = "auto"


def metric_kind(
    metric: str | Callable[..., float], document: ModelDoc, has_labels: bool, outputs: Outputs
) -> MetricKind:
    """Return a metric by its name or its function; `auto` chooses one by the model's outputs."""
    if not isinstance(metric, str):
        name = getattr(metric, "__name__", type(metric).__name__)
        return MetricKind(name, f"mean of {name}", partial(Custom, metric))
    if metric == AUTO:
        metric = _chosen(document, has_labels, outputs)
    if metric not in KINDS:
        raise InvalidArgument(f"there is no metric {metric}; known are {', '.join((AUTO, *KINDS))}")
    if metric == "accuracy" and not has_labels:
        raise InvalidArgument(
            "accuracy needs labels, and the samples have none",
            hint="add an array named labels to the samples, or name theirs",
        )
    names = {i.name for i in document.graph.inputs}
    if metric == "perplexity" and not has_labels and "input_ids" not in names:
        raise InvalidArgument("perplexity needs the input input_ids, or labels")
    if not any(map(_is_float, outputs)):
        raise InvalidArgument("no output of the model is a tensor of floats")
    return KINDS[metric]


def _chosen(document: ModelDoc, has_labels: bool, outputs: Outputs) -> str:
    """Return the metric that suits a model: that of classifiers, language models, or the error."""
    names = [o.name.lower() for o in document.graph.outputs]
    floats = ((n, y) for n, y in zip(names, outputs, strict=True) if _is_float(y))
    first_name, first = next(floats, ("", None))
    if first is None or first.ndim < 2:
        return "error"
    is_language = first.ndim == 3 and any(i.name == "input_ids" for i in document.graph.inputs)
    if is_language and "logits" in names:
        return "perplexity"
    if first.ndim != 2 or first.shape[-1] < 2:
        return "error"
    if has_labels:
        return "accuracy"
    sums_to_one = bool((first >= 0).all() and np.allclose(first.sum(-1), 1, atol=1e-3))
    is_named = any(word in first_name for word in _SCORES)
    return "top1" if sums_to_one or is_named else "error"


def _log_loss(logits: Array, targets: Array) -> float:
    """Return the sum of -log p of the right tokens; `logits` has a row for each."""
    shifted = logits.astype(np.float32) - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, targets[:, None].astype(np.int64), -1)
    sums = np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)
    return float((np.log(sums) - chosen).sum(dtype=np.float64))


def _ratio(difference: float, norm: float) -> float:
    """Return the ratio of two norms from their squares; infinite if it is not a number."""
    ratio = math.sqrt(difference) / max(math.sqrt(norm), _TINY)
    return math.inf if math.isnan(ratio) else ratio


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim > 0
