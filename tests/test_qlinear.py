"""QLinear ops with any scales and zero points: they differ from onnxruntime only in ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sardonyx
from tests.op_cases import Array, Case
from tests.oracle import by_onnxruntime, feeds_of, model_of
from tests.test_ops import CASES, GOOD, start, title

NEAR = 1e-3  # steps from a half, within which rounding may fall either way
SEEDS = 12


class Maker:
    """Random bytes with scales and zero points, and what they stand for."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype: Any = (np.uint8, np.int8)[seed % 2]
        self.inputs: list[Any] = []

    def number(self, low: float, high: float) -> Array:
        return np.array(self.rng.uniform(low, high), np.float32)

    def zero(self) -> Array:
        info = np.iinfo(self.dtype)
        return np.array(self.rng.integers(info.min, info.max + 1), self.dtype)

    def bytes(self, *shape: int, scale: tuple[float, float] = (0.01, 0.1)) -> Array:
        """Appends bytes, a scale and a zero point to the inputs; the numbers that they are."""
        info = np.iinfo(self.dtype)
        x = self.rng.integers(info.min, info.max + 1, shape).astype(self.dtype)
        self.inputs += [x, self.number(*scale), self.zero()]
        return real(*self.inputs[-3:])

    def result(self, y: Array) -> None:
        """Appends a scale that fits most of the result, and a zero point."""
        spread = float(np.abs(y).max(initial=0.01)) / 150
        self.inputs += [self.number(spread, 2 * spread), self.zero()]


def real(x: Array, scale: Array, zero: Array) -> Array:
    """In float64, which holds it all but exactly."""
    made: Array = (x.astype(np.float64) - float(zero)) * float(scale)
    return made


def binary(compute: Callable[[Any, Any], Any]) -> Callable[[Maker], Any]:
    def make(m: Maker) -> Any:
        y = compute(m.bytes(3, 1, 37), m.bytes(5, 37))
        m.result(y)
        return y, {}

    return make


def unary(compute: Callable[[Any], Any], **attrs: Any) -> Callable[[Maker], Any]:
    def make(m: Maker) -> Any:
        y = compute(m.bytes(2, 4, 6, 8))
        m.result(y)
        return y, attrs

    return make


def pooled(x: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (2, 3), (2, 3)).mean(axis=(-2, -1))


def joined(m: Maker) -> Any:
    parts = [m.bytes(2, 5), m.bytes(3, 5)]
    y, given = np.concatenate(parts), m.inputs
    m.inputs = []
    m.result(y)
    m.inputs += given
    return y, {"axis": 0}


def chosen(m: Maker) -> Any:
    condition = m.rng.random((4, 1)) < 0.5
    y = np.where(condition, m.bytes(4, 7), m.bytes(7))
    m.inputs.insert(0, condition)
    m.result(y)
    return y, {}


def product(m: Maker) -> Any:
    m.dtype = np.uint8
    a = m.bytes(5, 19)
    m.dtype = np.int8
    y = a @ m.bytes(19, 7)
    m.dtype = np.uint8
    m.inputs.append(None)
    m.result(y)
    return y, {}


OPS: dict[str, Callable[[Maker], Any]] = {
    "QLinearAdd": binary(np.add),
    "QLinearMul": binary(np.multiply),
    "QLinearSigmoid": unary(lambda x: 1 / (1 + np.exp(-x))),
    "QLinearLeakyRelu": unary(lambda x: np.where(x < 0, x * float(np.float32(0.3)), x), alpha=0.3),
    "QLinearAveragePool": unary(pooled, kernel_shape=[2, 3]),
    "QLinearGlobalAveragePool": unary(lambda x: x.mean(axis=(2, 3), keepdims=True)),
    "QLinearConcat": joined,
    "QLinearWhere": chosen,
    "QGemm": product,
}


def answers(op: str, m: Maker, attrs: dict[str, Any]) -> tuple[Array, Array]:
    """Return the results of Sardonyx and of onnxruntime."""
    case = Case(op, tuple(m.inputs), attrs, "com.microsoft")
    session = sardonyx.InferenceSession(model_of(case).SerializeToString())
    ours, theirs = session.run(None, feeds_of(case))[0], by_onnxruntime(case)[0]
    return ours.astype(np.int64), theirs.astype(np.int64)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("op", OPS)
def test_differences_are_ties_only(op: str, seed: int) -> None:
    m = Maker(seed)
    y, attrs = OPS[op](m)
    scale, zero = m.inputs[:2] if op == "QLinearConcat" else m.inputs[-2:]
    ours, theirs = answers(op, m, attrs)
    steps = y / float(scale) + float(zero)
    is_half = np.abs(steps - np.floor(steps) - 0.5) < NEAR
    assert np.abs(ours - theirs).max() <= 1
    assert is_half[ours != theirs].all()
    info = np.iinfo(m.dtype)
    exact = np.clip(np.rint(steps), info.min, info.max)
    assert (ours == exact)[~is_half].all()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_softmax_differs_by_one_step_at_most(seed: int) -> None:
    """Whereas onnxruntime rounds each exponential to a whole number first."""
    m = Maker(seed)
    x = m.bytes(4, 19)
    y = np.exp(x - x.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    low = np.array(np.iinfo(m.dtype).min, m.dtype)
    m.inputs += [np.array(1 / 256, np.float32), low]
    ours, theirs = answers("QLinearSoftmax", m, {"axis": 1, "opset": 13})
    assert np.abs(ours - theirs).max() <= 1
    exact = np.rint(y * 256 + float(low))
    assert np.abs(ours - np.minimum(exact, np.iinfo(m.dtype).max)).max() <= 1


# Results are bytes, so a sum that is rounded the other way is off by one of 256.
BYTES = {np.dtype(np.uint8), np.dtype(np.int8)}
ROUNDED = [
    i
    for i in GOOD
    if CASES[i].op.startswith("QLinear") or CASES[i].op in ("QGemm", "ConvInteger", "MatMulInteger")
]
SCALES = np.float32([1, 0.5, 0.125, 0.1, 0.03, 1 / 3])


def other(x: Any, rng: np.random.Generator) -> Any:
    """Other bytes, and scales that put many results half way between two bytes."""
    if not isinstance(x, np.ndarray) or not x.size:
        return x
    if x.dtype in BYTES and x.size > 1:
        low, high = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
        return rng.integers(low, high, x.shape, x.dtype, endpoint=True)
    if x.dtype == np.float32 and x.size == 1:
        return np.array(rng.choice(SCALES), np.float32).reshape(x.shape)
    return x


@pytest.mark.parametrize("index", ROUNDED, ids=title)
def test_constant_folding_gives_the_same_bytes(index: int) -> None:
    rng = np.random.default_rng(index)
    for _ in range(6):
        case = replace(CASES[index], inputs=tuple(other(x, rng) for x in CASES[index].inputs))
        feeds = feeds_of(case)
        fed = start(case).run(None, feeds)
        folded = start(case, constants=list(feeds)).run(None, {})
        assert all(map(np.array_equal, fed, folded))
