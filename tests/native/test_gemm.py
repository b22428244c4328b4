"""GEMM kernels: strides, packed operands, epilogues, and sizes around every block."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import F16, F32, by_numpy
from sardonyx.graph.op import ONNX
from sardonyx.ops.elementwise.chain import Code, Instruction, run_code
from sardonyx.place.provider import No
from sardonyx.providers.cpu.elementwise import encode
from sardonyx.providers.cpu.matmul import packed_size
from tests.kernels import SPLITS, guarded, tensor, untouched

Array = Any
BIAS, RELU, START, APART = 1, 2, 4, 8
NOTHING = ((0, 0), ())
KINDS = ("", "_bf16")  # of rows
HALVES = (np.float32, np.float16, ml_dtypes.bfloat16)
ERROR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-14}

SHAPES = (
    ((5, 7), (7, 2)),
    ((1, 1), (1, 1)),
    ((13, 31), (31, 33)),
    ((49, 70), (70, 200)),
    ((1, 600), (600, 77)),
    ((4, 300), (300, 600)),
    ((145, 259), (259, 65)),
    ((130, 77), (77, 1)),
    ((130, 77), (77, 3)),
    ((2, 3, 5, 7), (7, 4)),
    ((2, 1, 5, 40), (3, 40, 36)),
    ((2, 3, 9, 64), (2, 1, 64, 50)),
    ((6, 37, 64), (6, 64, 37)),
    ((5, 1, 64), (5, 64, 70)),
    ((9, 4, 4), (9, 4, 4)),
    ((0, 3), (3, 4)),
    ((4, 0), (0, 3)),
    ((4, 0), (0, 40)),
    ((3, 5), (5, 0)),
    ((2, 0, 3), (3, 4)),
    ((0, 3, 5), (0, 5, 4)),
)


def numbers(
    shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, kind: str = ""
) -> Array:
    """Random ones; for rows that round to bf16 such as these leave alone."""
    found = np.random.default_rng(seed + sum(shape)).standard_normal(shape)
    return (found.astype(ml_dtypes.bfloat16) if kind else found).astype(dtype)


def pack(b: Array, is_transposed: int, isa: str, kind: str = "") -> Array:
    shape = (*b.shape[:-2], b.shape[-1], b.shape[-2]) if is_transposed else b.shape
    packed, whole = guarded((packed_size(shape, bool(kind)),), np.uint8)
    kernel = f"matmul_pack{kind}"
    assert not native.call(kernel, [tensor(b)], [tensor(packed)], [is_transposed], [], 2, isa)
    assert untouched(whole, packed)
    return packed


def run(  # noqa: PLR0913 - what a test may vary
    a: Array,
    b: Array,
    *operands: Array,
    trans: tuple[int, int] = (0, 0),
    alpha: float = 1.0,
    flags: int = 0,
    program: Any = NOTHING,
    to: Any = None,
    is_packed: bool = False,
    isa: str = "",
    splits: int = 1,
    over: int | None = None,
    kind: str = "",
) -> Array:
    """A product by its kernel, on one ISA and in parts, perhaps over an operand."""
    left = a.swapaxes(-1, -2) if trans[0] else a
    right = b.swapaxes(-1, -2) if trans[1] else b
    shape = np.matmul(np.zeros(left.shape), np.zeros(right.shape)).shape
    out, whole = guarded(shape, to or a.dtype)
    if over is not None:
        out[...] = operands[over]
        operands = (*operands[:over], out, *operands[over + 1 :])
    kernel, given, dims = f"matmul{kind}", (a, b, *operands), (0,)
    if is_packed:
        given = (a, pack(b, trans[1], isa, kind), *operands)
        kernel, trans, dims = f"matmul_packed{kind}", (trans[0], 0), (right.ndim, *right.shape)
    ints = [*trans, flags, *dims, *program[0]]
    floats = [alpha, *program[1]]
    error = native.call(
        kernel, [tensor(x) for x in given], [tensor(out)], ints, floats, splits, isa
    )
    assert not error, error
    assert untouched(whole, out)
    return out


def close(found: Array, a: Array, b: Array, dtype: str) -> None:
    """Against f64, relative to what the sums are made of."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = np.matmul(np.abs(a), np.abs(b)).max(initial=1e-9)
    np.testing.assert_allclose(
        found.astype(np.float64), np.matmul(a, b), rtol=0, atol=ERROR[dtype] * scale
    )


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        *((dtype, kind) for dtype in HALVES for kind in KINDS),
        (np.float64, ""),
    ],
)
def test_transposed_and_packed(isa: str, left: Any, right: Any, dtype: Any, kind: str) -> None:
    a, b = numbers(left, dtype, 0, kind), numbers(right, dtype, 1, kind)
    name = np.dtype(dtype).name
    for trans in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x = np.ascontiguousarray(a.swapaxes(-1, -2)) if trans[0] else a
        y = np.ascontiguousarray(b.swapaxes(-1, -2)) if trans[1] else b
        for is_packed in (False, True) if name != "float64" else (False,):
            how: Any = {"trans": trans, "is_packed": is_packed, "isa": isa, "kind": kind}
            found = [run(x, y, **how, splits=n) for n in SPLITS]
            close(found[0], a, b, name)
            assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kind", KINDS)
