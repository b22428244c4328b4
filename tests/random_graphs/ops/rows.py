"""Nodes as the rows of the op tests have them: every op that has a row comes to be in a graph."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

import numpy as np
from onnx import NodeProto

from tests import cases
from tests.oracle import NEWEST, attribute_of, opset_of
from tests.random_graphs import schema
from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.value import Value, name_of
from tests.rows import Row

MAX_INPUT = 5000  # elements


@functools.cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """The rows that run, by op."""
    found: dict[tuple[str, str], list[Row]] = {}
    for module in pkgutil.iter_modules(cases.__path__):
        for row in importlib.import_module(f"tests.cases.{module.name}").CASES:
            if row.fails is None and not any(getattr(x, "size", 0) > MAX_INPUT for x in row.inputs):
                found.setdefault((row.domain, row.op), []).append(row)
    return found


def from_row(b: Builder, domain: str, op: str) -> None:
    """A node of an op as one of its rows has it, on values at hand where some fit."""
    fits = [r for r in rows()[domain, op] if _fits(r, b)]
    if not fits:
        raise Unfit(f"{op} has no row for opset {b.opsets.get(domain)}")
    row = b.rng.choice(fits)
    b.root.is_alone |= _is_alone(row)
    inputs = [None if x is None else _input(b, x) for x in row.inputs]
    node = NodeProto(op_type=op, domain=domain)
    node.input.extend("" if v is None else v.name for v in inputs)
    while node.input and not node.input[-1]:
        del node.input[-1]
    node.output.extend(b.name() for _ in range(row.outputs))
    node.attribute.extend(attribute_of(row, k, v) for k, v in row.attrs.items() if v is not None)
    b.add(node)


def _is_alone(row: Row) -> bool:
    """Whether the row says, with its reason, that onnxruntime is not to be asked."""
    return row.expect is not None or row.oracle not in ("auto", "onnxruntime")


def _fits(row: Row, b: Builder) -> bool:
    """Whether a row means something in the graph's opset: its op has the same parts there."""
    opset = b.opsets.get(row.domain)
    if opset is None or (b.traits.by_onnxruntime and _is_alone(row)):
        return False
    if row.domain == schema.MICROSOFT:
        return True
    here = schema.schema(row.domain, row.op, opset)
    there = schema.schema(row.domain, row.op, min(opset_of(row), NEWEST[row.domain]))
    if here is None or there is None:
        return False
    return bool(_parts(here) == _parts(there))


def _parts(known: Any) -> Any:
    return [i.name for i in known.inputs], {n: str(a.type) for n, a in known.attributes.items()}


def _input(b: Builder, x: Any) -> Value:
    """The row's own values, or others of the same type and shape."""
    if not isinstance(x, np.ndarray):
        return b.given(x)
    array = x.astype(object) if x.dtype.kind in "US" else x
    dtype = name_of(array)
    if not dtype:
        raise Unfit(f"no {x.dtype} in graphs")
    if dtype.startswith("float") and array.size > 1 and b.rng.random() < 0.3:
        found = b.among([dtype], lambda v: v.shape == array.shape)
        if found is not None:
            return found
    style = "initializer" if array.dtype.kind == "V" else ""
    return b.given(array, style)
