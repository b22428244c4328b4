"""Cases of op tests: a node, its attributes and inputs. test_ops.py checks each of them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """One node on given inputs. `fails` is a pattern of the error's text when it must not run."""

    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int | None = None  # of the op's domain; the newest when None
    outputs: int = 1
    ulps: float = 4  # units in the last place of the output type, relative to the largest value
    oracle: str = (
        "auto"  # auto: onnxruntime, else onnx's reference; or one of onnxruntime, onnx, none
    )
    expect: tuple[Any, ...] | None = None  # known results, where no oracle is to be trusted
    fails: str | None = None
    why: str = ""  # the reason for a loose tolerance or a missing oracle

    def __str__(self) -> str:
        shapes = "-".join(_shown(x) for x in self.inputs)
        attrs = "-".join(f"{k}{_brief(v)}" for k, v in self.attrs.items())
        return "-".join(
            s for s in (self.op, shapes, attrs, f"v{self.opset}" if self.opset else "") if s
        )


def _shown(x: Any) -> str:
    if isinstance(x, np.ndarray):
        return f"{x.dtype}" + ("_" + "x".join(map(str, x.shape)) if x.shape else "")
    return "none" if x is None else type(x).__name__


def _brief(value: Any) -> str:
    return "".join(c for c in str(value) if c.isalnum() or c in "._")[:16]


def case(op: str, *inputs: Any, **options: Any) -> Case:
    """A case that runs.

    Options that are fields of Case (domain, opset, outputs, ulps, oracle, expect, why) set them;
    all others are attributes of the node. An attribute with such a name goes into `attrs={...}`.
    """
    named = {
        k: options.pop(k)
        for k in ("domain", "opset", "outputs", "ulps", "oracle", "expect", "why")
        if k in options
    }
    return Case(op, inputs, {**options.pop("attrs", {}), **options}, **named)


def fails(op: str, *inputs: Any, match: str, **options: Any) -> Case:
    """A case that must be refused with an error whose text matches."""
    c = case(op, *inputs, **options)
    return Case(c.op, c.inputs, c.attrs, c.domain, c.opset, c.outputs, fails=match)


def ms(op: str, *inputs: Any, **options: Any) -> Case:
    """A case of com.microsoft that runs."""
    return case(op, *inputs, domain="com.microsoft", **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Case:
    """A case of com.microsoft that must be refused."""
    return fails(op, *inputs, match=match, domain="com.microsoft", **options)


def _random(dtype: Any, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(sum(shape) * 31 + len(shape))
    return rng.standard_normal(shape).astype(dtype)


def f32(*shape: int) -> Array:
    return _random(np.float32, shape)


def f64(*shape: int) -> Array:
    return _random(np.float64, shape)


def f16(*shape: int) -> Array:
    return _random(np.float16, shape)


def bf16(*shape: int) -> Array:
    return _random(ml_dtypes.bfloat16, shape)


def pos(*shape: int) -> Array:
    """Positive float32 numbers, away from zero."""
    return np.abs(f32(*shape)) + np.float32(0.1)


def ints(dtype: Any, *shape: int, low: int = -9, high: int = 9) -> Array:
    rng = np.random.default_rng(sum(shape) * 17 + len(shape))
    low = max(low, 0) if np.dtype(dtype).kind in "ub" else low
    return rng.integers(low, high, shape).astype(dtype)


def codes(dtype: Any, *shape: int) -> Array:
    """Elements over the whole range of an 8-bit type."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(sum(shape) * 13 + len(shape))
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def zero(number: int, dtype: Any = np.uint8) -> Array:
    """A zero point."""
    return of(number, dtype)


def i64(*shape: int, low: int = -9, high: int = 9) -> Array:
    return ints(np.int64, *shape, low=low, high=high)


def of(values: Any, dtype: Any = np.float32) -> Array:
    """Given values: edges, indices, sizes."""
    return np.array(values, dtype)


def bools(*shape: int) -> Array:
    return _random(np.float32, shape) > 0


def case_names() -> list[str]:
    """The names of the modules of tests/cases, whose folders are the families of ops."""
    from tests import cases  # its modules are made of what is above

    found = pkgutil.walk_packages(cases.__path__, "tests.cases.")
    return [module.name for module in found if not module.ispkg]


def case_modules() -> Iterator[ModuleType]:
    """The modules of tests/cases."""
    return map(importlib.import_module, case_names())


@functools.cache
def all_cases() -> list[Case]:
    """The cases of every module in tests/cases."""
    return [case for module in case_modules() for case in module.CASES]
