"""One entry of the table of modules: what it is, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Callable[[int], Sequence[Tensor]]


@dataclass(frozen=True)
class ModuleCase:
    """A module and its inputs for a size `n`; sizes that change with it are dynamic."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    is_scripted: bool = False  # its control flow is for TorchScript to see
    close: float = 1e-4  # relative and absolute


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *xs: Tensor) -> Any:
        return self._function(*xs)


def call(
    name: str, function: Callable[..., Any], inputs: Inputs, close: float = 1e-4
) -> ModuleCase:
    """A case of a function."""
    return ModuleCase(name, lambda: Called(function), inputs, close=close)


def layer(
    name: str, build: Callable[[], nn.Module], inputs: Inputs, close: float = 1e-4
) -> ModuleCase:
    """A case of a module; its weights are the same each time."""
    return ModuleCase(name, build, inputs, close=close)


def f32(*shape: int) -> Tensor:
    """Numbers that depend on the shape alone."""
    generator = torch.Generator().manual_seed(7 + sum(shape))
    return torch.randn(shape, generator=generator)


def positive(*shape: int) -> Tensor:
    return f32(*shape).abs() + 0.1


def i64(high: int, *shape: int, low: int = 0) -> Tensor:
    """Whole numbers from low to high, high not included."""
    generator = torch.Generator().manual_seed(11 + sum(shape))
    return torch.randint(low, high, shape, generator=generator)


def truths(*shape: int) -> Tensor:
    """Both truths, unevenly."""
    return f32(*shape) > 0.2
