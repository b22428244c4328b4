"""Kernels of training steps on every ISA: as their references, in place, and in any split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import BF16
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.op import GRADIENT
from sardonyx.ops import lookup
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.kernels import tensor

Array = Any
RNG = np.random.default_rng(0)
CONTROL = np.float64([0.02, 7, 0.5, 1, 1, 1])
SKIPPED = np.float64([0.02, 7, 0.5, 0, 0, 0])
SETTINGS = np.float64([0.02, 7, 0.5, 1, 0, 3])
SIZES = [(0,), (1,), (17,), (40_000,), (3, 5), (130, 140), (2, 9, 7)]


def numbers(shape: tuple[int, ...], dtype: Any = np.float32, low: float = -1.0) -> Array:
    return RNG.uniform(low, 1, shape).astype(dtype)


def operands(op: str, shape: tuple[int, ...], dtype: Any) -> list[Array]:
    """The parameter, its gradient and its states."""
    param, grad = numbers(shape, dtype), numbers(shape, dtype)
    if op == "AdamUpdate":
        return [param, grad, numbers(shape, dtype), numbers(shape, dtype, 0.0)]
    if op == "SGDUpdate":
        return [param, grad, numbers(shape, dtype)]
    if len(shape) < 2:
        return [param, grad, numbers(shape, dtype, 0.0)]
    row, column = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return [param, grad, numbers(row, dtype, 0.0), numbers(column, dtype, 0.0)]


def run(
    op: str, arrays: list[Array | None], n_outputs: int, isa: str, splits: int, **attrs: Any
) -> list[Array]:
    """Run a node by its kernel; outputs that update an input are that input."""
    declared = lookup(GRADIENT, op)
    assert declared is not None
    graph = Graph()
    facts = [None if a is None else Value("", Fact(_dtype(a), a.shape)) for a in arrays]
    node = graph.add(declared, facts, {**declared.defaults, **attrs}, n_outputs)
    rule = declared.infer_rule
    assert rule is not None
    given = [None if v is None else v.fact for v in facts]
    absent = [None] * declared.n_absent(len(given))
    made = rule(graph.scope, *given, *absent, **node.attrs)
    for value, fact in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
        value.fact = fact
    call = lowered(node)
    assert isinstance(call, Call)
    by_value = dict(zip(facts, arrays, strict=True))
    inputs = [None if v is None else by_value[v] for v in call.inputs]  # type: ignore[index]
    updates = {output: inputs[source] for source, output in call.updates}
    outputs = [
        updates[i] if i in updates else np.zeros(v.tensor.static, v.tensor.dtype.np)
        for i, v in enumerate(node.outputs)
    ]
    error = native.call(
        call.kernel, [tensor(a) for a in inputs], [tensor(a) for a in outputs], list(call.ints),
        list(call.floats), splits, isa,
    )  # fmt: skip
    assert not error
    return outputs


def _dtype(array: Array) -> Any:
    from sardonyx.graph.dtype import by_numpy

    return by_numpy(array.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16.np], ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("op", ["AdamUpdate", "SGDUpdate", "AdafactorUpdate"])
def test_updates(op: str, shape: tuple[int, ...], dtype: Any) -> None:
    arrays = operands(op, shape, dtype)
    attrs = {"weight_decay": 0.1}
    if op == "SGDUpdate":
        attrs["momentum"] = 0.9
    expected = [a.copy() for a in arrays]
    declared = lookup(GRADIENT, op)
    assert declared is not None
    declared.run([CONTROL, *expected], {**declared.defaults, **attrs})
    first: list[bytes] | None = None
    for isa in native.isas:
        for splits in (1, 2, 7):
            found = [a.copy() for a in arrays]
            flag, *_ = run(op, [CONTROL, *found], len(arrays), isa, splits, **attrs)
            assert flag == 1
            first = [a.tobytes() for a in found] if splits == 1 else first
            assert [a.tobytes() for a in found] == first
            for mine, one in zip(found, expected, strict=True):
                wide = np.abs(mine.astype(np.float64) - one.astype(np.float64))
                step = np.finfo(np.float32).eps * 64 if dtype is np.float32 else 0.02
                assert not wide.size or wide.max() <= step, (isa, splits)


@pytest.mark.parametrize("shape", [(17,), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16.np], ids=str)
def test_the_default_epsilon_of_adafactor(dtype: Any, shape: tuple[int, ...]) -> None:
    """That of the parameter's type, which divides gradients that are smaller."""
    param, grad, *moments = operands("AdafactorUpdate", shape, dtype)
    arrays = [
        param,
        (grad.astype(float) * 1e-3).astype(dtype),
        *(np.zeros_like(m) for m in moments),
    ]
    found, expected = ([a.copy() for a in arrays] for _ in range(2))
    declared = lookup(GRADIENT, "AdafactorUpdate")
    assert declared is not None
    declared.run([CONTROL, *expected], declared.defaults)
    run("AdafactorUpdate", [CONTROL, *found], len(arrays), "", 1)
    changes = [(a[0].astype(float) - param.astype(float)) for a in (found, expected)]
    np.testing.assert_allclose(*changes, rtol=0.01, atol=1e-2 * np.abs(changes[1]).max())


