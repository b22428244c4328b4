"""Every case of tests/cases whose op has a gradient, compared with finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.autodiff.stops import stops_at_input
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.graph.dtype import F64
from sardonyx.graph.graph import Value
from sardonyx.graph.infer import infer
from sardonyx.graph.op import INTERNAL, MICROSOFT, ML, ONNX, allowed
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Model
from sardonyx.load.source import read_model
from sardonyx.ops import family_of, lookup
from sardonyx.ops.gradient_rules import rule_of
from sardonyx.train import gradient
from tests.op_cases import Array, Case, all_cases
from tests.oracle import feeds_of, model_of

FLOATS = ("bfloat16", "float16", "float32", "float64")
JITTER = 1e-3  # moves inputs away from ties and kinks at round numbers
LARGEST = 1e5  # a step of 1e-7 is lost in larger numbers


@dataclass(frozen=True)
class Precision:
    """A type of differences: the step, and the largest error relative to the gradient's terms.

    The stencil has the weight of f(x + k step) - f(x - k step) for each k.
    """

    dtype: Any
    step: float
    error: float
    stencil: dict[int, float]


WIDE = Precision(np.float64, 1e-7, 1e-5, {1: 1 / 2})
# For ops that take or return no float64, as those of ai.onnx.ml: a step that rounding does not
# drown, and differences of fourth order.
NARROW = Precision(np.float32, 5e-3, 5e-3, {1: 8 / 12, 2: -1 / 12})


@dataclass(frozen=True)
class Subject:
    """A case whose floats have one type, and the inputs to differentiate by."""

    case: Case
    names: list[str]
    precision: Precision

    def feeds(self) -> dict[str, Array]:
        """The inputs to differentiate by, finite and off round numbers."""
        rng, given = np.random.default_rng(0), feeds_of(self.case)
        return {n: _jittered(given[n], rng) for n in self.names}

    def model(self) -> Any:
        constants = [n for n in feeds_of(self.case) if n not in self.names]
        return model_of(self.case, constants=constants)


def _jittered(x: Array, rng: Any) -> Array:
    noise = rng.standard_normal(x.shape)
    moved: Array = np.where(np.isfinite(x), x + JITTER * noise, noise)
    return moved.astype(x.dtype)


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and str(x.dtype) in FLOATS


def has_gradient(case: Case) -> bool:
    """Whether a case runs, over tensors, an op with a rule that is no random number."""
    op = lookup(case.domain, case.op)
    if case.fails is not None or op is None or not op.is_pure or op.domain == INTERNAL:
        return False
    if not all(x is None or isinstance(x, np.ndarray) for x in case.inputs):
        return False
    # Gradients pass straight through rounding, which has no differences (test_quantize.py), and
    # those of sequences are sequences (test_flow.py).
    is_elsewhere = family_of(*op.key) in ("quantize", "sequence")
    return rule_of(op) is not None and not is_elsewhere and any(map(is_float, case.inputs))


def subject_of(case: Case) -> Subject | None:
    """A case in float64, or in float32 if an op of it has no float64; None without floats."""
    graph = load(read_model(model_of(case)), LoadOptions()).graph
    infer(graph, assumes=False)
    floats = [v for v in graph.inputs if v.is_used and is_float(feeds_of(case)[v.name])]
    names = [v.name for v in floats if feeds_of(case)[v.name].size and _is_differentiable(v)]
    if not names:
        return None
    wide = {v.name for v in floats if _takes_float64(v)}
    precision = WIDE if wide.issuperset(names) and case.domain != ML else NARROW
    chosen = wide if precision is WIDE else set(names)
    inputs = [
        x.astype(precision.dtype) if f"x{i}" in chosen else x for i, x in enumerate(case.inputs)
    ]
    return Subject(replace(case, inputs=tuple(inputs)), names, precision)


def _is_differentiable(value: Value) -> bool:
    return any(not stops_at_input(node, slot) for node, slot in value.uses)


def _takes_float64(value: Value) -> bool:
    return all(F64 in allowed(node.op, node.op.input_slot(slot)) for node, slot in value.uses)


def _has_duplicates(case: Case) -> bool:
    """Whether a scatter without a reduction writes an element twice."""
    data, index = case.inputs[0], case.inputs[1]
    if case.attrs.get("reduction", "none") != "none":
        return False
    numbers: Array = np.arange(data.size).reshape(data.shape)
    if case.op == "ScatterND":
        flat = index.reshape(int(np.prod(index.shape[:-1])), index.shape[-1])
        places = np.array([numbers[tuple(at)] for at in flat])
    else:
        places = np.take_along_axis(numbers, index, case.attrs.get("axis", 0))
    return len(np.unique(places)) < places.size


# Cases without a derivative to compare with, by op, and why.
SKIPPED: dict[str, tuple[Callable[[Case], bool], str]] = {
    **dict.fromkeys(
        ("Attention", "FlexAttention"),
        (lambda case: "softmax_precision" in case.attrs, "softmax rounds to float32"),
    ),
    "QEmbedLayerNormalization": (
        lambda case: True,
        "scales of 8-bit tables are too steep for differences in float32",
    ),
    "Normalizer": (
        lambda case: not np.any(case.inputs[0], axis=-1).all(),
        "a row of zeros has no direction",
    ),
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        (_has_duplicates, "an element that is written twice has no defined value"),
    ),
}


CUSTOM = ("GRU", "LSTM", "RNN")  # their gradients are custom ops, which have none themselves


def why_skipped(case: Case, inputs: Iterable[Array]) -> str | None:
    """The reason for which a case has no differences; None if it has."""
    if case.op in SKIPPED and SKIPPED[case.op][0](case):
        return SKIPPED[case.op][1]
    if any(np.abs(x).max(initial=0) > LARGEST for x in inputs):
        return "a step is lost in numbers this large"
    return None


@functools.cache
def cases() -> list[Case]:
    return [case for case in all_cases() if has_gradient(case)]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_gradient_equals_differences(case: Case) -> None:
    made, feeds, seeds, precision = differentiated(case)
    if case.op not in CUSTOM:
        assert {node.op.domain for node in made.graph.all_nodes()} <= {ONNX, case.domain}
    of = [name.removesuffix("_grad") for name in seeds]
    check(made, of, Point(feeds, seeds), precision)


def differentiated(case: Case) -> tuple[Model, dict[str, Array], dict[str, Array], Precision]:
    """The gradient model of a case, its inputs to differentiate by, and the outputs' gradients."""
    subject = subject_of(case)
    if subject is None:
        pytest.skip("no input that gradients pass")
    feeds, precision = subject.feeds(), subject.precision
    if (reason := why_skipped(case, feeds.values())) is not None:
        pytest.skip(reason)
    before = sardonyx.InferenceSession(subject.model()).run(None, feeds)
    # Outputs of a narrower type, as saved statistics, round away the step.
    arrays = {f"y{i}": y for i, y in enumerate(before) if isinstance(y, np.ndarray)}
    results = {n: y for n, y in arrays.items() if y.dtype == precision.dtype}
    if not results:
        pytest.skip(f"no output of {precision.dtype.__name__}")
    if not all(np.isfinite(y).all() for y in results.values()):
        pytest.skip("the result is not finite")
    try:
        made = gradient(subject.model(), list(results), subject.names, seeds=True)
    except NotImplemented as error:
        if case.domain != MICROSOFT:  # many of its ops have gradients in some forms only
            raise
        pytest.skip(str(error))
    rng = np.random.default_rng(1)
    return made, feeds, {f"{n}_grad": _random(y, rng) for n, y in results.items()}, precision


