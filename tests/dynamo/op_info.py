"""Runs torch's OpInfo samples through the backend, forward and backward, against eager torch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from sardonyx.dynamo.backend import compile_graph, partition
from sardonyx.dynamo.decompositions import decompositions, without_python_decompositions
from sardonyx.dynamo.report import Report

# The import above locks flags of torch.backends, which other tests of the process set.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True
OPS = {f"{op.name}.{op.variant_test_name}".strip("."): op for op in op_db}


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    """The first sample inputs of an op; with gradients where it has them for this type."""
    has_grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=has_grad), most)


def _results(function: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[Any, Any]:
    """Outputs, and the gradients of all inputs for fixed output gradients."""
    leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.manual_seed(42)  # as OpInfo seeds its random ops inside of them
    outputs = pytree.tree_leaves(function(*leaves))
    with_grad = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    grads: list[Any] = []
    if with_grad and wanted:
        torch.manual_seed(1)
        seeds = [torch.randn(y.shape, dtype=torch.float64).to(y.dtype) for y in with_grad]
        grads = list(torch.autograd.grad(with_grad, wanted, seeds, allow_unused=True))
    return outputs, grads


def check(op: Any, dtype: torch.dtype, sample: Any) -> Report:
    """Compare one sample; returns what ran where."""
    report = Report()

    flat, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        leaves = list(flat)  # numbers, types and names are constants of the graph
        for i, tensor in zip(positions, tensors, strict=True):
            leaves[i] = tensor
        x, args, kwargs = pytree.tree_unflatten(leaves, tree)
        return sample.output_process_fn_grad(op(x, *args, **kwargs))

    tensors = [flat[i] for i in positions]

    def compiler(kind: str) -> Callable[..., Any]:
        return lambda module, inputs: compile_graph(module, inputs, kind=kind, report=report)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _results(function, tensors)
        compiled = aot_function(
            function,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            decompositions=decompositions(),
            partition_fn=partition,
        )
        with without_python_decompositions():
            _results(compiled, tensors)  # tracing itself may consume the generator
        actual = _results(compiled, tensors)
    _compare(actual, expected, dtype, lambda: _results(function, [_float64(t) for t in tensors]))
    return report


def _compare(
    actual: Any, expected: Any, dtype: torch.dtype, reference: Callable[[], tuple[Any, Any]]
) -> None:
    """Compare with eager torch; 16-bit results may differ by more if they are as exact as its."""
    tolerance = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(dtype, 1e-6)
    try:
        torch.testing.assert_close(
            actual, expected, rtol=tolerance * 2, atol=tolerance, equal_nan=True
        )
    except AssertionError:
        if dtype.itemsize != 2 or not _is_as_exact(actual, expected, reference()):
            raise


def _float64(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def _is_as_exact(actual: Any, expected: Any, reference: Any) -> bool:
    """Whether the largest error of each result is at most 4 times eager torch's, or 2 roundings.

    Where terms cancel, the errors of both are those of roundings, which differ by chance.
    """
    leaves = [pytree.tree_leaves(results) for results in (actual, expected, reference)]
    return all(
        _error(ours, exact) <= max(4 * _error(eager, exact), 2 * _rounding(eager))
        for ours, eager, exact in zip(*leaves, strict=True)
        if isinstance(exact, torch.Tensor) and exact.numel()
    )


def _rounding(x: torch.Tensor) -> float:
    """The distance of 16-bit floats at the largest element."""
    top = x.detach().abs().max()
    return float(top * torch.finfo(x.dtype).eps) if x.is_floating_point() else 0.0


def _error(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.detach().double() - exact.detach().double()).abs().max().nan_to_num())
