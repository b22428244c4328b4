"""Derived constants (recipes) evaluated on the device, so that the host need not hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.graph.const import Const, Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value, detached
from sardonyx.graph.op import as_outputs
from sardonyx.place.provider import No
from sardonyx.providers.torch.claim import kernel_of
from sardonyx.providers.torch.dtypes import as_tensor
from sardonyx.providers.torch.kernel import TorchKernel


@frozen
class DeviceRecipe:
    """A recipe's evaluation on a device: steps in topological order, and the weights to load."""

    steps: tuple[tuple[Recipe, TorchKernel], ...]
    leaves: tuple[Const, ...]

    def evaluate(self, loaded: dict[Const, Tensor], device: torch.device) -> Tensor:
        """Return the tensor, from the loaded leaves."""
        tensors = dict(loaded)

        def operand(const: Const | None, on_host: bool) -> Any:
            if const is None or on_host:
                return None if const is None else const.view()
            if const not in tensors:
                tensors[const] = as_tensor(const.view(), const.dtype).to(device)
            return tensors[const]

        for recipe, kernel in self.steps:
            inputs = [operand(c, i in kernel.host) for i, c in enumerate(recipe.inputs)]
            inputs += [None] * recipe.op.n_absent(len(inputs))
            sizes = {"shapes": (recipe.shape,)} if kernel.sized else {}
            with device:  # for kernels without tensor inputs
                results = as_outputs(kernel.function(*inputs, **recipe.attrs, **sizes))
            tensors[recipe] = results[0]
        return tensors[self.steps[-1][0]]


def device_recipe(const: Const) -> DeviceRecipe | None:
    """Return a recipe's evaluation on a device; None if it is small or has no kernel."""
    if not isinstance(const, Recipe) or const.is_small or const.is_read:
        return None
    # Large recipes only: small ones are cheaper to evaluate on the host.
    steps: dict[Recipe, TorchKernel] = {}
    leaves: dict[Const, None] = {}
    # Depth-first with an explicit stack: chains may exceed Python's recursion limit.
    waiting: list[Recipe] = [const]
    while waiting:
        recipe = waiting[-1]
        kernel = _kernel(recipe)
        if kernel is None:
            return None
        inputs = [c for i, c in enumerate(recipe.inputs) if c is not None and i not in kernel.host]
        pending = [c for c in inputs if _is_step(c) and c not in steps]
        waiting += [c for c in pending if isinstance(c, Recipe)]
        if not pending:
            leaves.update((c, None) for c in inputs if not c.is_small and not _is_step(c))
            steps[waiting.pop()] = kernel
    return DeviceRecipe(tuple(steps.items()), tuple(leaves))


def _is_step(const: Const) -> bool:
    return isinstance(const, Recipe) and not const.is_small and not const.is_read


def _kernel(recipe: Recipe) -> TorchKernel | None:
    """Return the kernel of a recipe's op, if it has one output and torch accepts its inputs."""
    op = recipe.op
    if recipe.output or len(op.outputs) != 1 or op.outputs[0].variadic:
        return None
    inputs = [None if c is None else constant(c) for c in recipe.inputs]
    output = Value("", Fact(recipe.dtype, recipe.shape))
    kernel = kernel_of(detached(Graph(), op, inputs, recipe.attrs, (output,)))
    return None if isinstance(kernel, No) or kernel.syncs else kernel
