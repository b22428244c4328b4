"""Quantized lookup tables by their kernel, on every ISA, read as constants are stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered
from tests.cases.nbits.blockwise import TABLES
from tests.op_cases import Case, case, f32, ints, of
from tests.oracle import feeds_of
from tests.test_kernels import check_kernels, graph_of

GOOD = [case for case in TABLES if case.fails is None and str(case.inputs[0].dtype)[:5] != "float"]


def constants(case: Case) -> list[str]:
    """All inputs but the indices."""
    is_table = case.op == "GatherBlockQuantized"
    return [name for name in feeds_of(case) if not is_table or name != "x1"]


def is_native(case: Case) -> bool:
    graph = graph_of(case, constants(case))
    assert graph is not None
    return not any(isinstance(lowered(node), No) for node in graph.nodes)


@pytest.mark.parametrize("case", GOOD, ids=str)
def test_lookup_tables(case: Case) -> None:
    assert is_native(case)
    check_kernels(case, constants(case))


def steps(dtype: Any, *shape: int) -> Any:
    low, high = {"uint4": (0, 16), "int4": (-8, 8), "uint2": (0, 4), "int2": (-2, 2)}[dtype]
    return ints(np.int8, *shape, low=low, high=high).astype(getattr(ml_dtypes, dtype))


def weights(
    dtype: str, shape: tuple[int, ...], scales: tuple[int, ...], zero: bool = True, **options: Any
) -> Case:
    real = options.pop("real", np.float32)
    point = (steps(dtype, *scales),) if zero else ()
    return case(
        "DequantizeLinear", steps(dtype, *shape), f32(*scales).astype(real), *point, **options
    )


WEIGHTS = [
    *(
        weights(dtype, (5, 33), (5, 3), axis=1, block_size=16, zero=zero)
        for dtype in ("uint4", "int4", "uint2", "int2")
        for zero in (False, True)
    ),
    weights("int4", (33, 5), (3, 5), axis=0, block_size=16),
    weights("int4", (33, 5), (33,), axis=0),
    weights("uint4", (33, 5), (5,), axis=1),
    weights("int4", (5, 4, 3, 3), (5,), axis=0),
    weights("uint2", (3, 5, 7), ()),
    weights("uint4", (2100,), (132,), axis=0, block_size=16),
    weights("uint4", (2, 2100), (2, 1), axis=1, block_size=4096),
    weights("int4", (3, 0), (3, 0), axis=1, block_size=16),
    weights("uint4", (5, 33), (5, 3), axis=1, block_size=16, real=np.float16),
    weights("int2", (5, 33), (5, 3), axis=1, block_size=16, real=ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_weights(case: Case) -> None:
    assert is_native(case)
    check_kernels(case, constants(case))


def test_numbers_that_are_not_finite() -> None:
    c = case(
        "DequantizeLinear", steps("uint4", 4, 16), of([[np.inf], [np.nan], [-0.0], [1e38]]),
        axis=1, block_size=16,
    )  # fmt: skip
    check_kernels(c, constants(c))
