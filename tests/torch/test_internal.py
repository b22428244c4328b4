"""Functions of internal ops, and branches that no case of a family reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.graph.dtype import F32, by_numpy
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops import lookup
from sardonyx.ops.attention.fused import KEEP_NAN, ZERO_FULLY_MASKED, ZERO_NAN
from sardonyx.ops.elementwise.chain import Instruction
from tests.oracle import difference

torch = pytest.importorskip("torch")
from sardonyx.providers.torch.dtypes import as_array, as_tensor  # noqa: E402 - torch may be missing
from sardonyx.providers.torch.index import KERNELS  # noqa: E402
from sardonyx.providers.torch.quantize import exact_matmul  # noqa: E402

RNG = np.random.default_rng(7)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def made(key: tuple[str, str], arrays: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, Any]:
    """Run the function and the reference of an op on arrays."""
    op, row = lookup(*key), KERNELS[key]
    assert op is not None
    assert op.reference_rule is not None
    attrs = {**op.defaults, **attrs}
    with np.errstate(all="ignore"):
        wanted = op.reference_rule(*arrays, **attrs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    given = [
        a if a is None or i in row.host else as_tensor(a, by_numpy(a.dtype) or F32).clone()
        for i, a in enumerate(arrays)
    ]
    sizes = {"shapes": tuple(w.shape for w in wanted)} if row.sized else {}
    found = row.function(*given, **attrs, **sizes)
    found = found if isinstance(found, tuple) else (found,)
    return [as_array(f) for f in found], list(wanted[: len(found)])


RELU = (Instruction(("", "Add"), (0, 1), F32), Instruction(("", "Relu"), (2,), F32))
BLIND = np.where(np.arange(6) < 2, np.float32(0), np.float32(-np.inf))
ROWS_BLIND = np.stack([BLIND, np.full(6, -np.inf, np.float32), BLIND, BLIND])
LOWEST = np.where(np.arange(6) < 2, np.float32(0), np.finfo(np.float32).min)[None, None, None]
SPANS = np.array([[2, 5], [0, 3]], np.int32)
PRODUCTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((f32(3, 4, 5), f32(5, 6)), {}),
    "transposed": ((f32(2, 5, 4), f32(2, 6, 5)), {"trans_a": 1, "trans_b": 1, "alpha": 0.3}),
    "epilogue": ((f32(3, 4, 5), f32(5, 6), f32(6)), {"code": RELU}),
    "halves": ((f32(4, 5).astype(np.float16), f32(5, 6).astype(np.float16)), {"alpha": 0.3}),
    "stack of halves": (
        (f32(2, 3, 4, 5).astype(np.float16), f32(3, 5, 6).astype(np.float16)), {"alpha": 0.3},
    ),
    "integers": (
        (RNG.integers(-(2**62), 2**62, (3, 4)), RNG.integers(-(2**62), 2**62, (4, 5))), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    arrays, attrs = PRODUCTS[name]
    assert not difference(*made((INTERNAL, "MatMul"), arrays, attrs), 64)


HALF: tuple[Any, ...] = tuple(f32(2, 4, 6, 8).astype(np.float16) for _ in range(3))
QKV = (f32(2, 4, 4, 8), f32(2, 4, 6, 8), f32(2, 4, 6, 5))
FEW = (f32(2, 4, 4, 8), f32(2, 2, 6, 8), f32(2, 2, 6, 5))
ATTENTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": (QKV, {}),
    "keys of all": ((QKV[0], QKV[1][:1], QKV[2][:1]), {}),
    "no batch": ((QKV[0][:0], QKV[1][:1], QKV[2][:1]), {}),
    "values of all heads": ((*QKV[:2], QKV[2][:, :1]), {}),
    "keys without heads": ((QKV[0], QKV[1][0, 0], QKV[2][0, 0]), {}),
    "stacks of matrices": ((f32(3, 4, 8), f32(3, 6, 8), f32(3, 6, 5)), {}),
    "rows first": (QKV, {"rows_first": 1, "scale": 0.5}),
    "mask": ((*QKV, f32(4, 6)), {}),
    "mask of a batch": ((*QKV, f32(2, 1, 1, 6)), {}),
    "row that sees nothing": ((*QKV, ROWS_BLIND), {"nan_rows": KEEP_NAN}),
    "row that gives zeros": ((*QKV, ROWS_BLIND), {"nan_rows": ZERO_NAN}),
    "row unseen": ((*QKV, ROWS_BLIND), {"nan_rows": ZERO_FULLY_MASKED}),
    "lowest number of a mask": ((*HALF, LOWEST), {"nan_rows": KEEP_NAN}),
    "lowest number, no zeros": ((*HALF, LOWEST), {"nan_rows": ZERO_FULLY_MASKED}),
    "halves": (HALF, {"window_right": 0}),
    "groups": (FEW, {"group": 2}),
    "groups with a mask": ((*FEW, f32(2, 1, 1, 6)), {"group": 2}),
    "groups with rows of a mask": ((*FEW, f32(2, 4, 4, 6)), {"group": 2}),
    "groups, causal": (FEW, {"group": 2, "window_right": 0}),
    "causal": (QKV, {"window_right": 0}),
    "causal at the end": (QKV, {"window_right": 0, "bottom_right": 1}),
    "one row at the end": ((f32(2, 4, 1, 8), *QKV[1:]), {"window_right": 0, "bottom_right": 1}),
    "window": (QKV, {"window_left": 1, "window_right": 1}),
    "spans": ((*QKV, None, SPANS), {"window_right": 0}),
    "spans without causes": ((*FEW, None, SPANS), {"group": 2}),
    "sink": ((*QKV, None, None, f32(4)), {}),
    "smooth": (QKV, {"smooth": 1, "softcap": 2.0}),
    "no keys": ((f32(2, 4, 4, 8), f32(2, 4, 0, 8), f32(2, 4, 0, 5)), {}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    arrays, attrs = ATTENTIONS[name]
    absent = (None,) * (6 - len(arrays))
    assert not difference(*made((INTERNAL, "Attention"), (*arrays, *absent), attrs), 64)


def few(kind: Any, bits: int, *shape: int) -> Any:
    low = -(1 << bits - 1) if kind.__name__.startswith("int") else 0
    return RNG.integers(low, low + (1 << bits), shape).astype(kind)


SIZES = {"K": 40, "N": 6, "bits": 4}
BLOCKED = {**SIZES, "block_size": 16, "zero_default": 8}
WEIGHTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "blocked": ((f32(3, 40), few(np.uint8, 8, 6, 3, 8), f32(6, 3)), BLOCKED),
    "blocked, signed": ((f32(3, 40), few(np.uint8, 8, 6, 3, 8), f32(6, 3)),
                        {**BLOCKED, "signed": 1, "zero_default": 0}),
    "packed zero points": (
        (f32(3, 40), few(np.uint8, 8, 6, 3, 8), f32(6, 3), few(np.uint8, 8, 6, 2)), BLOCKED,
    ),
    "real zero points": (
        (f32(3, 40), few(np.uint8, 8, 6, 3, 8), f32(6, 3), f32(6, 3)), BLOCKED,
    ),
    "columns": ((f32(3, 40), few(ml_dtypes.int4, 4, 40, 6), f32(6)),
                {**SIZES, "block_size": 40, "k_major": 1, "signed": 1}),
    "rows of blocks": (
        (f32(3, 40), few(ml_dtypes.uint4, 4, 40, 6), f32(5, 6), few(ml_dtypes.uint4, 4, 5, 6)),
        {**SIZES, "block_size": 8, "k_major": 1},
    ),
    "a last block that is short": (
        (f32(3, 40), few(ml_dtypes.uint4, 4, 6, 40), f32(6, 3), few(ml_dtypes.uint4, 4, 6, 3)),
        {**SIZES, "block_size": 16},
    ),
    "a last row of blocks that is short": (
        (f32(3, 40), few(ml_dtypes.int4, 4, 40, 6), f32(3, 6), None),
        {**SIZES, "block_size": 16, "k_major": 1, "signed": 1},
    ),
    "one scale": ((f32(3, 40), few(np.int8, 8, 6, 40), f32(1), None),
                  {**SIZES, "bits": 8, "block_size": 40, "signed": 1}),
    "epilogue": ((f32(3, 40), few(np.uint8, 8, 6, 3, 8), f32(6, 3), None, f32(6)),
                 {**BLOCKED, "code": RELU}),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str) -> None:
    arrays, attrs = WEIGHTS[name]
    assert not difference(*made((INTERNAL, "MatMulNBits"), arrays, attrs), 256)


TABLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "blocks": ((few(np.uint8, 8, 5, 16), f32(5, 2), few(np.uint8, 8, 5, 1)),
               {"bits": 4, "block_size": 16, "fills": 1}),
    "one to a byte": ((few(ml_dtypes.int4, 4, 5, 32), f32(5, 2), None),
                      {"bits": 4, "block_size": 16, "fills": 1}),
    "one scale": ((few(np.int8, 8, 5, 6), f32(1), few(np.int8, 8, 1)), {"bits": 8, "fills": 1}),
    "a scale for each row": ((few(np.int8, 8, 5, 6), f32(5), few(np.int8, 8, 5)),
                             {"bits": 8, "quantize_axis": 0, "fills": 1}),
    "a scale for each column": ((few(np.int8, 8, 5, 6), f32(6), None), {"bits": 8, "fills": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str) -> None:
    (data, scale, zero), attrs = TABLES[name]
    indices = np.array([[0, -1, 7], [2, 3, -9]])
    arrays = (data, indices, scale, zero)
    assert not difference(*made((INTERNAL, "GatherDequantized"), arrays, attrs), 4)


@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("zeros", ["none", "one", "each"])
def test_integers(kinds: tuple[Any, Any], zeros: str) -> None:
    """Large products of bytes go by integers, whatever their zero points are."""
    a, b = few(kinds[0], 8, 2, 12, 24), few(kinds[1], 8, 24, 16)
    a_zero, b_zero = few(kinds[0], 8, 2, 12, 1), few(kinds[1], 8, 16)
    if zeros == "one":
        a_zero, b_zero = a_zero[0, 0, 0].reshape(()), b_zero[0].reshape(())
    tensors = [torch.from_numpy(np.array(x)) for x in (a, b, a_zero, b_zero)]
    found = exact_matmul(*tensors[:2], *((None, None) if zeros == "none" else tensors[2:]))
    if zeros == "none":
        a_zero, b_zero = np.zeros((), np.int8), np.zeros((), np.int8)
    wanted = (a.astype(int) - a_zero) @ (b.astype(int) - b_zero)
    assert found.dtype is torch.int32
    assert np.array_equal(found.numpy(), wanted)


def _decoder(batch: int, past: int, rows: int, dtype: Any) -> tuple[Any, ...]:
    """Query, key, value, and caches of full length."""
    sizes = ((4, rows), (2, rows), (2, rows))
    parts = [f32(batch, n, heads * 8).astype(dtype) for heads, n in sizes]
    return (*parts, *(f32(batch, 2, past, 8).astype(dtype) for _ in range(2)))


STEPS: dict[str, tuple[int, int, list[int]]] = {  # batch, rows, past lengths
    "one row": (1, 1, [5]),
    "rows after others": (1, 3, [7]),
    "a first prompt": (1, 4, [4]),
    "a batch": (3, 1, [5, 2, 9]),
    "rows of a batch": (2, 3, [7, 4]),
}


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("name", STEPS)
def test_shared_cache(name: str, window: int) -> None:
    """A cache that past and present share is written in place, and no further than its rows."""
    batch, rows, lengths = STEPS[name]
    parts = _decoder(batch, 12, rows, np.float32)
    lens = np.array(lengths, np.int32) - 1
    total = np.array(max(lengths), np.int32)
    angles = f32(16, 4), f32(16, 4)
    attrs = {
        "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": window,
    }  # fmt: skip
    key = (MICROSOFT, "GroupQueryAttention")
    function, op = KERNELS[key].function, lookup(*key)
    assert op is not None
    full = {**op.defaults, **attrs}
    tensors = [torch.from_numpy(p) for p in parts]
    kept = [t.clone() for t in tensors[3:]]
    extra = [torch.from_numpy(a) for a in (lens, *angles)]
    plain = function(*tensors, extra[0], total, *extra[1:], **full)
    shared = function(*tensors[:3], *kept, extra[0], total, *extra[1:], shares=True, **full)
    torch.testing.assert_close(shared[0], plain[0])
    for one, other, own, old in zip(shared[1:], plain[1:], kept, tensors[3:], strict=True):
        assert one.data_ptr() == own.data_ptr()
        for b, end in enumerate(lengths):
            torch.testing.assert_close(one[b, :, :end], other[b, :, :end])
            assert torch.equal(one[b, :, end:], old[b, :, end:])


def test_decode_functions_do_not_synchronize(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a decoder asks the device for no number: a captured graph serves every length."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the function reads a tensor on the host")

    parts = [torch.from_numpy(p) for p in _decoder(1, 12, 1, np.float32)]
    angles = [torch.from_numpy(f32(16, 4)) for _ in range(2)]
    lens = torch.tensor([4], dtype=torch.int32)
    key = (MICROSOFT, "GroupQueryAttention")
    op = lookup(*key)
    assert op is not None
    attrs = {**op.defaults, "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    names: tuple[str, ...] = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "nonzero")
    run: Callable[..., Any] = KERNELS[key].function
    for name in names:
        monkeypatch.setattr(torch.Tensor, name, refuse)
    run(*parts, lens, np.array(5, np.int32), *angles, shares=True, **attrs)