def test_every_m_n_and_k(isa: str, kind: str) -> None:
    """Every height of a tile, every part of a panel, and depths around whole vectors."""
    a, b = numbers((26, 300), kind=kind), numbers((300, 70), seed=1, kind=kind)
    how: Any = {"is_packed": True, "isa": isa, "kind": kind}
    for m in range(1, 27):
        close(run(a[:m], b, **how), a[:m], b, "float32")
    for n in range(1, 71):
        y = np.ascontiguousarray(b[:, :n])
        close(run(a, y, **how), a, y, "float32")
    for k in range(1, 70):
        close(run(a[:, :k], b[:k], **how), a[:, :k], b[:k], "float32")


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_operands_are_rounded_to_bf16(isa: str, dtype: Any) -> None:
    """To the nearest bf16, halves to even, whichever side is packed when."""
    a, b = numbers((40, 77), dtype), numbers((77, 50), dtype, 1)
    half = np.arange(1, 78, dtype=np.float32) * 2.0**-8 + 1
    a[0], b[:, 0] = half, half[::-1]
    x, y = (v.astype(ml_dtypes.bfloat16).astype(dtype) for v in (a, b))
    for is_packed in (False, True):
        how: Any = {"is_packed": is_packed, "isa": isa, "kind": "_bf16"}
        np.testing.assert_array_equal(run(a, b, **how), run(x, y, **how))


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kind", KINDS)
def test_strided_operands(isa: str, kind: str) -> None:
    """Gaps, repeats, steps back and any order of axes."""
    how: Any = {"isa": isa, "kind": kind}
    heads = numbers((3, 40, 4, 50), kind=kind).transpose(0, 2, 1, 3)
    keys = numbers((3, 45, 4, 50), seed=1, kind=kind).transpose(0, 2, 3, 1)
    apart = numbers((3, 4, 40, 100), seed=2, kind=kind)[:, ::-1, :, ::2]
    one = np.broadcast_to(numbers((50, 45), seed=3, kind=kind), (3, 4, 50, 45))
    every = np.broadcast_to(numbers((1, 50), seed=4, kind=kind), (3, 4, 40, 50))
    for a, b in ((heads, keys), (apart, keys), (heads, one), (every, keys), (apart, one[0, 0])):
        close(run(a, b, **how), a, b, "float32")
    close(run(heads, one[0, 0], is_packed=True, **how), heads, one[0, 0], "float32")
    close(run(heads[:, :, :1], keys, **how), heads[:, :, :1], keys, "float32")


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kind", KINDS)
def test_infinities_and_nan(isa: str, kind: str) -> None:
    """They stay in their row, also beside columns that are only there to fill a panel."""
    for m in (1, 20):
        a, b = np.ones((m, 40), np.float32), np.ones((40, 33), np.float32)
        a[0, 3], b[5, 32] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            want = np.matmul(a, b)
        for is_packed in (False, True):
            found = run(a, b, is_packed=is_packed, isa=isa, kind=kind)
            np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(run(a, b, flags=RELU, isa=isa, kind=kind), want)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "right"), [s for s in SHAPES if min(s[0] + s[1]) > 0])
