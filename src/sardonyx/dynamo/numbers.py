"""Numbers of a graph that depend on the sizes of a run, as Python formulas over its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._sympy.printers import PythonPrinter

from sardonyx.base.records import frozen
from sardonyx.dynamo.aten_builder import expression_of

# By the name of a symbol: the argument that has it, and the axis; None for an argument of its own.
Symbols = Mapping[str, tuple[int, int | None]]

_KINDS: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool}
_GLOBALS: Final = {"math": math, "torch": torch}


@frozen
class Formula:
    """A number that is computed from the sizes and numbers of a run."""

    kind: str  # a key of `_KINDS`
    text: str  # a Python expression over symbols


def formula_of(d: Any) -> Any:
    """Return a symbolic number as a formula, and any other value unchanged."""
    if not isinstance(d, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return d
    if isinstance(d, torch.SymInt) and isinstance(known := expression_of(d), int):
        return known
    kind = {torch.SymFloat: "float", torch.SymBool: "bool"}.get(type(d), "int")
    return Formula(kind, PythonPrinter().doprint(d.node.expr))


def symbols_of(arguments: Sequence[Any]) -> Symbols:
    """Return where the fake arguments of a graph have the symbols of its sizes."""
    found: dict[str, tuple[int, int | None]] = {}
    for index, fake in enumerate(arguments):
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            found.setdefault(str(fake.node.expr), (index, None))
        elif isinstance(fake, torch.Tensor):
            for axis, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(size.node.expr), (index, axis))
    return found


def number_function(number: Any, symbols: Symbols) -> Callable[[list[Any]], Any]:
    """Return a function from the arguments of a run to the value of a formula or a number."""
    if not isinstance(number, Formula):
        return lambda _: number
    kind = _KINDS[number.kind]
    code = compile(number.text, "<size>", "eval")
    where = {name: symbols[name] for name in code.co_names if name in symbols}

    def evaluate(args: list[Any]) -> Any:
        values = {
            name: args[index] if axis is None else int(args[index].shape[axis])
            for name, (index, axis) in where.items()
        }
        return kind(eval(code, _GLOBALS, values))

    return evaluate
