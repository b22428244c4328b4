"""Quantize and dequantize kernels: every code of every type, and ties between two codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import F32, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.ops.builder import Builder
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.cases.quantize.standard import FLOAT8, SMALL
from tests.kernels import run_call
from tests.native.test_qgemm import check
from tests.op_cases import case, of


def halfway(dtype: Any) -> Any:
    """The numbers of a type, those half way between two, and their neighbours."""
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(every[np.isfinite(every)])
    middle = (numbers[1:] + numbers[:-1]) / 2
    infinity = np.float32(np.inf)
    ends = of([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 1e-42, 500, -500, 1e5])
    around = np.nextafter(middle, infinity), np.nextafter(middle, -infinity)
    return np.concatenate([numbers, middle, *around, ends])


@pytest.mark.parametrize("dtype", FLOAT8)
def test_floats_are_rounded_to_even_codes(dtype: Any) -> None:
    values = halfway(dtype)
    assert check(case("QuantizeLinear", values, of(1), of(0, dtype))).kernel == "quantize"
    check(case("QuantizeLinear", values * 3, np.full(values.size, 3, np.float32),
               np.zeros(values.size, dtype), axis=0))  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("has_zero", [False, True])
def test_negative_zero_keeps_its_sign(dtype: Any, has_zero: bool) -> None:
    """As in onnxruntime; formats without -0 have one zero."""
    graph = Graph()
    build = Builder(graph, graph.scope)
    values = np.array([-0.0, 0.0, -1e-30] * 11, np.float32)
    x, scale = Value("x", Fact(F32, values.shape)), build.const(of(1))
    code = by_numpy(np.dtype(dtype))
    assert code is not None
    if has_zero:
        y = build.QuantizeLinear(x, scale, build.const(of(0, dtype)))
    else:
        y = build.QuantizeLinear(x, scale, output_dtype=code.onnx)
    assert y.node is not None
    negative = 0 if "fnuz" in np.dtype(dtype).name else 128
    (expected,) = y.node.op.run(
        [values, of(1), *([of(0, dtype)] if has_zero else [])], y.node.attrs
    )
    assert expected.view(np.uint8).tolist() == [negative, 0, negative] * 11
    call = lowered(y.node)
    assert isinstance(call, Call)
    for isa in native.isas:
        (found,) = run_call(call, y.node, {x: values}, {}, isa)
        assert found.tobytes() == expected.tobytes(), isa


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_is_read(dtype: Any) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype)
    assert check(case("DequantizeLinear", every, of(0.5), of(0, dtype))).kernel == "dequantize"
    check(case("DequantizeLinear", every.reshape(2, 128), of([0.5, 3]), of([0, 0], dtype), axis=0))


@pytest.mark.parametrize("dtype", SMALL)
def test_narrow_integers(dtype: Any) -> None:
    values = np.linspace(-20, 20, 97, dtype=np.float32)
    for zero in (0, 1):
        assert check(case("QuantizeLinear", values, of(1), of(zero, dtype))).kernel == "quantize"
        codes = (np.arange(50) % 4).astype(np.int8).astype(dtype)
        assert check(case("DequantizeLinear", codes, of(2), of(zero, dtype))).kernel == "dequantize"


@pytest.mark.parametrize("dtype", FLOAT8)
def test_products_of_small_floats_run_natively(dtype: Any) -> None:
    import sardonyx
    from tests.oracle import model_of

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((5, 33)).astype(dtype), rng.standard_normal((33, 18)).astype(dtype)
    zero = of(0, dtype)
    columns = np.linspace(0.5, 2, 18, dtype=np.float32), np.zeros(18, dtype)
    c = case("QLinearMatMul", a, of(1), zero, b, *columns, of(0.25), zero)
    session = sardonyx.InferenceSession(model_of(c, constants=()).SerializeToString())
    assert session._compiled.program.python_steps == 0