def test_bias_and_relu(isa: str, is_packed: bool, kind: str, left: Any, right: Any) -> None:
    a, b = numbers(left, kind=kind), numbers(right, seed=1, kind=kind)
    bias = numbers(right[-1:], seed=2)
    want = np.matmul(a, b, dtype=np.float64) * 0.3 + bias
    scale = np.matmul(np.abs(a), np.abs(b)).max() + 1
    for flags, operands in ((BIAS, (bias,)), (BIAS | RELU, (bias,)), (RELU, ())):
        ends = np.maximum(want - (0 if operands else bias), 0) if flags & RELU else want
        how: Any = {"alpha": 0.3, "flags": flags, "is_packed": is_packed, "isa": isa, "kind": kind}
        found = [run(a, b, *operands, **how, splits=n) for n in SPLITS]
        np.testing.assert_allclose(found[0], ends, rtol=0, atol=4e-6 * scale)
        assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "k", "n"), [(13, 4200, 2300), (29, 45_000, 330)])
def test_column_stripes_of_a_large_b(isa: str, kind: str, m: int, k: int, n: int) -> None:
    """More than 16 MB are packed stripe by stripe: the bytes are those of a packed right side."""
    a, b, bias = numbers((m, k), kind=kind), numbers((k, n), seed=1, kind=kind), numbers((n,))
    start = numbers((m, n), seed=3)
    right = np.ascontiguousarray(b.T)
    how: Any = {"flags": START | BIAS | RELU, "alpha": 0.3, "isa": isa, "kind": kind}
    want = run(a, b, bias, start, is_packed=True, **how)
    for splits in SPLITS:
        found = run(a, right, bias, start, trans=(0, 1), splits=splits, **how)
        assert found.tobytes() == want.tobytes()


def op(name: str, *args: int) -> Instruction:
    return Instruction((ONNX, name), args, F32)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_initial_accumulators(isa: str, is_packed: bool, left: Any, right: Any) -> None:
    """Initial accumulators: in their own memory, in the output itself, or with gaps."""
    a, b, bias = numbers(left), numbers(right, seed=1), numbers(right[-1:], seed=2)
    product = np.matmul(a, b, dtype=np.float64)
    start = numbers(product.shape, seed=3)
    gaps = np.zeros((*start.shape[:-1], 2 * start.shape[-1]), np.float32)[..., ::2]
    transposed = np.ascontiguousarray(start.swapaxes(-1, -2)).swapaxes(-1, -2)
    gaps[...] = start
    program = encode((op("Mul", 0, 1), op("Neg", 2)), [(F32, None)] * 2)
    assert not isinstance(program, No)
    scale = np.matmul(np.abs(a), np.abs(b)).max(initial=0) + 8
    for flags, operands, code, want in (
        (START, (), NOTHING, product + start),
        (START | BIAS | RELU, (bias,), NOTHING, np.maximum(product + start + bias, 0)),
        (START, (), program, -(product + start) * bias),
    ):
        after = () if code is NOTHING else (bias,)
        how: Any = {"flags": flags, "program": code, "is_packed": is_packed, "isa": isa}
        found = [
            run(a, b, *operands, s, *after, **how, splits=n, over=over)
            for s, over in ((start, None), (start, len(operands)), (gaps, None), (transposed, None))
            for n in SPLITS
        ]
        np.testing.assert_allclose(found[0], want, rtol=0, atol=1.6e-5 * scale)
        assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("left", "right"),
    [((50, 40), (40, 300)), ((2, 20, 9), (2, 9, 35)), ((3, 30), (30, 600)), ((90, 30), (30, 2))],
)
def test_epilogues(isa: str, dtype: Any, left: Any, right: Any) -> None:
    """An epilogue with operands of every kind of broadcasting."""
    a, b = numbers(left, dtype), numbers(right, dtype, 1)
    product = np.matmul(a.astype(np.float32), b.astype(np.float32))
    n, m = product.shape[-1], product.shape[-2]
    operands = (numbers((n,)), numbers((m, 1)), numbers(product.shape), numbers((1,)))
    code: Code = (op("Add", 0, 1), op("Mul", 5, 2), op("Sub", 6, 3), op("Max", 7, 4))
    last = by_numpy(np.dtype(dtype))
    assert last is not None
    code = (*code[:-1], Instruction((ONNX, "Max"), (7, 4), last))
    program = encode(code, [(F32, None)] * 5)
    assert not isinstance(program, No)
    want = run_code(code, (product, *operands))
    for is_packed in (False, True):
        how: Any = {"program": program, "is_packed": is_packed, "isa": isa}
        found = [run(a, b, *operands, **how, splits=k) for k in SPLITS]
        error = 4e-5 if dtype == np.float32 else 2e-2
        np.testing.assert_allclose(
            found[0].astype(np.float64), want.astype(np.float64), rtol=error, atol=error
        )
        assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(("left", "right"), [s for s in SHAPES if min(s[0] + s[1]) > 0])
