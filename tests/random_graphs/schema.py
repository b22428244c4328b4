"""Schemas of ops by version, and the types for which onnxruntime has kernels."""

from __future__ import annotations

import functools
from typing import Any

import onnx.defs
from onnxruntime.capi import onnxruntime_pybind11_state as ort  # type: ignore[import-untyped]

from tests.random_graphs.value import DTYPES

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
PREVIEWS = ("ai.onnx.preview", "ai.onnx.preview.training")


@functools.cache
def schema(domain: str, op: str, opset: int) -> Any:
    """The schema of an op as of an opset, or None where there is none."""
    if domain == MICROSOFT:
        return _microsoft().get(op)
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


@functools.cache
def _microsoft() -> dict[str, Any]:
    found = ort.get_all_operator_schema()
    return {s.name: s for s in found if s.domain == MICROSOFT}


@functools.cache
def _kernels() -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for kernel in ort.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            found.setdefault((kernel.domain, kernel.op_name), []).append(kernel)
    return found


def ops_of_onnxruntime() -> set[tuple[str, str]]:
    """Every op that onnxruntime has a kernel for on CPU."""
    return set(_kernels())


@functools.cache
def types(domain: str, op: str, opset: int, letter: str, by_onnxruntime: bool) -> tuple[str, ...]:
    """The element types that a type variable of an op may stand for."""
    known = schema(domain, op, opset)
    if known is None:
        return ()
    rows = [c for c in known.type_constraints if c.type_param_str == letter]
    names = [t for row in rows for t in row.allowed_type_strs]
    allowed = [n[7:-1] for n in names if n.startswith("tensor(") and n[7:-1] in DTYPES]
    if by_onnxruntime:
        kernels = [
            k.type_constraints.get(letter)
            for k in _kernels().get((domain, op), ())
            if k.version_range[0] <= opset <= k.version_range[1]
        ]
        if kernels and all(k is not None for k in kernels):
            has = {t[7:-1] for k in kernels for t in k}
            has |= {"float16"} if "float" in has else set()  # it casts around what it lacks
            allowed = [t for t in allowed if t in has]
    return tuple(allowed)