@pytest.mark.parametrize("op", ["AdamUpdate", "SGDUpdate", "AdafactorUpdate"])
def test_a_step_that_is_skipped(op: str) -> None:
    arrays = operands(op, (33, 5), np.float32)
    before = [a.copy() for a in arrays]
    flag, *_ = run(op, [SKIPPED, *arrays], len(arrays), "", 1)
    assert flag == 0
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("splits", [1, 2, 7])
def test_gradient_norm_and_step_control(isa: str, splits: int) -> None:
    grads = [numbers(shape) for shape in SIZES]
    (norm,) = run("GradientNorm", list(grads), 1, isa, splits)
    expected = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in grads))
    np.testing.assert_allclose(norm, expected, rtol=1e-7)
    loss = np.array(1.0)
    (control,) = run("StepControl", [SETTINGS, loss, norm], 1, isa, splits, max_norm=1.5)
    factor = 0.5 * 1.5 / (0.5 * expected + 1e-6)
    np.testing.assert_allclose(control, [0.02, 7, factor, 1, 0, 1], rtol=1e-6)
    for wrong in (np.nan, np.inf):
        (control,) = run("StepControl", [SETTINGS, np.array(wrong)], 1, isa, splits)
        assert control.tolist() == [0.02, 7, 0.5, 0, 0, 0]
        bad = np.array(wrong)
        (control,) = run("StepControl", [SETTINGS, loss, bad], 1, isa, splits, skips=1)
        assert control[3] == 0
        assert control[5] == 1


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("splits", [1, 2, 7])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_accumulation_and_states(isa: str, splits: int, shape: tuple[int, ...]) -> None:
    total, grad = numbers(shape), numbers(shape)
    both = total + grad
    run("AccumulateGradient", [CONTROL, total, grad], 1, isa, splits)
    np.testing.assert_array_equal(total, both)
    run("AccumulateGradient", [SKIPPED, total, grad], 1, isa, splits)
    np.testing.assert_array_equal(total, both)
    replaced = np.float64([0, 0, 0, 0, 0, 1])
    run("AccumulateGradient", [replaced, total, grad], 1, isa, splits)
    np.testing.assert_array_equal(total, grad)
    for overwrites, expected in ((None, grad + grad), (False, grad * 3), (True, grad)):
        flag = None if overwrites is None else np.array([overwrites])
        assert run("AccumulateInPlace", [total, grad, flag], 2, isa, splits)[0].all()
        np.testing.assert_allclose(total, expected, rtol=1e-6)
    state = numbers(shape)
    kept = state.copy()
    assert run("StoreState", [SKIPPED, state, grad], 2, isa, splits)[0] == 0
    np.testing.assert_array_equal(state, kept)
    assert run("StoreState", [CONTROL, state, grad], 2, isa, splits)[0] == 1
    np.testing.assert_array_equal(state, grad)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_masks_are_those_of_the_reference(isa: str, shape: tuple[int, ...]) -> None:
    op = lookup(GRADIENT, "DropoutMask")
    assert op is not None
    x = numbers(shape)
    for run_number, seed in ((0, 0), (3, 5), (2**40 + 1, 2**33 + 7)):
        settings = SETTINGS.copy()
        settings[5] = run_number
        (expected,) = op.run([settings, x], {"ratio": 0.3, "seed": seed})
        for splits in (1, 2, 7):
            (found,) = run("DropoutMask", [settings, x], 1, isa, splits, ratio=0.3, seed=seed)
            np.testing.assert_array_equal(found, expected)
    if x.size > 10_000:
        assert abs(expected.mean() - 0.7) < 0.02


def test_philox_is_that_of_the_paper() -> None:
    """The known answers of Random123 for a counter and a key of zeros."""
    from sardonyx.ops.random.mask import philox

    words = philox(np.zeros(1, np.uint64), 0, 0)
    assert [int(w[0]) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
