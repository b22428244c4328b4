"""Codes of quantized types by their kernels: every code, and numbers half way between two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cases.quantize.standard import FLOAT8, SMALL
from tests.native.test_qgemm import check
from tests.rows import case, of


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
    row = case("QLinearMatMul", a, of(1), zero, b, *columns, of(0.25), zero)
    session = sardonyx.InferenceSession(model_of(row, constants=()).SerializeToString())
    assert session._compiled.program.python_steps == 0
