"""Memory analysis of one training step of a PyTorch module, which is run once."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.records import frozen
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.train.wrap import report, wrap

if TYPE_CHECKING:
    import torch

    from sardonyx.dynamo.step_memory import StepMemory

_NAME: Final = "sardonyx_script"  # of the script's module: unlike any that it imports
_RETURNS: Final = "(module, inputs) or (module, inputs, loss function)"


@frozen
class Example:
    """A module, a call of it, and what to minimize."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], torch.Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors in the call, by keyword or position."""
        named = {**{f"argument {i}": a for i, a in enumerate(self.args)}, **self.kwargs}
        return {name: tuple(a.shape) for name, a in named.items() if hasattr(a, "shape")}


def load_example(script: str, function: str) -> Example:
    """Call a function of a Python file; see `Example` and `read_example` for what it returns."""
    where = f"{script}:{function}"
    with _reporting(script, f"running {script}"):
        module = _imported(script)
    make = getattr(module, function, None)
    if not callable(make):
        known = [n for n, v in vars(module).items() if callable(v) and _is_own(v, module)]
        raise InvalidArgument(
            f"{script} has no function {function}; it has {', '.join(known) or 'none'}"
        )
    with _reporting(script, f"calling {function}"):
        made = make()
    return read_example(made, where)


def read_example(made: Any, where: str) -> Example:
    """Return what a function made as an example.

    Inputs are a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.
    Without a loss function, the loss is the result's `loss`, or the sum of its elements.
    """
    import torch

    parts = made if isinstance(made, (tuple, list)) else (made,)
    if not 2 <= len(parts) <= 3 or not isinstance(parts[0], torch.nn.Module):
        found = ", ".join(type(p).__name__ for p in parts)
        raise InvalidArgument(f"{where} must return {_RETURNS}, not ({found})")
    module, inputs, loss = (*parts, _loss)[:3]
    if not callable(loss):
        kind = type(loss).__name__
        raise InvalidArgument(f"the third value of {where} must be a loss function, got {kind}")
    if isinstance(inputs, Mapping):
        return Example(module, (), dict(inputs), loss)
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return Example(module, args, {}, loss)


def step_memory(example: Example, memory_budget: float | None) -> StepMemory:
    """Run one training step of the wrapped module, and return where its memory goes."""
    module = wrap(example.module, memory_budget=memory_budget)
    module.zero_grad()
    try:
        loss = example.loss(module(*example.args, **example.kwargs))
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise Fail(f"the training step fails: {type(error).__name__}: {error}") from error
    memory = report(module).step_memory()
    if not memory.graphs:
        raise Fail(
            "the graphs of the training step do not run in one session each, so that its memory "
            "has no plan",
            report=str(report(module)),
        )
    return memory


def _loss(result: Any) -> torch.Tensor:
    """Return the result's `loss`, or the sum of all elements of its tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    sums = [t.sum() for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not sums:
        raise ValueError("no result of the module requires a gradient")
    return torch.stack(sums).sum()


def _imported(script: str) -> ModuleType:
    """Return a Python file as a module, with its folder importable as for a script."""
    spec = importlib.util.spec_from_file_location(_NAME, script)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    sys.modules[_NAME] = module  # classes of the module are looked up there
    spec.loader.exec_module(module)
    return module


def _is_own(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not isinstance(value, type)


@contextmanager
def _reporting(script: str, doing: str) -> Iterator[None]:
    """Report what the user's code raises, with its line in the script."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames: Sequence[Any] = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == os.path.abspath(script)]
        at = {"line": f"{script}:{lines[-1]}"} if lines else {}
        raise Fail(f"{doing} raises {type(error).__name__}: {error}", **at) from error
