"""Nodes made of the cases of the op tests, so that graphs contain every op that has a case."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
from onnx import NodeProto

from tests.op_cases import Case, case_names
from tests.oracle import NEWEST, attribute_of, opset_of
from tests.random_graphs import schema
from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.value import Value, name_of

EPS = {"float": 2**-23, "double": 2**-52, "float16": 2**-10, "bfloat16": 2**-7}
MAX_INPUT = 5000  # elements
DOMAINS = ("", "", "", schema.ML, schema.MICROSOFT, schema.MICROSOFT, *schema.PREVIEWS)


@functools.cache
def cases() -> dict[tuple[str, str], list[Case]]:
    """The cases that run, by op."""
    found: dict[tuple[str, str], list[Case]] = {}
    for name in case_names():
        try:
            listed = importlib.import_module(name).CASES
        except ModuleNotFoundError as error:
            if error.name != "PIL":  # which makes images, and may be left out
                raise
            continue
        for case in listed:
            is_large = any(getattr(x, "size", 0) > MAX_INPUT for x in case.inputs)
            if case.fails is None and not is_large:
                found.setdefault((case.domain, case.op), []).append(case)
    return found


@functools.cache
def _fitting(opsets: tuple[tuple[str, int], ...], by_onnxruntime: bool) -> dict[str, Any]:
    """Lists of cases that mean something in the opsets: by domain, and there by op."""
    found: dict[str, dict[str, list[Case]]] = {}
    for (domain, op), listed in cases().items():
        fits = [c for c in listed if _fits(c, dict(opsets), by_onnxruntime)]
        if fits:
            found.setdefault(domain, {})[op] = fits
    return found


def from_case(b: Builder) -> None:
    """A node as some case has it, on values at hand where they fit."""
    by_domain = _fitting(tuple(b.opsets.items()), b.traits.by_onnxruntime)
    domain = b.rng.choice([d for d in DOMAINS if d in by_domain])
    op = b.rng.choice(list(by_domain[domain]))
    case = b.rng.choice(by_domain[domain][op])
    b.root.is_alone |= _is_alone(case)
    # The capacity of a cache does not matter as long as the cache is empty.
    may_change = "Attention" not in op
    inputs = [None if x is None else _input(b, x, may_change) for x in case.inputs]
    node = NodeProto(op_type=op, domain=domain)
    node.input.extend("" if v is None else v.name for v in inputs)
    while node.input and not node.input[-1]:
        del node.input[-1]
    node.output.extend(b.name() for _ in range(case.outputs))
    node.attribute.extend(attribute_of(case, k, v) for k, v in case.attrs.items() if v is not None)
    for made in b.add(node):
        b.root.loose[made.name] = case.ulps * EPS.get(made.dtype, 0.0)


def _is_alone(case: Case) -> bool:
    """Whether the case says, with its reason, that onnxruntime is not to be asked."""
    return case.expect is not None or case.oracle not in ("auto", "onnxruntime")


def _fits(case: Case, opsets: dict[str, int], by_onnxruntime: bool) -> bool:
    """Whether a case means something in the opsets: its op has the same parts there."""
    opset = opsets.get(case.domain)
    if opset is None or (by_onnxruntime and _is_alone(case)):
        return False
    if case.domain == schema.MICROSOFT:
        return True
    here = schema.schema(case.domain, case.op, opset)
    there = schema.schema(case.domain, case.op, min(opset_of(case), NEWEST[case.domain]))
    if here is None or there is None:
        return False
    return bool(_parts(here) == _parts(there))


def _parts(known: Any) -> Any:
    return [i.name for i in known.inputs], {n: str(a.type) for n, a in known.attributes.items()}


def _input(b: Builder, x: Any, may_change: bool) -> Value:
    """The case's own values, or others of the same type and shape."""
    if not isinstance(x, np.ndarray):
        return b.given(x)
    array = x.astype(object) if x.dtype.kind in "US" else x
    dtype = name_of(array)
    if not dtype:
        raise Unfit(f"no {x.dtype} in graphs")
    if may_change and dtype.startswith("float") and array.size > 1 and b.rng.random() < 0.3:
        found = b.among([dtype], lambda v: v.shape == array.shape)
        if found is not None:
            return found
    if may_change and dtype == "float" and array.ndim > 1 and b.rng.random() < 0.25:
        array = b.numbers.permutation(array.reshape(-1)).reshape(array.shape)
    return b.given(array)
