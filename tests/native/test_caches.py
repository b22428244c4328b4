"""KV cache kernels: positions, in place and strided, on every ISA and for any split."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.ops.attention.kv_cache import append
from sardonyx.passes import PassOptions, lower
from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered
from tests.cases.attention import contrib
from tests.kernels import SPLITS, guarded, tensor, untouched
from tests.op_cases import Case
from tests.oracle import model_of

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)
TOTAL, QUERY = 5, 6  # slots


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(
    inputs: list[Array | None], presents: list[Array], isa: str, splits: int, pairs: int
) -> str:
    given = [tensor(a) for a in inputs]
    outputs = [tensor(a) for a in presents]
    return str(native.call("append", given, outputs, [pairs], [], splits, isa))


def check(inputs: list[Array | None], pairs: int = 0) -> None:
    """Into new caches: against the reference, and the same bytes in any parts."""
    wanted = append.run(inputs, {"interleaved": pairs})
    for isa in native.isas:
        for splits in SPLITS:
            made = [guarded(w.shape, w.dtype) for w in wanted]
            assert not run(inputs, [inner for inner, _ in made], isa, splits, pairs)
            assert all(untouched(whole, inner) for inner, whole in made)
            for (inner, _), want in zip(made, wanted, strict=True):
                found, expected = inner.astype(np.float32), want.astype(np.float32)
                loose = 1e-6 if want.dtype == np.float32 else 1e-2
                np.testing.assert_allclose(found, expected, rtol=loose, atol=loose, err_msg=isa)


def inputs_of(rows: int, past: int, ends: list[int], total: int, **options: Any) -> list[Any]:
    """Operands with 2 heads of keys and 4 of queries, cut out of one packed tensor."""
    batch, width, half = len(ends), options.get("width", 24), options.get("half", 12)
    dtype = options.get("dtype", np.float32)
    packed = f32(batch, rows, 8, width).astype(dtype)
    q, k, v = (packed[:, :, i:j].transpose(0, 2, 1, 3) for i, j in ((0, 4), (4, 6), (6, 8)))
    old = [f32(batch, 2, past, width).astype(dtype) for _ in range(2)]
    firsts = [0 if rows == total else end - rows for end in ends]
    spans = np.array([*zip(firsts, ends, strict=True)], np.int32)
    angle = f32(300, half)
    angles = [np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)]
    positions = RNG.integers(0, 40, (batch, rows)) if options.get("placed") else None
    tail = [q, *angles, positions] if half else [None] * 4
    return [k, v, *old, spans, np.array([total], np.int32), *tail]


CASES: tuple[tuple[Any, dict[str, Any]], ...] = (
    ((5, 0, [5, 3], 5), {}),
    ((1, 9, [10, 4], 10), {}),
    ((1, 9, [5, 4], 6), {}),
    ((3, 150, [153], 153), {"width": 33, "half": 7}),
    ((260, 0, [260], 260), {"placed": True}),
    ((1, 9, [10, 4], 10), {"placed": True}),
    ((2, 200, [202], 202), {"half": 0}),
    ((3, 40, [43], 43), {"dtype": np.float16}),
    ((3, 40, [43], 43), {"dtype": ml_dtypes.bfloat16}),
)


@pytest.mark.parametrize(("sizes", "options"), CASES, ids=str)
@pytest.mark.parametrize("pairs", [0, 1])
def test_new_caches(sizes: Any, options: dict[str, Any], pairs: int) -> None:
    check(inputs_of(*sizes, **options), pairs)


def test_rows_after_the_whole_past() -> None:
    k, v = f32(2, 3, 4, 8), f32(2, 3, 4, 5)
    check([k, v, f32(2, 3, 7, 8), f32(2, 3, 7, 5)] + [None] * 6)
    check([k, v] + [None] * 8)
    check([k[:, :, :0], v[:, :, :0], f32(2, 3, 7, 8), f32(2, 3, 7, 5)] + [None] * 6)


@pytest.mark.skipif("SARDONYX_RUNNER" in os.environ, reason="its blocks have no reserved rows")
@pytest.mark.parametrize("isa", native.isas)
def test_in_place(isa: str) -> None:
    """Where past and present are one block with reserved rows, only new rows are written."""
    inputs = inputs_of(1, 9, [10, 4], 12)
    blocks = [np.full((2, 2, 64, 24), 7, np.float32) for _ in range(2)]
    pasts, presents = [b[:, :, :9] for b in blocks], [b[:, :, :12] for b in blocks]
    for to, old in zip(pasts, inputs[2:4], strict=True):
        to[:] = old
    wanted = append.run(inputs, {"interleaved": 0})
    inputs[2:4] = pasts
    rotated = np.empty((2, 4, 1, 24), np.float32)
    before = [b.copy() for b in blocks]
    assert not run(inputs, [*presents, rotated], isa, 2, 0)
    np.testing.assert_allclose(rotated, wanted[2], rtol=1e-6, atol=1e-6)
    for block, old, want in zip(blocks, before, wanted, strict=False):
        np.testing.assert_allclose(block[0, :, :10], want[0, :, :10], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(block[1, :, :4], want[1, :, :4], rtol=1e-6, atol=1e-6)
        assert (block[1, :, 4:9] == old[1, :, 4:9]).all()
        assert not block[:, :, 10:12].any()
        assert (block[:, :, 12:] == 7).all()


def test_rows_beyond_the_capacity_are_refused() -> None:
    inputs = inputs_of(1, 9, [10, 4], 10)
    presents = [np.zeros((2, 2, 10, 24), np.float32) for _ in range(2)]
    presents.append(np.zeros((2, 4, 1, 24), np.float32))
    inputs[4] = np.array([[10, 11], [3, 4]], np.int32)
    assert "1 new rows do not fit after row 10" in run(inputs, presents, "", 1, 0)
    inputs[4] = np.array([[-1, 0], [3, 4]], np.int32)
    assert "do not fit after row -1" in run(inputs, presents, "", 1, 0)
    inputs[4] = np.array([[9, 10], [3, 4]], np.int32)
    inputs[9] = np.array([[3], [300]])
    assert "position 300 is outside [0, 300)" in run(inputs, presents, "", 1, 0)


def is_numpy(case: Case) -> bool:
    """Forms of attention that no kernel takes: few models hold them."""
    attrs, given = case.attrs, [x is not None for x in case.inputs] + [False] * 12
    if case.op == "GroupQueryAttention":
        shows = case.outputs == 4
        return shows or "kv_cache_bit_width" in attrs or "sliding_window_cache" in attrs
    if case.op == "MultiHeadAttention":
        is_packed = case.inputs[0].ndim == 5 and len(case.inputs) > 1
        return is_packed or (given[8] and (given[4] or given[5] or given[9]))
    if case.op == "DecoderMaskedMultiHeadAttention":
        is_shared = "past_present_share_buffer" in attrs
        return is_shared and (given[3] or given[4] or given[9])
    if case.op in ("Attention", "DecoderMaskedSelfAttention"):
        return "do_rotary" in attrs or "past_present_share_buffer" in attrs
    return case.op == "DecoderAttention"


@pytest.mark.parametrize("case", [r for r in contrib.CASES if not r.fails], ids=str)
def test_cases_are_native(case: Case) -> None:
    """With sizes given as constants, every node of a lowered case has a kernel."""
    names = {"GroupQueryAttention": ["x6"]}.get(case.op, [])
    graph = load(model_of(case, constants=names).SerializeToString()).graph
    infer(graph)
    lower(graph, PassOptions())
    refused = [node.op.name for node in graph.nodes if isinstance(lowered(node), No)]
    assert bool(refused) == is_numpy(case), refused
