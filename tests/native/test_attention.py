"""The attention kernel by itself: odd sizes, masks, strides, on every ISA and in any parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.ops.fused_attention import attention
from sardonyx.providers.cpu.attention import FLAGS
from tests.kernels import guarded, tensor, untouched

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(inputs: list[Array | None], isa: str, splits: int, **attrs: Any) -> Array:
    """What the kernel makes of operands."""
    q, v = inputs[0], inputs[2]
    assert q is not None
    assert v is not None
    shape = [*np.broadcast_shapes(q.shape[:-2], v.shape[:-2]), q.shape[-2], v.shape[-1]]
    if attrs["rows_first"]:
        shape[-3], shape[-2] = shape[-2], shape[-3]
    out, whole = guarded(tuple(shape), np.float32)
    ints = [attrs[name] for name in FLAGS]
    given = [tensor(a) for a in inputs]
    floats = [attrs["scale"], attrs["softcap"]]
    error = native.call("attention", given, [tensor(out)], ints, floats, splits, isa)
    assert not error, error
    assert untouched(whole, out)
    return out


def check(*inputs: Array | None, scale: float = 0.3, **given: Any) -> None:
    """The kernel against the reference in float64, and the same bytes in any parts."""
    attrs = {**attention.defaults, "scale": scale, **given}
    operands = [*inputs, *[None] * (6 - len(inputs))]
    wide = [a if a is None or a.dtype != np.float32 else a.astype(np.float64) for a in operands]
    want = attention.run(wide, {**attrs, "scale": np.float64(np.float32(scale))})[0]
    for isa in native.isas:
        found = [run(operands, isa, splits, **attrs) for splits in (1, 2, 7)]
        assert all(f.tobytes() == found[0].tobytes() for f in found), isa
        np.testing.assert_allclose(found[0], want, rtol=2e-5, atol=2e-6, err_msg=isa)


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
def test_sizes(sizes: tuple[int, ...], masked: bool) -> None:
    rows, keys, depth, width = sizes
    mask = f32(2, 1, rows, keys) if masked else None
    operands = f32(2, 3, rows, depth), f32(2, 3, keys, depth), f32(2, 3, keys, width), mask
    check(*operands, scale=depth**-0.5)


def test_empty() -> None:
    for rows, keys, depth, width in ((0, 3, 4, 5), (3, 0, 4, 5), (9, 0, 4, 5), (3, 4, 5, 0)):
        check(f32(2, rows, depth), f32(2, keys, depth), f32(2, keys, width))
    check(f32(9, 0), f32(3, 0), f32(3, 4))
    check(f32(0, 9, 4), f32(0, 3, 4), f32(0, 3, 4))


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("zeroes", [0, 1])
def test_rows_that_see_nothing(rows: int, zeroes: int) -> None:
    mask = np.where(RNG.random((rows, 600)) < 0.5, 0, -np.inf).astype(np.float32)
    mask[0] = -np.inf
    mask[1, :512] = -np.inf  # a whole block of keys
    q, k, v = f32(2, rows, 16), f32(2, 600, 16), f32(2, 600, 8)
    check(q, k, v, mask, zeroes=zeroes)
    q[0, 1, 3] = np.nan
    check(q, k, v, mask, zeroes=zeroes)
    mask[1] = np.finfo(np.float32).min  # all alike
    check(f32(2, rows, 16), k, v, mask, zeroes=zeroes)


@pytest.mark.parametrize("rows", [1, 60])
def test_strides(rows: int) -> None:
    """Heads inside rows, transposed keys, repeated heads, masks that broadcast."""
    q, k, v = f32(2, rows, 3, 16), f32(2, 70, 3, 16), f32(2, 70, 3, 24)
    turned = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
    check(*turned, rows_first=1)
    check(*turned, f32(rows, 1), rows_first=1)
    check(*turned, f32(3, 1, 70))
    check(turned[0], f32(2, 3, 16, 70).swapaxes(2, 3), turned[2], f32(70, rows).T)
    check(turned[0][..., ::-1], turned[1][:, :, ::2], turned[2][:, :, ::2, ::-1])
    check(f32(2, 3, 4, rows, 8), f32(2, 3, 1, 9, 8), f32(2, 3, 1, 9, 8), f32(4, rows, 9))


def test_large_scores() -> None:
    q, k, v = f32(1, 20, 8) * 40, f32(1, 700, 8) * 40, f32(1, 700, 8)
    check(q, k, v, scale=1.0)
