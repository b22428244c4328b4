"""The attention kernel alone: odd sizes, masks, strides, on every ISA, for any split."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.ops.attention.fused import attention
from sardonyx.providers.cpu.attention import FLAGS
from tests.kernels import SPLITS, guarded, tensor, untouched

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(
    inputs: list[Array | None], isa: str, splits: int, is_over: bool = False, **attrs: Any
) -> Array:
    """Run the kernel; with `is_over`, its output is written over the queries."""
    q, v = inputs[0], inputs[2]
    assert q is not None
    assert v is not None
    lead = q.shape[:-2] if attrs["group"] > 1 else np.broadcast_shapes(q.shape[:-2], v.shape[:-2])
    shape = [*lead, q.shape[-2], v.shape[-1]]
    if attrs["rows_first"]:
        shape[-3], shape[-2] = shape[-2], shape[-3]
    out, whole = guarded(tuple(shape), q.dtype)
    if is_over:
        place = out.swapaxes(-2, -3) if attrs["rows_first"] else out
        place[...] = q
        inputs = [place, *inputs[1:]]
    ints = [attrs[name] for name in FLAGS]
    given = [tensor(a) for a in inputs]
    floats = [attrs["scale"], attrs["softcap"]]
    kernel = "attention_bf16" if attrs["bf16"] else "attention"
    error = native.call(kernel, given, [tensor(out)], ints, floats, splits, isa)
    assert not error, error
    assert untouched(whole, out)
    return out


def check(*inputs: Array | None, scale: float = 0.3, **given: Any) -> None:
    """Compare the kernel with the reference in float64; any split must give equal bytes."""
    attrs = {**attention.defaults, "scale": scale, **given}
    # What keys are weighed with is rounded to bf16 before it is known what they add up to.
    error = (1e-2, 8e-3) if attrs["bf16"] else (2e-5, 2e-6)
    operands = [*inputs, *[None] * (6 - len(inputs))]
    wide = [a if a is None or a.dtype != np.float32 else a.astype(np.float64) for a in operands]
    want = attention.run(wide, {**attrs, "scale": np.float64(np.float32(scale))})[0]
    for isa in native.isas:
        found = [run(operands, isa, splits, **attrs) for splits in SPLITS]
        if fits_queries(operands, attrs):
            found += [run(operands, isa, splits, True, **attrs) for splits in SPLITS]
        assert all(f.tobytes() == found[0].tobytes() for f in found), isa
        np.testing.assert_allclose(found[0], want, *error, err_msg=isa)


def fits_queries(operands: list[Array | None], attrs: dict[str, Any]) -> bool:
    """Whether the result has the shape of the queries."""
    q, k, v = operands[:3]
    assert q is not None
    assert k is not None
    assert v is not None
    lead = q.shape[:-2]
    is_alone = attrs["group"] > 1 or np.broadcast_shapes(lead, k.shape[:-2]) == lead
    return is_alone and q.shape[-1] == v.shape[-1]


OPEN = {k: v for k, v in attention.defaults.items() if k != "bf16"}
SIZES = (  # rows, keys, depth, width
    (1, 1, 1, 1),
    (1, 5, 64, 64),
    (1, 1031, 64, 64),
    (3, 17, 33, 100),
    (4, 1, 3, 2),
    (5, 7, 8, 65),
    (13, 32, 64, 64),
    (49, 49, 32, 32),
    (150, 33, 16, 31),
    (128, 128, 64, 64),
    (64, 513, 300, 48),
    (37, 1500, 24, 40),
)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bf16", [0, 1])
def test_sizes(sizes: tuple[int, ...], masked: bool, bf16: int) -> None:
    rows, keys, depth, width = sizes
    mask = f32(2, 1, rows, keys) if masked else None
    operands = f32(2, 3, rows, depth), f32(2, 3, keys, depth), f32(2, 3, keys, width), mask
    check(*operands, scale=depth**-0.5, bf16=bf16)


@pytest.mark.parametrize("bf16", [0, 1])
def test_empty(bf16: int) -> None:
    for rows, keys, depth, width in ((0, 3, 4, 5), (3, 0, 4, 5), (9, 0, 4, 5), (3, 4, 5, 0)):
        check(f32(2, rows, depth), f32(2, keys, depth), f32(2, keys, width), bf16=bf16)
    check(f32(9, 0), f32(3, 0), f32(3, 4), bf16=bf16)
    check(f32(0, 9, 4), f32(0, 3, 4), f32(0, 3, 4), bf16=bf16)


@pytest.mark.parametrize("rows", [9, 40])
@pytest.mark.parametrize("length", [1, 33, 512, 515, 600])
def test_memory_after_the_last_key_is_not_read(rows: int, length: int) -> None:
    """Memory after the last key, NaN and infinite here, does not reach the result."""
    q, k, v = f32(1, 2, rows, 16), f32(1, 2, 600, 16), f32(1, 2, 600, 8)
    k[:, :, length:], v[:, :, length:] = np.nan, np.inf
    spans = np.array([[length - rows, length]], np.int32)
    ends = run([q, k, v, None, spans, None], "", 1, **OPEN, bf16=1)
    whole = run([q, *(x[:, :, :length] for x in (k, v)), None, None, None], "", 1, **OPEN, bf16=1)
    np.testing.assert_array_equal(ends, whole)


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("nan_rows", [0, 1])
def test_fully_masked_rows(rows: int, nan_rows: int) -> None:
    mask = np.where(RNG.random((rows, 600)) < 0.5, 0, -np.inf).astype(np.float32)
    mask[0] = -np.inf
    mask[1, :512] = -np.inf  # a whole block of keys
    q, k, v = f32(2, rows, 16), f32(2, 600, 16), f32(2, 600, 8)
    check(q, k, v, mask, nan_rows=nan_rows)
    q[0, 1, 3] = np.nan
    check(q, k, v, mask, nan_rows=nan_rows)
    mask[1] = np.finfo(np.float32).min  # all alike
    check(f32(2, rows, 16), k, v, mask, nan_rows=nan_rows)


@pytest.mark.parametrize("rows", [1, 60])
def test_strides(rows: int) -> None:
    """Heads inside rows, transposed keys, repeated heads, masks that broadcast."""
    q, k, v = f32(2, rows, 3, 16), f32(2, 70, 3, 16), f32(2, 70, 3, 24)
    transposed = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
    check(*transposed, rows_first=1)
    check(transposed[0], transposed[1], transposed[1], rows_first=1)
    check(*transposed, f32(rows, 1), rows_first=1)
    check(*transposed, f32(3, 1, 70))
    check(transposed[0], f32(2, 3, 16, 70).swapaxes(2, 3), transposed[2], f32(70, rows).T)
    check(transposed[0][..., ::-1], transposed[1][:, :, ::2], transposed[2][:, :, ::2, ::-1])
    check(f32(2, 3, 4, rows, 8), f32(2, 3, 1, 9, 8), f32(2, 3, 1, 9, 8), f32(4, rows, 9))


def test_large_scores() -> None:
    q, k, v = f32(1, 20, 8) * 40, f32(1, 700, 8) * 40, f32(1, 700, 8)
    check(q, k, v, scale=1.0)


SEEN: tuple[dict[str, Any], ...] = (
    {"window_right": 0},
    {"window_right": 0, "bottom_right": 1},
    {"window_right": 0, "window_left": 3},
    {"window_right": 2, "window_left": 0, "bottom_right": 1},
    {"window_left": 40, "softcap": 0.7},
    {"window_right": 0, "bottom_right": 1, "smooth": 1, "nan_rows": 2},
)


@pytest.mark.parametrize("sizes", [(1, 70), (2, 700), (3, 3), (30, 30), (65, 1100)], ids=str)
@pytest.mark.parametrize("attrs", SEEN, ids=str)
def test_causal_and_window_masks(sizes: tuple[int, int], attrs: dict[str, Any]) -> None:
    rows, keys = sizes
    check(f32(2, 3, rows, 16), f32(2, 3, keys, 16), f32(2, 3, keys, 24), **attrs)


@pytest.mark.parametrize("rows", [1, 2, 3, 13, 100])
@pytest.mark.parametrize("group", [1, 2, 3, 5])
@pytest.mark.parametrize("window_left", [-1, 30, 600])
def test_grouped_query_heads(rows: int, group: int, window_left: int) -> None:
    """Lengths of each of the batch, heads that share keys, masks and sinks of heads."""
    keys = 700
    q, k, v = f32(3, rows, 2 * group, 40), f32(3, 2, keys, 40), f32(3, 2, keys, 70)
    ends = np.array([keys, rows + 5, rows], np.int32)
    spans = np.stack((ends - rows, ends), axis=1).astype(np.int32)
    transposed = q.transpose(0, 2, 1, 3)
    attrs = {"group": group, "window_left": window_left, "window_right": 0}
    check(transposed, k, v, None, spans, **attrs, rows_first=1)
    check(transposed, k, v[..., :40], None, spans, **attrs, rows_first=1)
    check(transposed, k, v, None, spans, f32(2 * group), **attrs)
    check(transposed, k, v, f32(3, 1, rows, keys), spans, None, **attrs, softcap=1.5)
    check(transposed, k, v, f32(1, 2 * group, rows, keys), spans, None, **attrs, smooth=1)


def test_split_keys_of_few_heads() -> None:
    q, k, v = f32(1, 4, 1, 64), f32(1, 1, 5000, 64), f32(1, 1, 5000, 64)
    check(q, k, v, group=4)
    spans = np.array([[2999, 3000]], np.int32)
    check(q, k, v, None, spans, f32(4), group=4, window_left=1500, window_right=0)
    check(q, k, v, f32(1, 5000), spans, group=4)


@pytest.mark.parametrize("rows", [1, 40])
def test_spans_without_keys(rows: int) -> None:
    """A position may be such that a row attends to nothing."""
    spans = np.array([[-9, 5], [700, 3]], np.int32)
    q, k, v = f32(2, 2, rows, 8), f32(2, 2, 20, 8), f32(2, 2, 20, 8)
    for nan_rows in (0, 1, 2):
        check(q, k, v, None, spans, window_right=0, window_left=4, nan_rows=nan_rows)


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types(rows: int, dtype: Any) -> None:
    q, k, v = (f32(2, n, m, 24).astype(dtype) for n, m in ((4, rows), (2, 90), (2, 90)))
    attrs = {**attention.defaults, "scale": 0.3, "rows_first": 0, "group": 2}
    want = attention.run([q, k, v], attrs)[0].astype(np.float32)
    for isa in native.isas:
        found = run([q, k, v, None, None, None], isa, 2, **attrs).astype(np.float32)
        np.testing.assert_allclose(found, want, rtol=1e-2, atol=2e-3, err_msg=isa)
