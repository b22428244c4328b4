"""Every kernel that a case of tests/cases reaches, alone, on every ISA, for several splits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import sardonyx._native as native
from sardonyx.graph.dim import lone_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered
from tests.kernels import run_splits, same_bytes
from tests.op_cases import Case
from tests.oracle import difference, feeds_of, model_of
from tests.test_ops import (
    CASES,
    GOOD,
    check_guards,
    is_random,
    sizes_among,
    sizes_of,
    title,
    weights_among,
)


def graph_of(case: Case, constants: list[str]) -> Graph | None:
    """The lowered graph of a case, if its sizes allow what inference assumes."""
    graph = load(model_of(case, constants=constants, symbolic=True).SerializeToString()).graph
    infer(graph)
    try:
        check_guards(graph, sizes_of(case))
    except AssumptionFailed:
        return None
    lower(graph, PassOptions())
    return graph


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_kernel(index: int) -> None:
    """With sizes and axes as constants."""
    check_kernels(CASES[index], sizes_among(CASES[index]))


WEIGHTED = [i for i in GOOD if weights_among(CASES[i]) not in ([], sizes_among(CASES[i]))]


@pytest.mark.parametrize("index", WEIGHTED, ids=title)
def test_kernel_with_weights(index: int) -> None:
    """With constants after the first input, which may be packed."""
    check_kernels(CASES[index], weights_among(CASES[index]))


def check_kernels(case: Case, constants: list[str]) -> None:
    """Each node by its kernel against its reference, and the same bytes for any split."""
    graph = graph_of(case, constants)
    if graph is None:
        pytest.skip("the sizes of the case are none that the graph was compiled for")
    if is_random(case) and case.attrs.get("seed") is None:
        pytest.skip("random numbers without a seed have no reference to compare with")
    refusals: list[str] = []
    n_checked, dims = 0, sizes_of(case)
    values: dict[Any, Any] = {v: feeds_of(case)[v.name] for v in graph.inputs}
    for node in graph.sorted_nodes():
        call = lowered(node)
        arrays = [_read(v, values) for v in node.inputs]
        expected = _expected(node, arrays, dims)
        values.update(zip(node.outputs, expected, strict=False))
        _bind(node, expected, dims)
        if not isinstance(call, Call):
            refusals.append(f"{node.op}: {call.why if isinstance(call, No) else 'a view'}")
            continue
        n_checked += 1
        for isa in native.isas:
            run = partial(run_splits, call, node, values, isa, dims)
            found = run()
            wrong = difference(found, expected[: len(found)], case.ulps)
            assert not wrong, f"{isa}: {wrong}"
            for share in shared(call, found, values):
                assert all(map(same_bytes, run(share=share), found)), f"{isa}: in place {share}"
            if call.writes_rows and found[0].ndim > 1:
                # Rows with gaps may use other vector widths, and round differently.
                wrong = difference(run(gap=5), expected[: len(found)], case.ulps)
                assert not wrong, f"{isa}: rows apart: {wrong}"
    if not n_checked:
        pytest.skip("; ".join(refusals) or "nothing is left to run")


def _expected(node: Node, arrays: list[Any], dims: dict[str, int]) -> list[Any]:
    """The outputs of a node by its reference."""
    if node.op.name == "Sizes":
        assert node.op.reference_rule is not None
        return [node.op.reference_rule(dims, **node.attrs)]
    return list(node.op.run(arrays, node.attrs))


def _bind(node: Node, made: list[Any], dims: dict[str, int]) -> None:
    """Sizes that running the node gives."""
    for value, array in zip(node.outputs, made, strict=False):
        if isinstance(value.fact, Fact) and value.fact.shape is not None:
            for dim, size in zip(value.fact.shape, array.shape, strict=True):
                name = lone_name(dim)
                if name is not None:
                    dims.setdefault(name, size)


def shared(call: Call, outputs: list[Any], values: dict[Any, Any]) -> list[tuple[int, int]]:
    """The pairs of a call that may be the same bytes with these sizes."""
    found = []
    for taken, made in call.shares:
        array, others = values.get(call.inputs[taken]), call.inputs.count(call.inputs[taken])
        if array is not None and others == 1 and array.size == outputs[made].size:
            found.append((taken, made))
    return found


def _read(value: Any, values: dict[Any, Any]) -> Any:
    if value is None:
        return None
    return values[value] if value in values else value.const.read()


def test_isas() -> None:
    assert native.isa in native.isas
