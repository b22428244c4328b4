"""Every function of the torch provider against the numpy reference of its op, case by case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.graph.dim import symbols
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.graph.infer import infer
from sardonyx.graph.op import as_outputs
from sardonyx.load import load
from sardonyx.place.provider import No
from tests.op_cases import Case
from tests.oracle import difference, feeds_of, model_of
from tests.test_kernels import _bind, _read
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

torch = pytest.importorskip("torch")
from sardonyx.providers.torch.claim import kernel_of  # noqa: E402 - torch may be missing
from sardonyx.providers.torch.dtypes import as_array, as_tensor  # noqa: E402
from sardonyx.providers.torch.kernel import TorchKernel  # noqa: E402
from sardonyx.providers.torch.region import sizes_of as shape_of  # noqa: E402

ULPS = 16  # more than a kernel of ours is allowed: torch has its own exponentials


@pytest.mark.parametrize("index", GOOD, ids=title)
def test_function(index: int) -> None:
    """With sizes and axes as constants, and with everything after the first input as one."""
    case = CASES[index]
    if is_random(case):
        pytest.skip("random numbers have no reference to compare with")
    asked = {tuple(sizes_among(case)), tuple(weights_among(case)), ()}
    refusals: dict[str, None] = {}
    n_checked = sum(check_functions(case, constants, refusals) for constants in sorted(asked))
    if not n_checked:
        pytest.skip("; ".join(refusals) or "nothing is left to run")


def check_functions(case: Case, constants: tuple[str, ...], refusals: dict[str, None]) -> int:
    """Compare the functions of all nodes with the reference; return their number."""
    graph, n_checked = _graph(case, constants), 0
    if graph is None:
        return 0
    dims = sizes_of(case)
    values: dict[Any, Any] = {v: feeds_of(case)[v.name] for v in graph.inputs}
    for node in graph.sorted_nodes():
        arrays = [_read(v, values) for v in node.inputs]
        if node.op.name == "Sizes":
            expected = [node.op.reference_rule(dims, **node.attrs)]
        else:
            expected = list(node.op.run(arrays, node.attrs))
        values.update(zip(node.outputs, expected, strict=False))
        known = dict(dims)
        _bind(node, expected, dims)
        found = kernel_of(node)
        if isinstance(found, No):
            refusals[f"{node.op}: {found.why}"] = None
            continue
        n_checked += 1
        made = call(found, node, arrays, known)
        wrong = difference(made, expected[: len(made)], max(case.ulps, ULPS))
        assert not wrong, f"{node}: {wrong}"
    return n_checked


def call(kernel: TorchKernel, node: Node, arrays: list[Any], dims: dict[str, int]) -> list[Any]:
    """Run a function on arrays."""
    given = given_to(kernel, node, arrays)
    kept = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]
    with np.errstate(all="ignore"):
        made = _called(kernel, node, given, dims)
    for before, after in zip(kept, given, strict=True):
        if isinstance(before, torch.Tensor) and before.numel():
            same = before.reshape(-1).view(torch.uint8), after.reshape(-1).view(torch.uint8)
            assert torch.equal(*same), "the function writes to its input"
    if not kernel.syncs:
        check_silent(kernel, node, arrays, dims, made)
    return [as_array(m) for m in made]


def given_to(kernel: TorchKernel, node: Node, arrays: list[Any]) -> list[Any]:
    """The arguments of a function, on the CPU."""
    return [
        a if a is None or kernel.is_array(i, v) else as_tensor(a, v.tensor.dtype).clone()
        for i, (a, v) in enumerate(zip(arrays, node.inputs, strict=True))
    ]


def check_silent(
    kernel: TorchKernel, node: Node, arrays: list[Any], dims: dict[str, int], made: list[Any]
) -> None:
    """A function never asks its device for numbers: one that has only sizes will do."""
    given = given_to(kernel, node, arrays)
    given = [g.to("meta") if isinstance(g, torch.Tensor) else g for g in given]
    for expected, shape in zip(made, _called(kernel, node, given, dims), strict=True):
        assert shape.dtype == expected.dtype
        assert shape.shape == expected.shape


def _called(kernel: TorchKernel, node: Node, given: list[Any], dims: dict[str, int]) -> list[Any]:
    sizes = {}
    if kernel.sized:
        outs = [v.tensor.dims for v in node.outputs]
        opens = {name for shape in outs for d in shape for name in symbols(d)} - dims.keys()
        shapes = tuple(shape_of(shape, dims, opens) for shape in outs)
        sizes = {"shapes": shapes}
    absent = [None] * node.op.n_absent(len(node.inputs))
    made = kernel.function(*given, *absent, **node.attrs, **sizes)
    returns_one = len(node.op.outputs) == 1 and not node.op.outputs[0].variadic
    assert returns_one or isinstance(made, tuple), "an op of several outputs gives a tuple"
    return list(as_outputs(made)[: len(node.outputs)])


def _graph(case: Case, constants: tuple[str, ...]) -> Graph | None:
    """The graph of a case, if its sizes allow what inference assumes."""
    graph = load(model_of(case, constants=constants, symbolic=True).SerializeToString()).graph
    infer(graph)
    try:
        check_guards(graph, sizes_of(case))
    except AssumptionFailed:
        return None
    return graph


def test_kernels_name_ops() -> None:
    """Every kernel belongs to an op, and says of the host only inputs that the op has."""
    from sardonyx.ops import lookup
    from sardonyx.providers.torch.index import KERNELS as FUNCTIONS

    for (domain, name), kernel in FUNCTIONS.items():
        op = lookup(domain, name)
        assert op is not None, name
        n_inputs = op.max_inputs
        assert n_inputs is None or all(i < n_inputs for i in kernel.host), name
