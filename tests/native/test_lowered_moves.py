"""Cases of ops that move elements: as views, and with sizes that are known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import sardonyx._native as native
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import evaluate, symbols
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower
from sardonyx.place.lowered import Call, Expanded, Lowered, Permuted, Reshaped, Sliced
from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered
from sardonyx.providers.cpu.index import lowerings
from tests.kernels import run_call
from tests.oracle import difference, feeds_of, model_of
from tests.test_ops import BAD, CASES, GOOD, check_guards, sizes_among, sizes_of, title

OPS = {op for f in ("gather", "move", "select", "shape") for op in lowerings(f)}
MOVES = [i for i in GOOD if (CASES[i].domain, CASES[i].op) in OPS]
FAULTS = [i for i in BAD if (CASES[i].domain, CASES[i].op) in OPS]


def graph_of(index: int, constants: list[str], symbolic: bool = True) -> Graph | None:
    """The lowered graph of a case; None where its sizes break what inference assumed."""
    case = CASES[index]
    model = model_of(case, constants=constants, symbolic=symbolic)
    graph = load(model.SerializeToString()).graph
    infer(graph)
    try:
        check_guards(graph, sizes_of(case))
    except AssumptionFailed:
        return None
    lower(graph, PassOptions())
    return graph


def seen(view: Lowered, node: Node, x: np.ndarray, dims: dict[str, int]) -> list[np.ndarray]:
    """The outputs of a node that is a view, by numpy."""
    shapes = [tuple(evaluate(d, dims) for d in v.tensor.dims) for v in node.outputs]
    match view:
        case Reshaped():
            return [x.reshape(shapes[0])]
        case Permuted(perm=perm):
            return [x.transpose(perm)]
        case Expanded():
            return [np.broadcast_to(x, shapes[0])]
        case Sliced(starts=starts, steps=steps):
            return [
                _cut(x, tuple(evaluate(s, dims) for s in start), steps, shape)
                for start, shape in zip(starts, shapes, strict=True)
            ]
    raise AssertionError(view)


def _cut(
    x: np.ndarray, starts: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
    for start, step, count, size in zip(starts, steps, shape, x.shape, strict=True):
        assert count == 0 or (0 <= start < size and 0 <= start + (count - 1) * step < size)
    if 0 in shape:
        return np.empty(shape, x.dtype)
    first = x[tuple(slice(s, None) for s in starts)]
    strides = tuple(s * by for s, by in zip(x.strides, steps, strict=True))
    return as_strided(first, shape, strides)


def check_case(index: int, graph: Graph | None) -> None:
    case, n_checked = CASES[index], 0
    if graph is None:
        pytest.skip("the sizes of the row are none that the graph was compiled for")
    dims = sizes_of(case)
    values: dict[Any, Any] = {v: feeds_of(case)[v.name] for v in graph.inputs}
    for node in graph.sorted_nodes():
        arrays = [_read(v, values) for v in node.inputs]
        internal = node.op.name == "Sizes"
        if internal:
            expected = [node.op.reference_rule(dims, **node.attrs)]
        else:
            expected = list(node.op.run(arrays, node.attrs))
        values.update(zip(node.outputs, expected, strict=False))
        made = lowered(node)
        if isinstance(made, No):
            continue
        n_checked += 1
        if isinstance(made, Call):
            found = run_call(made, node, values, dims)
        else:
            found = seen(made, node, arrays[0], dims)
        assert not (wrong := difference(found, expected[: len(found)], case.ulps)), wrong
    if not n_checked:
        pytest.skip("no node of the row has a kernel or is a view")


def _read(value: Any, values: dict[Any, Any]) -> Any:
    if value is None:
        return None
    return values[value] if value in values else value.const.read()


@pytest.mark.parametrize("index", MOVES, ids=title)
def test_views(index: int) -> None:
    check_case(index, graph_of(index, sizes_among(CASES[index])))


@pytest.mark.parametrize("index", MOVES, ids=title)
def test_sizes_at_run_time(index: int) -> None:
    check_case(index, graph_of(index, [], symbolic=False))


@pytest.mark.parametrize("index", FAULTS, ids=title)
def test_faults_at_run_time(index: int) -> None:
    """Faults of the data are reported by the kernel, which never leaves its buffers."""
    case = CASES[index]
    try:
        graph = graph_of(index, [], symbolic=False)
    except SardonyxError:
        pytest.skip("inference alone finds the fault")
    if graph is None:
        pytest.skip("the sizes of the row are none that the graph was compiled for")
    (node,) = (n for n in graph.sorted_nodes())
    made = lowered(node)
    dims = sizes_of(case)
    names = {s for v in node.outputs for d in v.tensor.dims for s in symbols(d)}
    if not isinstance(made, Call):
        pytest.skip("the op has no kernel for the row")
    if not native.kernels[made.kernel].resolves and not names <= set(dims):
        pytest.skip("a size of the output comes of a run that fails")
    values: dict[Any, Any] = {v: feeds_of(case)[v.name] for v in graph.inputs}
    with pytest.raises((RuntimeError, ValueError), match=r"\d"):
        run_call(made, node, values, dims)
