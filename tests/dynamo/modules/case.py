"""A module with inputs, and its comparison with eager torch in training and in evaluation."""

from __future__ import annotations

import copy
import fnmatch
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sardonyx.dynamo.report import Report
from sardonyx.train import report, wrap

Input = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A module's factory, and the factories of its inputs."""

    make: Callable[[], nn.Module]
    inputs: tuple[Input, ...]
    in_torch: Mapping[str, str] = field(default_factory=dict)  # patterns of ops torch runs, and why
    breaks: str = ""  # why TorchDynamo breaks the graph, if it does
    uncaptured: str = ""  # why TorchDynamo leaves all of the module to torch, if it does
    rtol: float = 1e-4
    atol: float = 2e-5


def case(make: Callable[[], nn.Module], *inputs: Input, **options: Any) -> Case:
    """A row of a family's table."""
    return Case(make, inputs, **options)


class Function(nn.Module):
    """A function of the inputs, and of parameters of the given shapes, which come first."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.weights, *inputs)


def function(call: Callable[..., Any], *inputs: Input, **options: Any) -> Case:
    """A row for a function without parameters."""
    return Case(lambda: Function(call), inputs, **options)


def f32(*shape: int) -> Input:
    """Normal numbers, with a gradient."""
    return lambda: torch.randn(shape).requires_grad_()


def fixed(*shape: int) -> Input:
    """Normal numbers, without a gradient."""
    return partial(torch.randn, shape)


def positive(*shape: int) -> Input:
    """Numbers in (0.1, 0.9), with a gradient."""
    return lambda: (torch.rand(shape) * 0.8 + 0.1).requires_grad_()


def ids(end: int, *shape: int) -> Input:
    """Integers from 0 up to an end."""
    return partial(torch.randint, 0, end, shape)


def flags(*shape: int) -> Input:
    """Booleans, two of three true."""
    return lambda: torch.rand(shape) < 0.67


def signs(*shape: int) -> Input:
    """-1 and 1."""
    return lambda: torch.randint(0, 2, shape) * 2.0 - 1


def value(x: Any) -> Input:
    """A constant; tensors are copied."""
    return lambda: copy.deepcopy(x)


def check(it: Case) -> None:
    """Compare a training step, an evaluation with gradients, and one without."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about modules that warn in eager mode too
        torch.manual_seed(1)
        plain = it.make()
        torch.manual_seed(1)
        wrapped = wrap(it.make())
        for training, with_grad in ((True, True), (False, True), (False, False)):
            found = []
            for module in (wrapped, plain):
                module.train(training)
                torch.manual_seed(2)
                found.append(_step(module, [make() for make in it.inputs], with_grad))
            torch.testing.assert_close(*found, rtol=it.rtol, atol=it.atol, equal_nan=True)
    _check_report(it, report(wrapped))


def _step(module: nn.Module, inputs: list[Any], with_grad: bool) -> dict[str, Any]:
    """Outputs, gradients of inputs and parameters, buffers, and the generator's next number."""
    module.zero_grad()
    with torch.set_grad_enabled(with_grad):
        outputs = [y for y in pytree.tree_leaves(module(*inputs)) if isinstance(y, torch.Tensor)]
    if with_grad:
        with_grads = [y for y in outputs if y.requires_grad]
        torch.autograd.backward(with_grads, [_seed(y) for y in with_grads])
    leaves = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    return {
        "outputs": [y.detach() for y in outputs],
        "input gradients": [x.grad for x in leaves if x.grad is not None],
        "gradients": {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
        "parameters": {name: p.detach().clone() for name, p in module.named_parameters()},
        "buffers": {name: b.clone() for name, b in module.named_buffers()},
        "next": torch.rand(()),
    }


def _seed(y: torch.Tensor) -> torch.Tensor:
    """An output's gradient: different for all elements, of both signs."""
    return torch.cos(torch.arange(1.0, y.numel() + 1)).reshape(y.shape).to(y.dtype)


def _check_report(it: Case, found: Report) -> None:
    ops = {f.op for f in found.fallbacks}
    matched = {pattern: fnmatch.filter(ops, pattern) for pattern in it.in_torch}
    assert ops == set(chain.from_iterable(matched.values())), str(found)
    assert all(matched.values()), f"nothing matches {matched}"
    assert bool(found.graph_breaks) == bool(it.breaks), str(found)
    assert bool(found.graphs) != bool(it.uncaptured), str(found)
