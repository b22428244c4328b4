"""Cases of MatMulNBits and GatherBlockQuantized."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.op_cases import Array, Case, bf16, case, f16, f32, fails, i64, ints, of

DOMAIN = "com.microsoft"


def packed(*shape: int) -> Array:
    """Bytes over their whole range."""
    return ints(np.uint8, *shape, low=0, high=256)


def inputs(x: Any, n: int, bits: int, block: int, zero: str = "") -> tuple[Any, ...]:
    """x, weights for its rows, their scales, and zero points of a kind."""
    blocks = -(-x.shape[-1] // block)
    scales = (np.abs(f32(n, blocks)) * 0.1 + 0.01).astype(x.dtype)
    points = {
        "": None,
        "packed": packed(n, -(-blocks * bits // 8)),
        "flat": packed(n, -(-blocks * bits // 8)).reshape(-1),
        "real": f32(n, blocks).astype(x.dtype),
    }
    weights = packed(n, blocks, block * bits // 8)
    return x, weights, scales.reshape(-1) if zero == "flat" else scales, points[zero]


def product(x: Any, n: int, bits: int = 4, block: int = 32, zero: str = "", **options: Any) -> Case:
    """A product of x with n columns of weights."""
    more = options.pop("more", ())
    ulps = options.pop("ulps", 64)
    return case(
        "MatMulNBits",
        *inputs(x, n, bits, block, zero),
        *more,
        domain=DOMAIN,
        attrs={"K": x.shape[-1], "N": n, "bits": bits, "block_size": block},
        ulps=ulps,
        why="sums of long rows, in another order",
        **options,
    )


def wrong(match: str, swap: dict[int, Any] | None = None, **attrs: Any) -> Case:
    """A product of [3,64] and 5 columns with something changed."""
    given = [*inputs(f32(3, 64), 5, 4, 32, "packed"), None, f32(5)]
    for slot, value in (swap or {}).items():
        given[slot] = value
    plain = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    return fails("MatMulNBits", *given, domain=DOMAIN, attrs={**plain, **attrs}, match=match)


PRODUCTS = [
    *(
        product(f32(3, 64), 5, bits, 32, zero)
        for bits in (2, 4, 8)
        for zero in ("", "packed", "flat")
    ),
    product(f32(3, 64), 5, 4, 32, "real"),
    *(product(f32(3, 64), 5, bits, 32, "real", oracle="none") for bits in (2, 8)),
    *(product(f32(2, k), 7, 4, 16, "packed") for k in (1, 15, 16, 17, 40, 70, 96)),
    *(product(f32(1, 2 * b), 3, 4, b, "packed") for b in (16, 64, 128, 256)),
    product(f32(1, 40), 3, 2, 16, "packed"),
    product(f32(1, 40), 3, 8, 16, "packed"),
    product(f32(64), 5),
    product(f32(2, 3, 64), 33, zero="packed"),
    product(f32(0, 64), 5),
    product(f32(2, 32), 1),
    product(f32(3, 64), 600, zero="packed"),
    *(product(f32(3, 64), 5, zero="packed", accuracy_level=level) for level in (1, 2, 3)),
    product(f32(3, 64), 5, more=(None, f32(5))),
    product(f32(3, 64), 5, more=(ints(np.int32, 64, low=0, high=2),)),
    product(f32(3, 64), 5, zero="real", more=(ints(np.int32, 64, low=0, high=2), f32(5))),
    # With g_idx, onnxruntime takes packed zero points for absent.
    product(f32(3, 64), 5, zero="packed", more=(ints(np.int32, 64, low=0, high=2),), oracle="none"),
    product(f16(3, 64), 5, zero="packed", ulps=8),
    product(bf16(3, 64), 5, zero="packed", oracle="none"),
    product(of([[np.nan] + [1.0] * 31, [np.inf] + [0.0] * 31]), 5, oracle="none"),
    wrong("bits must be .*got 3", bits=3),
    wrong("block_size must be .*got 24", block_size=24),
    wrong("block_size must be .*got 8", block_size=8),
    wrong("got 0 and", K=0),
    wrong("accuracy_level must be .*got 5", accuracy_level=5),
    wrong("CUDA weight layout", weight_prepacked=1),
    wrong("last dim of A", {0: f32(3, 63)}),
    wrong("got the scalar", {0: of(1.0)}),
    wrong("B must have shape", {1: packed(5, 2, 15)}),
    wrong("B must have shape", {1: packed(5, 32)}),
    wrong("scales must have shape", {2: f32(5, 3)}),
    wrong("scales must have shape", {2: f32(9)}),
    wrong("zero_points must have shape", {3: packed(5, 2)}),
    wrong("zero_points must have shape", {3: f32(5, 1)}),
    wrong("g_idx must be", {4: ints(np.int32, 63, low=0, high=2)}),
    wrong("g_idx must be", {4: ints(np.int32, 64, low=2, high=4)}),
    wrong("bias must have shape", {5: f32(4)}),
]


def table(kind: str, *shape: int) -> Array:
    """A table of these sizes in numbers of one kind."""
    if kind == "u4":
        return ints(np.uint8, *shape, low=0, high=16).astype(ml_dtypes.uint4)
    if kind == "i4":
        return ints(np.int8, *shape, low=-8, high=8).astype(ml_dtypes.int4)
    if kind == "f8":
        return f32(*shape).astype(ml_dtypes.float8_e4m3fn)
    return packed(*shape[:-1], shape[-1] * int(kind[2:]) // 8)


def lookup(
    kind: str,
    shape: tuple[int, ...] = (6, 40),
    axes: tuple[int, int] = (0, 1),
    zero: bool = False,
    **options: Any,
) -> Case:
    """Rows read from a table in blocks of 16; a kind of bytes is "u8" and the bits."""
    axis, at = axes
    bits = int(kind[2:]) if kind.startswith("u8") else 4
    scales = [*shape]
    scales[at] = -(-shape[at] // 16)
    points = [*scales]
    if kind.startswith("u8"):
        points[-1] = -(-points[-1] * bits // 8)
    given = packed(*points) if kind.startswith("u8") else table(kind, *points)
    real = options.pop("real", np.float32)
    indices = options.pop("indices", of([[0, -1, 3], [2, 2, -6]], np.int64))
    return case(
        "GatherBlockQuantized",
        table(kind, *shape),
        indices,
        f32(*scales).astype(real),
        given if zero else None,
        domain=DOMAIN,
        attrs={"bits": bits, "block_size": 16, "gather_axis": axis, "quantize_axis": at},
        **options,
    )


def bad(match: str, data: Array, scales: Array, zero: Array | None = None, **attrs: Any) -> Case:
    plain = {"block_size": 16}
    indices = of([0], np.int64)
    return fails(
        "GatherBlockQuantized", data, indices, scales, zero, domain=DOMAIN,
        attrs={**plain, **attrs}, match=match,
    )  # fmt: skip


TABLES = [
    *(lookup(kind, zero=zero) for kind in ("u4", "i4", "u82", "u84", "u88") for zero in (0, 1)),
    lookup("u4", axes=(0, 0), zero=True, shape=(40, 6)),
    lookup("u4", axes=(1, 0), zero=True),
    lookup("i4", axes=(1, 1)),
    lookup("u4", (3, 5, 33), (1, 2), indices=i64(4, low=-5, high=5)),
    lookup("i4", (3, 33, 5), (2, 1), zero=True, indices=i64(4, low=-5, high=5)),
    lookup("u84", (6, 3, 32), (0, 2), zero=True),
    lookup("u4", indices=of(1, np.int32)),
    lookup("u4", indices=np.zeros((0, 2), np.int64)),
    lookup("u84", indices=of([7, -7, 1], np.int64), zero=True),
    lookup("u4", real=np.float16),
    lookup("u84", real=ml_dtypes.bfloat16, oracle="none"),
    lookup("f8", oracle="none"),
    bad("bits must be .*got 3", packed(4, 16), f32(4, 2), bits=3),
    bad("block_size must be .*got 12", packed(4, 16), f32(4, 2), block_size=12),
    bad("gather_axis 2 is outside", packed(4, 16), f32(4, 2), gather_axis=2),
    bad("read along axis 0", packed(16, 16), f32(1, 32), quantize_axis=0),
    bad("bits is 8", table("u4", 4, 32), f32(4, 2), bits=8),
    bad("needs two axes", packed(16), f32(2), quantize_axis=0),
    bad("rank of data", packed(4, 16), f32(8)),
    bad("one number per block of 16 along axis 1", packed(4, 16), f32(4, 3)),
    bad("zero_points must have shape", packed(4, 16), f32(4, 2), packed(4, 2)),
    bad("need integer data", table("f8", 4, 32), f32(4, 2), table("f8", 4, 2)),
]

CASES = [*PRODUCTS, *TABLES]
