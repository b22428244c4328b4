"""Every check of every case: results, facts, constant and strided inputs, and errors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import Size, evaluate, symbols
from sardonyx.graph.dtype import INDEX, by_numpy
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.graph.infer import infer
from sardonyx.graph.op import allowed
from sardonyx.graph.verify import verify
from sardonyx.load import load
from sardonyx.ops import OPS_INDEX, family_of, lookup
from tests.op_cases import Case, all_cases
from tests.oracle import answers, difference, feeds_of, input_names, model_of
from tests.two_paths import both

CASES: list[Case] = all_cases()
GOOD = [i for i, case in enumerate(CASES) if case.fails is None]
BAD = [i for i, case in enumerate(CASES) if case.fails is not None]
CONTROL = {("", name) for name in ("If", "Loop", "Scan", "SequenceMap")}  # in test_control.py
SEARCHES = {  # in generation/
    ("com.microsoft", n) for n in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
}
SPARSE = {("com.microsoft", "SparseToDenseMatMul")}  # in session/test_sparse_tensor.py


def title(index: int) -> str:
    return str(CASES[index])[:100]


def start(case: Case, **options: Any) -> sardonyx.InferenceSession:
    model = model_of(case, **options).SerializeToString()
    return sardonyx.InferenceSession(model, providers=["CPUExecutionProvider"])


def run(case: Case, feeds: dict[str, Any], **options: Any) -> Sequence[Any]:
    """Run a case by the fast and the checked path, which must agree."""
    return both(lambda: start(case, **options), feeds)


@functools.cache
def results(index: int) -> Sequence[Any]:
    """Run a case on Sardonyx."""
    return run(CASES[index], feeds_of(CASES[index]))


def is_random(case: Case) -> bool:
    op = lookup(case.domain, case.op)
    return op is not None and not op.is_pure


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_forward(index: int) -> None:
    case, found = CASES[index], results(index)
    if case.oracle == "none" and case.expect is None:
        assert len(found) == case.outputs
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy in the reference evaluator
        expected = answers(case)
    check_alike(case, found, expected)


@pytest.mark.parametrize("mode", ["static", "symbolic", "sizes"])
@pytest.mark.parametrize("index", GOOD, ids=title)
def test_facts(index: int, mode: str) -> None:
    """Facts say what comes out: for fixed dims, for named ones, and with sizes and axes given."""
    case = CASES[index]
    constants = sizes_among(case) if mode == "sizes" else []
    if mode == "sizes" and not constants:
        pytest.skip("no input of the case is made of sizes")
    found = results(index)
    model = model_of(case, constants=constants, symbolic=mode != "static").SerializeToString()
    for assumes in (False, True):
        graph = load(model).graph
        infer(graph, assumes)
        verify(graph, deep=True)
        dims = sizes_of(case)
        try:
            check_guards(graph, dims)
        except AssumptionFailed:
            assert assumes
            continue
        for value, result in zip(graph.outputs, found, strict=True):
            check_fact(value.fact, result, dims)


def sizes_of(case: Case) -> dict[str, int]:
    """Return the sizes of symbolic dims by name."""
    return {
        f"{name}_{axis}": size
        for name, x in feeds_of(case).items()
        if isinstance(x, np.ndarray)
        for axis, size in enumerate(x.shape)
    }


def sizes_among(case: Case) -> list[str]:
    """The inputs that only hold sizes, axes or indices."""
    op = lookup(case.domain, case.op)
    if op is None or case.opset is not None or not op.inputs:
        return []
    slots = [op.input_slot(i) for i in range(len(case.inputs))]
    return [
        n
        for n, slot in zip(input_names(case), slots, strict=True)
        if n and slot.type and allowed(op, slot) <= INDEX
    ]


def check_guards(graph: Graph, dims: dict[str, int]) -> None:
    for part in graph.family():
        for guard in part.scope.guards:
            if guard.symbols <= dims.keys():
                guard.check(dims)


def check_fact(fact: AnyFact | None, result: Any, dims: dict[str, int]) -> None:
    match fact:
        case Fact():
            check_tensor(fact, np.asarray(result), dims)
        case SequenceFact(elem):
            assert isinstance(result, list)
            for item in result if elem is not None else ():
                check_fact(elem, item, dict(dims))  # each element has sizes of its own
        case OptionalFact(elem):
            if result is not None and elem is not None:
                check_fact(elem, result, dims)
        case MapFact():
            assert isinstance(result, dict)
        case _:
            pytest.fail(f"{result!r:.80} has the fact {fact}")


def check_tensor(fact: Fact, result: Any, dims: dict[str, int]) -> None:
    assert by_numpy(result.dtype) is fact.dtype
    if fact.shape is not None:
        assert len(fact.shape) == result.ndim, f"{fact} for {result.shape}"
        for dim, size in zip(fact.shape, result.shape, strict=True):
            check_size(dim, size, dims, f"{fact} for {result.shape}")
    if fact.sym is not None:
        assert len(fact.sym) == result.size
        for cell, item in zip(fact.sym, result.reshape(-1).tolist(), strict=True):
            check_size(cell, int(item), dims, f"{fact.sym} for {result}")


def check_size(dim: Size, size: int, dims: dict[str, int], what: str) -> None:
    """A size of known names is that number; a name that the node makes up stands for one number."""
    unknown = symbols(dim) - dims.keys()
    if not unknown:
        assert evaluate(dim, dims) == size, what
    elif unknown == {str(dim)}:
        dims[str(dim)] = size


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_constant_inputs(index: int) -> None:
    case = CASES[index]
    constants = [n for n, x in feeds_of(case).items() if not isinstance(x, (list, dict))]
    rest = {n: x for n, x in feeds_of(case).items() if n not in constants}
    check_alike(case, run(case, rest, constants=constants), results(index))


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_all_but_the_first_input_constant(index: int) -> None:
    case = CASES[index]
    constants = weights_among(case)
    if not constants:
        pytest.skip("there is no input after the first that may be a constant")
    rest = {n: x for n, x in feeds_of(case).items() if n not in constants}
    found = run(case, rest, constants=constants, symbolic=True)
    check_alike(case, found, results(index))


def weights_among(case: Case) -> list[str]:
    """The inputs after the first, which models have as constants more often than not."""
    return [n for n, x in list(feeds_of(case).items())[1:] if not isinstance(x, (list, dict))]


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_strided_inputs_of_symbolic_sizes(index: int) -> None:
    case = CASES[index]
    feeds = {n: strided(x) for n, x in feeds_of(case).items()}
    check_alike(case, run(case, feeds, symbolic=True), results(index))


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_inputs_of_unknown_rank(index: int) -> None:
    """Without any rank, and with one rank missing beside others that are known."""
    case = CASES[index]
    names = list(feeds_of(case))
    for unranked in (names, *([n] for n in names[: 3 if len(names) > 1 else 0])):
        found = start(case, unranked=unranked).run(None, feeds_of(case))
        check_alike(case, found, results(index))


def strided(x: Any) -> Any:
    """The same numbers, running backwards over the first axis and with gaps along the last."""
    if isinstance(x, list):
        return [strided(item) for item in x]
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return x
    view = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2][::-1]
    view[...] = x
    return view


def check_alike(case: Case, found: Sequence[Any], expected: Sequence[Any]) -> None:
    if is_random(case):
        shapes = [[(np.shape(x), np.asarray(x).dtype) for x in xs] for xs in (found, expected)]
        assert shapes[0] == shapes[1]
    else:
        wrong = difference(list(found), list(expected), case.ulps)
        if wrong:
            pytest.fail(wrong)


@pytest.mark.parametrize("index", BAD, ids=title)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_errors(index: int, symbolic: bool) -> None:
    case = CASES[index]
    with pytest.raises(SardonyxError, match=case.fails):
        run(case, feeds_of(case), symbolic=symbolic)


def test_every_op_has_a_case() -> None:
    # Ops of our own come from passes and gradients; the tests of these have them.
    declared = {key for key in OPS_INDEX.all() if not key[0].startswith("sardonyx")}
    missing = declared - CONTROL - SEARCHES - SPARSE - {(case.domain, case.op) for case in CASES}
    lines = [f"add a case of {d}.{n} to tests/cases/{family_of(d, n)}" for d, n in sorted(missing)]
    assert not lines, "\n".join(lines)
