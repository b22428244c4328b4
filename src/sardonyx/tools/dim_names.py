"""Names of symbolic sizes in value_info: declared names, formulas over them, and new names."""

from __future__ import annotations

import functools
import operator
from typing import Final

import onnx

from sardonyx.graph.dim import (
    CALLS,
    Atom,
    Dim,
    Size,
    lone_name,
    substitute,
    symbol,
    symbols,
)
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph


class DimNames:
    """Names of sizes: those that the model declares, formulas over them, and new names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._declared: dict[str, Size] = {}  # by the symbol of inference
        self._new: dict[str, Size] = {}
        self._plain: dict[Size, str] = {}  # names that are no identifiers are quoted in formulas

    def declare(self, record: onnx.GraphProto, graph: Graph) -> None:
        """Take over the names of dims that the inputs of a model have."""
        shapes = {i.name: i.type.tensor_type.shape.dim for i in record.input}
        for value in graph.inputs:
            fact = value.fact
            if not isinstance(fact, Fact) or fact.shape is None or value.name not in shapes:
                continue
            for size, dim in zip(fact.shape, shapes[value.name], strict=False):
                name = lone_name(size)
                if name is not None and dim.dim_param:
                    self._declared[name] = symbol(dim.dim_param)
                    self._plain[symbol(dim.dim_param)] = dim.dim_param

    def shown(self, size: Size) -> int | str:
        """Return a number, a declared name, or a formula over names."""
        size = for_large_symbols(substitute(size, self._declared))
        if isinstance(size, int):
            return size
        for name in sorted(symbols(size)):
            if "#" in name and name not in self._new:
                self._new[name] = symbol(f"{self._prefix}unk__{len(self._new)}")
        size = substitute(size, self._new)
        return self._plain.get(size) or str(size)


def for_large_symbols(size: Size) -> Size:
    """Return a size for symbols that are larger than all numbers in the formula.

    onnxruntime's tool assumes this of every symbolic dim: x[-10:] of a dim M has 10 elements.
    """
    if isinstance(size, int):
        return size
    terms = (
        functools.reduce(operator.mul, map(_for_large, monomial), factor)
        for monomial, factor in size.terms.items()
    )
    return sum(terms, start=0)


def _for_large(atom: Atom) -> Size:
    if atom.kind not in _BOUNDS:
        return Dim({(atom,): 1})
    a, b = map(for_large_symbols, atom.args)
    difference = a - b
    if isinstance(difference, int):
        is_first = difference > 0
    else:
        degree = max(map(len, difference.terms))
        signs = {f > 0 for m, f in difference.terms.items() if len(m) == degree}
        if len(signs) != 1 or any(x.kind != "name" for m in difference.terms for x in m):
            return CALLS[atom.kind](a, b)
        is_first = signs.pop()
    return a if is_first == (atom.kind == "max") else b


_BOUNDS: Final = ("min", "max")
