"""Reductions, softmax, normalizations and selections on tensors of any strides."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sardonyx._native as native
from sardonyx.ops import lookup
from tests.kernels import SPLITS, guarded, tensor, untouched
from tests.oracle import difference

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_l1": "ReduceL1",
    "reduce_l2": "ReduceL2",
    "reduce_sum_square": "ReduceSumSquare",
    "reduce_log_sum_exp": "ReduceLogSumExp",
}
# Rows along one axis: the op, its further integers, its attributes.
ALONG: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "softmax": ("Softmax", (), {}),
    "log_softmax": ("LogSoftmax", (), {}),
    "hardmax": ("Hardmax", (), {}),
    "arg_max": ("ArgMax", (0,), {"keepdims": 1, "select_last_index": 0}),
    "arg_min": ("ArgMin", (1,), {"keepdims": 1, "select_last_index": 1}),
    "lp_norm": ("LpNormalization", (2,), {"p": 2}),
}


def reference(op: str, *arrays: Any, domain: str = "", **attrs: Any) -> list[Array]:
    found = lookup(domain, op)
    assert found is not None
    return list(found.run(list(arrays), attrs))


def check(
    kernel: str,
    inputs: list[Array | None],
    expected: list[Array],
    ints: tuple[int, ...] = (),
    floats: tuple[float, ...] = (),
) -> None:
    """A kernel gives nearly what is expected on every ISA, and the same bytes in any parts."""
    for isa in native.isas:
        results = []
        for splits in SPLITS:
            made = [guarded(e.shape, e.dtype) for e in expected]
            outputs = [tensor(inner) for inner, _ in made]
            given = [tensor(x) for x in inputs]
            assert not native.call(kernel, given, outputs, list(ints), list(floats), splits, isa)
            assert all(untouched(whole, inner) for inner, whole in made), isa
            results.append([inner for inner, _ in made])
        for other in results[1:]:
            assert [a.tobytes() for a in results[0]] == [a.tobytes() for a in other], isa
        wrong = difference(results[0], expected, 32)
        assert not wrong, f"{isa}: {wrong}"


@st.composite
def views(draw: st.DrawFn) -> Array:
    """A strided view: axes permuted, cut with steps of either sign, repeated."""
    rank = draw(st.integers(1, 5))
    sizes = (0, 1, 1, 2, 3, 5) if rank > 3 else (1, 2, 3, 7, 15, 16, 17, 40, 70)
    shape = tuple(draw(st.sampled_from(sizes)) for _ in range(rank))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    view = (np.abs(rng.standard_normal(shape)) + 0.1).astype(draw(st.sampled_from(TYPES)))
    for axis in range(rank):
        if step := draw(st.sampled_from((0, 0, 0, 0, -1, 2, -2))):
            view = view[(slice(None),) * axis + (slice(None, None, step),)]
    view = view.transpose(draw(st.permutations(range(rank))))
    wider = [draw(st.sampled_from((1, 1, 3, 20))) if d == 1 else d for d in view.shape]
    return np.broadcast_to(view, wider)


@given(views(), st.sampled_from(sorted(REDUCTIONS)), st.integers(0, 31))
@settings(max_examples=400, deadline=None)
def test_reductions(view: Array, kernel: str, bits: int) -> None:
    axes = [a for a in range(view.ndim) if bits >> a & 1]
    attrs = {"keepdims": 0, "noop_with_empty_axes": 1}
    x = np.ascontiguousarray(view)
    expected = reference(REDUCTIONS[kernel], x, np.array(axes, np.int64), **attrs)
    check(kernel, [view], expected, (sum(1 << a for a in axes),))


@given(views(), st.sampled_from(sorted(ALONG)), st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_along_an_axis(view: Array, kernel: str, axis: int) -> None:
    op, ints, attrs = ALONG[kernel]
    axis %= view.ndim
    assume(not op.startswith("Arg") or view.shape[axis] > 0)
    expected = reference(op, np.ascontiguousarray(view), axis=axis, **attrs)
    check(kernel, [view], expected, (axis, *ints))


@given(views(), st.integers(0, 4), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_cumulative_sums(view: Array, axis: int, exclusive: bool, reverse: bool) -> None:
    axis %= view.ndim
    attrs = {"exclusive": int(exclusive), "reverse": int(reverse)}
    expected = reference("CumSum", np.ascontiguousarray(view), np.array(axis), **attrs)
    check("running_sum", [view], expected, (axis, int(exclusive), int(reverse)))


@given(views(), st.integers(0, 4), st.integers(0, 9), st.booleans())
@settings(max_examples=200, deadline=None)
def test_top_k(view: Array, axis: int, k: int, largest: bool) -> None:
    axis %= view.ndim
    k = min(k, view.shape[axis])
    attrs = {"axis": axis, "largest": int(largest), "sorted": 1}
    expected = reference("TopK", np.ascontiguousarray(view), np.array([k]), **attrs)
    check("top_k", [view], expected, (axis, int(largest)))


@given(views(), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_layer_norm(view: Array, axis: int) -> None:
    axis %= view.ndim
    scale = np.broadcast_to(np.asarray(0.5, view.dtype), view.shape[axis:])
    attrs = {"axis": axis, "epsilon": 0.1, "stash_type": 1}
    expected = reference("LayerNormalization", np.ascontiguousarray(view), scale, **attrs)
    check("layer_norm", [view, scale, None, None, None], expected, (axis, 1, 2, 9), (0.1,))


@pytest.mark.parametrize("dtype", TYPES)
def test_batch_norm_with_channels_last(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 7, 35)).astype(dtype)
    rows = [(np.abs(rng.standard_normal(35)) + 0.1).astype(dtype) for _ in range(4)]
    attrs = {"epsilon": 1e-3, "training_mode": 0, "momentum": 0.9}
    first = np.moveaxis(x, -1, 1)
    (expected,) = reference("BatchNormalization", np.ascontiguousarray(first), *rows, **attrs)
    check("batch_norm", [x, *rows], [np.moveaxis(expected, 1, -1).copy()], (3,), (1e-3,))
    check("batch_norm", [first, *rows], [expected], (1,), (1e-3,))


def test_whole_tensors_are_accurate() -> None:
    x = np.random.default_rng(1).random(1_000_003, np.float32)
    truth = x.astype(np.float64).sum().astype(np.float32)
    for isa in native.isas:
        out = np.empty((), np.float32)
        assert not native.call("reduce_sum", [tensor(x)], [tensor(out)], [1], [], 1, isa)
        assert abs(out - truth) <= 2 * np.spacing(truth), isa


def test_top_k_known_when_it_runs() -> None:
    x, k = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2], np.int64)
    unknown = [(0, 1, [-1, -1], [0, 0]), (0, 7, [-1, -1], [0, 0])]
    assert native.resolve("top_k_open", [tensor(x), tensor(k)], unknown, [1, 1], []) == [[3, 2]] * 2
    many = np.array([5], np.int32)
    with pytest.raises(ValueError, match="K is 5, and axis 1 has 4 elements"):
        native.resolve("top_k_open", [tensor(x), tensor(many)], unknown, [1, 1], [])


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("limit", [0, 3, 1000])
def test_non_max_suppression(centred: int, limit: int) -> None:
    rng = np.random.default_rng(2)
    boxes = rng.random((2, 300, 4), np.float32)
    scores = rng.random((2, 3, 300), np.float32)
    scores[0, 0, :9] = np.nan, 0.7, 0.7, 0.7, np.inf, -np.inf, 0, -0.0, 0.2
    most, overlap = np.array([limit], np.int64), np.array([0.4], np.float32)
    for least in (None, np.array([0.3], np.float32)):
        inputs = [boxes, scores, most, overlap, least]
        (expected,) = reference("NonMaxSuppression", *inputs, center_point_box=centred)
        given = [tensor(a) for a in inputs]
        unknown = [(0, 7, [-1, 3], [0, 0])]
        assert native.resolve("non_max", given, unknown, [centred], []) == [list(expected.shape)]
        check("non_max", inputs, [expected], (centred,))


def test_non_max_suppression_refusals() -> None:
    boxes, scores = np.zeros((1, 2, 4), np.float32), np.zeros((1, 1, 2), np.float32)
    inputs = [tensor(a) for a in (boxes, scores, np.array([1]), np.array([1.5], np.float32))]
    with pytest.raises(ValueError, match=r"iou_threshold is 1.5, outside \[0, 1\]"):
        native.resolve("non_max", inputs, [(0, 7, [-1, 3], [0, 0])], [0], [])