def _random(like: Array, rng: Any) -> Array:
    numbers: Array = rng.standard_normal(like.shape).astype(like.dtype)
    return numbers


@dataclass(frozen=True)
class Point:
    """A point of differentiation: variables, gradients of the outputs, other inputs."""

    by: dict[str, Array]
    seeds: dict[str, Array]  # in the order of the outputs
    others: dict[str, Array] = field(default_factory=dict)


def check(made: Model, of: list[str], at: Point, precision: Precision) -> None:
    """The change of outputs along a direction is the gradient times the direction.

    The gradients are the last outputs of the model.
    """
    session, rng = sardonyx.InferenceSession(made), np.random.default_rng(2)
    rest = at.seeds | at.others
    grads = session.run([d.name for d in made.outputs[-len(at.by) :]], at.by | rest)
    directions = {n: _random(x, rng) for n, x in at.by.items()}
    change = 0.0
    for k, weight in precision.stencil.items():
        steps = (k * precision.step, -k * precision.step)
        moved = (
            {n: (x + h * directions[n]).astype(x.dtype) for n, x in at.by.items()} for h in steps
        )
        ends = [session.run(of, near | rest) for near in moved]
        pairs = zip(*ends, at.seeds.values(), strict=True)
        change += weight * sum(_dot(a.astype(np.float64) - b, seed) for a, b, seed in pairs)
    change /= precision.step
    terms = [g * directions[n] for n, g in zip(at.by, grads, strict=True)]
    expected = sum(float(t.sum()) for t in terms)
    scale = max(1.0, sum(float(np.abs(t).sum()) for t in terms))
    assert abs(change - expected) < precision.error * scale, f"{change}, not {expected}"


def _dot(a: Array, b: Array) -> float:
    return float(np.sum(a * b))


@functools.cache
def by_op() -> dict[tuple[str, str], list[Case]]:
    """Cases of each op, those with the most inputs first."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in cases():
        found.setdefault((case.domain, case.op), []).append(case)
    return {key: sorted(each, key=_n_inputs, reverse=True) for key, each in found.items()}


def _n_inputs(case: Case) -> int:
    return sum(x is not None for x in case.inputs)


@pytest.mark.parametrize("key", by_op(), ids=lambda key: key[1])
def test_gradient_of_gradient_equals_differences(key: tuple[str, str]) -> None:
    """By the inputs and by the gradients of the outputs, of the first case that has differences."""
    for case in by_op()[key]:
        try:
            made, feeds, seeds, precision = differentiated(case)
            break
        except pytest.skip.Exception as skipped:
            reason = skipped
    else:
        raise reason
    of, inputs = [d.name for d in made.outputs[-len(feeds) :]], feeds | seeds
    try:
        twice, by = differentiated_again(made, of, list(inputs))
    except NotImplemented as error:
        if key[1] not in CUSTOM and key[0] != MICROSOFT:
            raise
        pytest.skip(str(error))
    new = [d.name for d in twice.inputs if d.name not in inputs]
    results = sardonyx.InferenceSession(made).run(of, inputs)
    rng = np.random.default_rng(3)
    second = {n: _random(y, rng) for n, y in zip(new, results, strict=True)}
    others = {n: x for n, x in inputs.items() if n not in by}
    check(twice, of, Point({n: inputs[n] for n in by}, second, others), precision)


def differentiated_again(made: Model, of: list[str], by: list[str]) -> tuple[Model, list[str]]:
    """A gradient model's own gradient, by those of its inputs that the gradients depend on."""
    while True:
        try:
            return gradient(made, of, by, seeds=True), by
        except InvalidArgument as error:
            # Where an op is linear, its gradient does not depend on the input.
            lost = [n for n in by if f"depend on {n} through" in str(error)]
            if not lost:
                raise
            by = [n for n in by if n not in lost]