def test_epilogues_in_place(isa: str, left: Any, right: Any) -> None:
    """Scaled by a row, and added to a tensor, possibly in place; also with a start."""
    a, b, row = numbers(left), numbers(right, seed=1), numbers(right[-1:], seed=2)
    product = np.matmul(a, b, dtype=np.float64)
    start, added = numbers(product.shape, seed=3), numbers(product.shape, seed=4)
    transposed = np.ascontiguousarray(start.swapaxes(-1, -2)).swapaxes(-1, -2)
    program = encode((op("Mul", 0, 1), op("Add", 3, 2)), [(F32, None)] * 3)
    assert not isinstance(program, No)
    scale = np.matmul(np.abs(a), np.abs(b)).max() + 8
    how: Any = {"program": program, "is_packed": True, "isa": isa}
    for begin, flags in (((), APART), ((start,), APART | START), ((transposed,), APART | START)):
        over = len(begin) + 1
        found = [
            run(a, b, *begin, row, added, **how, flags=flags, splits=n, over=o)
            for o in (None, over)
            for n in SPLITS
        ]
        want = (product + start if begin else product) * row + added
        np.testing.assert_allclose(found[0], want, rtol=0, atol=1.6e-5 * scale)
        assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(("left", "right"), [((50, 40), (40, 300)), ((3, 30), (30, 600))])
def test_half_epilogues_in_place(isa: str, left: Any, right: Any) -> None:
    a, b = numbers(left, np.float16), numbers(right, np.float16, 1)
    added = numbers((left[0], right[1]), np.float16, 2)
    code: Code = (Instruction((ONNX, "Add"), (0, 1), F16), Instruction((ONNX, "Relu"), (2,), F16))
    program = encode(code, [(F32, None), (F16, None)])
    assert not isinstance(program, No)
    for is_packed in (False, True):
        how: Any = {"program": program, "is_packed": is_packed, "isa": isa}
        found = [run(a, b, added, **how, splits=n, over=o) for o in (None, 0) for n in SPLITS]
        assert all(f.tobytes() == found[0].tobytes() for f in found)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_integers_wrap(isa: str, dtype: Any) -> None:
    top = np.iinfo(dtype).max
    a = np.array([[top, 2, 3], [1, top, top]], dtype)
    b = np.array([[2, 3], [top, 1], [5, top]], dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(a, b, isa=isa), np.matmul(a, b))
