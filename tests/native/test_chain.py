"""Fused elementwise chains: strides, casts, half types, accuracy, and their encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import F32, I32, DType, by_numpy
from sardonyx.ops.elementwise.chain import Instruction, run_code
from sardonyx.ops.elementwise.fusible import CUSTOM, FUSIBLE
from sardonyx.place.provider import No
from sardonyx.providers.cpu import elementwise as cpu
from sardonyx.providers.cpu.elementwise import encode
from tests.kernels import SPLITS, guarded, tensor, untouched

Array = np.ndarray[Any, np.dtype[Any]]
ONNX = ""


def step(name: str, *args: int, dtype: Any = np.float32, **attrs: Any) -> Instruction:
    found = by_numpy(np.dtype(dtype))
    assert found is not None
    return Instruction((ONNX, name), args, found, tuple(attrs.items()))


def run(code: tuple[Instruction, ...], *arrays: Array, isa: str = "") -> Array:
    """The result of a program, the same for any split, with nothing written beside it."""
    types: list[DType] = [d for a in arrays if (d := by_numpy(a.dtype)) is not None]
    program = encode(code, [(t, None) for t in types])
    assert not isinstance(program, No), program
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    results = []
    for splits in SPLITS:
        out, whole = guarded(shape, code[-1].dtype.np)
        given = [tensor(a) for a in arrays]
        error = native.call("chain", given, [tensor(out)], *map(list, program), splits, isa)
        assert not error, error
        assert untouched(whole, out)
        results.append(out)
    assert all(r.tobytes() == results[0].tobytes() for r in results)
    return results[0]


def instructions_of(form: Any) -> Iterator[str]:
    """The native instructions that a form of the table names."""
    if isinstance(form, tuple):
        yield form[0]
        for part in form[1:]:
            yield from instructions_of(part) if isinstance(part, tuple) else ()
    elif form != CUSTOM:
        yield form


def test_the_extension_has_the_instructions_of_the_table() -> None:
    wrong = [
        f"{key[1]}: {name!r} is not an OP of native/kernels/elementwise/ops.inc "
        for key, op in FUSIBLE.items()
        for name in instructions_of(op.native)
        if name not in native.elementwise_ops
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("key", FUSIBLE, ids=lambda k: k[1])
def test_custom_ops_have_an_encoder(key: tuple[str, str]) -> None:
    assert (FUSIBLE[key].native == CUSTOM) == (key in cpu._CUSTOM), (
        "add an encoder to _CUSTOM of providers/cpu/elementwise.py, or instructions to FUSIBLE"
    )


def test_an_instruction_without_a_loop_is_an_error() -> None:
    """A missing loop is reported when the program is prepared, not called as a null pointer."""
    x = np.ones(4, np.float32)
    number = native.elementwise_ops.index("bit_not")
    ints = [1, 1, number, F32.onnx, F32.onnx, 0, -1, -1]
    error = native.call("chain", [tensor(x)], [tensor(x.copy())], ints, [0.0, 0.0])
    assert error == "the elementwise instruction bit_not has no loop from f32 to f32"


def f32(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


PROGRAM = (step("Add", 0, 1), step("Mul", 2, 0), step("Sub", 3, 1), step("Relu", 4))


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((3, 5, 7), (7,)),
        ((3, 5, 7), (5, 1)),
        ((3, 5, 7), (3, 1, 1)),
        ((2, 1031), (1031,)),
        ((2, 1031), (2, 1)),
        ((300, 7), (300, 1)),
        ((4, 600), ()),
        ((4, 1), (1, 600)),
        ((2, 3, 300), (3, 1)),
        ((2, 300, 3), (2, 1, 3)),
        ((9, 5003), (9, 5003)),
        ((1,), (1,)),
        ((0, 4), (4,)),
        ((5, 0), (5, 1)),
        ((), ()),
        ((2, 3, 4, 5, 6, 2, 1, 2, 1, 3), (5, 6, 1, 1, 2, 1, 3)),
    ],
)
def test_operands_of_any_strides(isa: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    x, y = f32(*shape), f32(*other)
    transposed = np.ascontiguousarray(x.T).T
    spread = np.repeat(x, 2, -1)[..., ::2] if x.ndim else x
    reversed_ = np.ascontiguousarray(x[..., ::-1])[..., ::-1] if x.ndim else x
    want = run_code(PROGRAM, (x, y))
    for given in (x, transposed, spread, reversed_):
        got = run(PROGRAM, given, y, isa=isa)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_half_types(isa: str, half: Any) -> None:
    """All bit patterns there and back, and one rounding at the end of a chain."""
    every = np.arange(65536, dtype=np.uint16).view(half)
    wide = run((step("Cast", 0, dtype=np.float32, to=1),), every, isa=isa)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    number = by_numpy(np.dtype(half))
    assert number is not None
    floats = np.concatenate([f32(4099) * s for s in (1e-9, 1e-7, 1e-5, 1, 300, 1e5)])
    floats = np.append(floats, np.float32([np.inf, -np.inf, np.nan, 65519, 65520, -0.0, 1e-45]))
    back = run((step("Cast", 0, dtype=half, to=number.onnx),), floats, isa=isa)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(_bits(back), _bits(floats.astype(half)))
    a, b = f32(37, 70).astype(half), f32(70).astype(half)
    code = (
        step("Add", 0, 1, dtype=half),
        step("Mul", 2, 2, dtype=half),
        step("Abs", 3, dtype=half),
    )
    got = run(code, a, b, isa=isa)
    assert got.tobytes() == run_code(code, (a, b)).tobytes()


def _bits(x: Array) -> Array:
    """The bits without the sign, which NaN may have or not."""
    return x.view(np.uint16) & 0x7FFF


RANGES: dict[str, tuple[Callable[[Any], Any], tuple[tuple[float, float], ...], float]] = {
    "Exp": (np.exp, ((-103, 88.7), (-1, 1)), 2),
    "Log": (np.log, ((1e-40, 1e-30), (0.1, 3), (1, 1e38)), 3),
    "Sin": (np.sin, ((-3, 3), (-8000, 8000)), 3),
    "Cos": (np.cos, ((-3, 3), (-8000, 8000)), 3),
    "Tan": (np.tan, ((-1.5, 1.5), (-50, 50)), 4),
    "Asin": (np.arcsin, ((-1, 1),), 4),
    "Acos": (np.arccos, ((-1, 1),), 4),
    "Atan": (np.arctan, ((-1, 1), (-100, 100)), 4),
    "Tanh": (np.tanh, ((-12, 12), (-0.01, 0.01)), 7),
    "Erf": (np.vectorize(math.erf), ((-6, 6), (-0.01, 0.01)), 7),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ((-80, 80), (-2, 2)), 4),
    "Softplus": (lambda x: np.logaddexp(x, 0), ((-80, 80), (-2, 2)), 4),
    "Sqrt": (np.sqrt, ((0, 10), (0, 1e-38)), 1),
}


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("name", RANGES)
def test_accuracy(isa: str, name: str) -> None:
    """Units in the last place of each result by itself, against float64."""
    truth, ranges, ulps = RANGES[name]
    for low, high in ranges:
        x = np.linspace(low, high, 100_003).astype(np.float32)
        got = run((step(name, 0),), x, isa=isa).astype(np.float64)
        want = truth(x.astype(np.float64))
        # Near a zero that is not at x = 0 a float argument has no more digits to give.
        unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)), np.float32(1e-8))
        assert np.max(np.abs(got - want) / unit) <= ulps, name


@pytest.mark.parametrize("isa", native.isas)
def test_gelu_of_large_values(isa: str) -> None:
    """It comes to 0 as to x, however large the numbers are."""
    x = np.linspace(-8, 8, 100_003).astype(np.float32)
    want = [v / 2 * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)]
    np.testing.assert_allclose(run((step("Gelu", 0),), x, isa=isa), want, rtol=3e-7, atol=1e-6)
    far = np.float32([-3e38, -1e9, -7, 0, 7, 1e9, 3e38, np.inf, np.nan])
    got = run((step("Gelu", 0),), far, isa=isa)
    np.testing.assert_array_equal(got, np.float32([0, 0, 0, 0, 7, 1e9, 3e38, np.inf, np.nan]))
    assert np.signbit(run((step("Gelu", 0),), np.float32([-0.0, -90]), isa=isa)).all()


@pytest.mark.parametrize("isa", native.isas)
def test_sigmoid_of_large_values(isa: str) -> None:
    far = np.float32([-np.inf, -3e38, -100, -87.2, 0, 50, 3e38, np.inf, np.nan])
    got = run((step("Sigmoid", 0),), far, isa=isa)
    want = np.float32([0, 0, 0, np.exp(-87.2), 0.5, 1, 1, 1, np.nan])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-43)


@pytest.mark.parametrize("isa", native.isas)
def test_sigmoid_rounds_its_sum_once(isa: str) -> None:
    """1 + e^-x is not rounded: codes of quantized models are chosen by the last bit."""
    x = np.array([2, 3, 4, 5, 6, 7, 8, 10], np.float32)
    want = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)
    np.testing.assert_array_equal(run((step("Sigmoid", 0),), x, isa=isa), want)


@pytest.mark.parametrize("isa", native.isas)
def test_swish(isa: str) -> None:
    x = np.append(f32(333) * 20, np.float32([-87.2, -0.0]))
    once = (step("Sigmoid", 0), step("Mul", 1, 0))
    twice = (step("Sigmoid", 0), step("Mul", 1, 0), step("Add", 2, 1))
    for code in (once, twice):
        np.testing.assert_allclose(run(code, x, isa=isa), run_code(code, (x,)), rtol=1e-6)


@pytest.mark.parametrize("isa", native.isas)
def test_rounding(isa: str) -> None:
    x = np.float32([0.5, -0.5, 1.5, 2.5, -2.5, 8388607.5, 1e10, -1e10, 0.49999997, -0.0, 3.7, -3.2])
    for name, truth in (("Round", np.rint), ("Floor", np.floor), ("Ceil", np.ceil)):
        got = run((step(name, 0),), x, isa=isa)
        assert got.tobytes() == truth(x).tobytes(), name


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
                                  np.int64, np.uint64])  # fmt: skip
def test_integers(isa: str, kind: Any) -> None:
    info = np.iinfo(kind)
    rng = np.random.default_rng(1)
    a = rng.integers(info.min, info.max, 203, kind, endpoint=True)
    b = rng.integers(info.min, info.max, 203, kind, endpoint=True)
    b[b == 0] = 3
    a[:2], b[:2] = info.min, info.max
    names = ("Add", "Sub", "Mul", "Div", "Max", "Min", "BitwiseAnd", "BitwiseXor", "PRelu")
    codes = [step(n, 0, 1, dtype=kind) for n in names]
    codes += [step("Mod", 0, 1, dtype=kind, fmod=f) for f in (0, 1)]
    codes += [step("BitShift", 0, 1, dtype=kind, direction=d) for d in (b"LEFT", b"RIGHT")]
    codes += [step(n, 0, 1, dtype=bool) for n in ("Equal", "Less", "GreaterOrEqual")]
    codes += [step(n, 0, dtype=kind) for n in ("Abs", "Sign", "BitwiseNot")]
    for it in codes:
        with np.errstate(all="ignore"):
            want = run_code((it,), (a, b)[: len(it.args)])
        got = run((it,), *(a, b)[: len(it.args)], isa=isa)
        assert got.tobytes() == want.tobytes(), it
    for other in (
        np.float32,
        np.float64,
        np.int8,
        np.uint16,
        np.int32,
        np.uint64,
        bool,
        np.float16,
    ):
        to = by_numpy(np.dtype(other))
        assert to is not None
        it = step("Cast", 0, dtype=other, to=to.onnx, saturate=1, round_mode=b"up")
        with np.errstate(all="ignore"):
            assert run((it,), a, isa=isa).tobytes() == run_code((it,), (a,)).tobytes(), it


@pytest.mark.parametrize("isa", native.isas)
def test_casts_of_floats_to_integers(isa: str) -> None:
    """Numbers outside of a narrow type wrap as numpy lets it, on every ISA."""
    for source in (np.float32, np.float64):
        x = np.array([0, -0.9, 1.9, -3.5, 200, 300, -300, 70000, 2.0**31 - 128, -(2.0**31)], source)
        for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64):
            to = by_numpy(np.dtype(kind))
            assert to is not None
            it = step("Cast", 0, dtype=kind, to=to.onnx, saturate=1, round_mode=b"up")
            got = run((it,), np.tile(x, 7), isa=isa)
            assert got.tobytes() == run_code((it,), (np.tile(x, 7),)).tobytes(), it


def test_division_by_zero_is_a_fault() -> None:
    x, zero = np.array([1, 2], np.int32), np.array([1, 0], np.int32)
    program = encode((step("Div", 0, 1, dtype=np.int32),), [(I32, None), (I32, None)])
    assert not isinstance(program, No)
    out, given = np.empty(2, np.int32), [tensor(x), tensor(zero)]
    error = native.call("chain", given, [tensor(out)], *map(list, program), 1, "")
    assert error == "integer division by zero"


def test_a_program_may_overwrite_an_operand() -> None:
    x, y = f32(700), f32(700)
    want = run_code(PROGRAM, (x, y))
    program = encode(PROGRAM, [(F32, None), (F32, None)])
    assert not isinstance(program, No)
    assert not native.call("chain", [tensor(x), tensor(y)], [tensor(x)], *map(list, program), 1, "")
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
