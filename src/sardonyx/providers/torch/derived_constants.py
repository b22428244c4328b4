"""Constants that are made of others, made on the device: the host need not hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.graph.const import Const, Recipe
from sardonyx.graph.constant import constant
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value, detached
from sardonyx.graph.op import as_outputs
from sardonyx.place.provider import No
from sardonyx.providers.torch.claim import row_of
from sardonyx.providers.torch.dtypes import as_tensor
from sardonyx.providers.torch.kernel import TorchKernel


@frozen
class Cooking:
    """How a device makes a recipe: the steps in order, and the weights that must come there."""

    steps: tuple[tuple[Recipe, TorchKernel], ...]
    leaves: tuple[Const, ...]

    def make(self, there: dict[Const, Tensor], device: torch.device) -> Tensor:
        """The tensor, from those of the leaves."""
        made = dict(there)

        def operand(const: Const | None, on_host: bool) -> Any:
            if const is None or on_host:
                return None if const is None else const.view()
            if const not in made:
                made[const] = as_tensor(const.view(), const.dtype).to(device)
            return made[const]

        for recipe, row in self.steps:
            inputs = [operand(c, i in row.host) for i, c in enumerate(recipe.inputs)]
            inputs += [None] * recipe.op.n_absent(len(inputs))
            sizes = {"shapes": (recipe.shape,)} if row.sized else {}
            with device:  # some functions are given no tensor that says where to make theirs
                results = as_outputs(row.function(*inputs, **recipe.attrs, **sizes))
            made[recipe] = results[0]
        return made[self.steps[-1][0]]


def cooking(const: Const) -> Cooking | None:
    """How to make a constant on a device; None if it is no large recipe, or torch cannot."""
    if not isinstance(const, Recipe) or const.is_small or const.is_read:
        return None
    steps: dict[Recipe, TorchKernel] = {}
    leaves: dict[Const, None] = {}
    waiting: list[Recipe] = [const]  # not by recursion: chains may be longer than calls nest
    while waiting:
        recipe = waiting[-1]
        row = _row(recipe)
        if row is None:
            return None
        parts = [c for i, c in enumerate(recipe.inputs) if c is not None and i not in row.host]
        unmade = [c for c in parts if _is_step(c) and c not in steps]
        waiting += [c for c in unmade if isinstance(c, Recipe)]
        if not unmade:
            leaves.update((c, None) for c in parts if not c.is_small and not _is_step(c))
            steps[waiting.pop()] = row
    return Cooking(tuple(steps.items()), tuple(leaves))


def _is_step(const: Const) -> bool:
    return isinstance(const, Recipe) and not const.is_small and not const.is_read


def _row(recipe: Recipe) -> TorchKernel | None:
    """The function of a recipe's op, if that has one result and torch takes its inputs."""
    op = recipe.op
    if recipe.output or len(op.outputs) != 1 or op.outputs[0].variadic:
        return None
    inputs = [None if c is None else constant(c) for c in recipe.inputs]
    output = Value("", Fact(recipe.dtype, recipe.shape))
    row = row_of(detached(Graph(), op, inputs, recipe.attrs, (output,)))
    return None if isinstance(row, No) or row.syncs else row
