"""Sources of models: cases of op tests, the ONNX backend suite, random graphs, and whole models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import sardonyx
from sardonyx.models import DIGITS
from sardonyx.ops import lookup
from tests import conformance, oracle
from tests.hostile_runs import feeds_for
from tests.metamorphic.variant import family
from tests.op_cases import all_cases
from tests.random_graphs import compare as random_compare
from tests.random_graphs.graph import RandomGraph, make
from tests.seed_models import SEEDS

# What halves may be off: whether what is between two ops is rounded to them depends on fusing.
HALF_STEPS = 4 * 2**-10
# Whether two outputs agree, by their number: empty, or what is wrong.
Compare = Callable[[int, Any, Any], str]


@dataclass(frozen=True)
class Case:
    """A model with feeds, and how close the outputs of its variants must be."""

    name: str
    model: ModelProto
    feeds: dict[str, Any]
    compare: Compare

    @functools.cached_property
    def is_random(self) -> bool:
        """Whether outputs draw numbers of their own: only types and shapes are compared then."""
        nodes = [n for g in family(self.model.graph) for n in g.node]
        nodes += [n for f in self.model.functions for n in f.node]
        ops = (lookup(n.domain, n.op_type) for n in nodes)
        return any(op is not None and not op.is_pure for op in ops) or _drops(nodes)


def _drops(nodes: Sequence[Any]) -> bool:
    return any("Dropout" in n.op_type or n.op_type == "Bernoulli" for n in nodes)


@dataclass(frozen=True)
class Source:
    """Numbered cases; None where a number has no case that can be compared."""

    count: int | None
    case: Callable[[int], Case | None]


def cases() -> Source:
    """Every case of tests/cases, those that must fail included."""
    found = all_cases()

    def case(number: int) -> Case:
        case = found[number]

        def compare(_: int, a: Any, b: Any) -> str:
            return oracle.difference(a, b, 2 * case.ulps)  # each may be off, to either side

        return Case(str(case)[:100], oracle.model_of(case), oracle.feeds_of(case), compare)

    return Source(len(found), case)


def suite() -> Source:
    """Every case of the ONNX backend suite, with its first data."""
    found = conformance.suite()

    def case(number: int) -> Case | None:
        wanted = found[number]
        model, feeds, _ = next(wanted.runs(), (None, {}, None))
        if model is None:
            return None

        def compare(_: int, a: Any, b: Any) -> str:
            is_half = isinstance(b, np.ndarray) and b.dtype == np.float16
            asked = replace(wanted, rtol=max(wanted.rtol, HALF_STEPS)) if is_half else wanted
            try:
                conformance.agree(b, a, asked)
            except AssertionError as error:
                return " ".join(str(error).split()) or "not equal"
            return ""

        return Case(str(wanted), model, feeds, compare)

    return Source(len(found), case)


def random_graphs() -> Source:
    """Random graphs by their seeds."""

    def case(number: int) -> Case | None:
        graph = make(number)
        if graph.refusal or not graph.outputs:
            return None
        feeds = {n: x for n, x in graph.runs[0].feeds.items() if n in graph.inputs}
        return Case(f"random {number}", graph.model(), feeds, _compare_random(graph))

    return Source(None, case)


def _compare_random(graph: RandomGraph) -> Compare:
    steps = graph.steps_of()

    def compare(number: int, a: Any, b: Any) -> str:
        name = graph.outputs[number]
        if name in graph.random:
            return ""
        text = random_compare.difference(a, b, [], steps[name])
        if not text:
            return ""
        noisy = [_like(n.get(name), b) for n in graph.noisy(graph.runs[0])]
        return random_compare.difference(a, b, noisy, steps[name])

    return compare


def _like(noisy: Any, wanted: Any) -> Any:
    """A noisy result as often as a loop or a scan has stacked what is wanted."""
    if isinstance(noisy, np.ndarray) and isinstance(wanted, np.ndarray):
        more = wanted.ndim - noisy.ndim
        if more > 0 and wanted.shape[more:] == noisy.shape:
            return np.broadcast_to(noisy, wanted.shape)
    return noisy


def models() -> Source:
    """Small whole models: those that hostile ones are made of, and the classifier of digits."""
    makers: list[Callable[[], ModelProto]] = [*SEEDS, lambda: onnx.load(str(DIGITS))]
    makers = [m for m in makers if getattr(m, "__name__", "") != "external"]

    def case(number: int) -> Case:
        model = makers[number]()
        session = sardonyx.InferenceSession(model.SerializeToString())
        feeds = {n: _tame(x) for n, x in feeds_for(session, Random(number)).items()}

        def compare(_: int, a: Any, b: Any) -> str:
            return oracle.difference(a, b, 64)

        return Case(model.graph.name, model, feeds, compare)

    return Source(len(makers), case)


def _tame(value: Any) -> Any:
    """Numbers around one, in the same shapes; a list has elements, an optional is there."""
    if not isinstance(value, np.ndarray):
        one = np.ones((2, 3), np.float32)
        return [one, one] if isinstance(value, list) else one
    if value.dtype == object:
        return np.full(value.shape, "a-b", object)
    cells = (np.arange(value.size).reshape(value.shape) + 1) % 3
    return np.asarray(cells).astype(value.dtype)


SOURCES: dict[str, Callable[[], Source]] = {
    "cases": cases,
    "conformance": suite,
    "random": random_graphs,
    "models": models,
}
