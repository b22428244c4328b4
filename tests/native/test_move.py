"""Kernels that move elements, on tensors of any strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sardonyx._native as native
from tests.kernels import SPLITS, guarded, tensor, untouched

WORDS = (np.uint8, np.float16, np.float32, np.int64, np.complex128)


def ramp(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Bytes that tell every element of a small tensor from its neighbours."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return (np.arange(count) * 37 % 251).astype(np.uint8).view(dtype).reshape(shape)


def check(
    kernel: str, views: list[np.ndarray], expected: np.ndarray, ints: tuple[int, ...]
) -> None:
    """A kernel gives the bytes of `expected` on every ISA, in any number of parts."""
    for isa in native.isas:
        for splits in SPLITS:
            out, whole = guarded(expected.shape, expected.dtype)
            given = [tensor(v) for v in views]
            assert not native.call(kernel, given, [tensor(out)], list(ints), [], splits, isa)
            assert untouched(whole, out), f"{isa} wrote outside its output"
            assert out.tobytes() == expected.tobytes(), f"{isa} in {splits} parts"


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """A strided view: axes permuted, cut with steps of either sign, repeated."""
    rank = draw(st.integers(0, 6))
    sizes = (0, 1, 1, 2, 3, 4, 5) if rank > 3 else (0, 1, 2, 3, 7, 8, 15, 16, 17, 31)
    shape = tuple(draw(st.sampled_from(sizes)) for _ in range(rank))
    view = ramp(shape, draw(st.sampled_from(WORDS)))
    for axis in range(rank):
        if step := draw(st.sampled_from((0, 0, 0, 0, -1, 2, -2, 3))):
            view = view[(slice(None),) * axis + (slice(draw(st.integers(0, 2)), None),)]
            view = view[(slice(None),) * axis + (slice(None, None, step),)]
    view = view.transpose(draw(st.permutations(range(rank))))
    wider = [draw(st.sampled_from((1, 2, 3))) if d == 1 else d for d in view.shape]
    front = draw(st.sampled_from(((), (), (2,), (1,))))
    return np.broadcast_to(view, (*front, *wider))


@given(views())
@settings(max_examples=300, deadline=None)
def test_copy(view: np.ndarray) -> None:
    check("copy", [view], np.ascontiguousarray(view), ())


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "shape", [(129, 131), (64, 64), (3, 5000), (5000, 3), (2, 99), (4, 99), (17, 16)]
)
def test_copy_of_a_transpose(shape: tuple[int, int], word: Any) -> None:
    view = ramp((2, *shape), word)
    check("copy", [view.transpose(0, 2, 1)], np.ascontiguousarray(view.transpose(0, 2, 1)), ())
    check("copy", [view[:, 1:].T], np.ascontiguousarray(view[:, 1:].T), ())


def test_copy_of_long_contiguous_runs() -> None:
    view = ramp((3, 200_001), np.uint8)[:, 1:]
    check("copy", [view], np.ascontiguousarray(view), ())


@given(st.lists(views(), min_size=1, max_size=4), st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_concat(parts: list[np.ndarray], axis: int) -> None:
    first = parts[0]
    assume(first.ndim)
    axis %= first.ndim
    alike = [first]
    for part in parts[1:]:
        size = part.shape[0] if part.ndim else 1
        shape = tuple(size if i == axis else d for i, d in enumerate(first.shape))
        alike.append(ramp(shape[::-1], first.dtype).T)
    check("concat", alike, np.concatenate(alike, axis), (axis,))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(("start", "delta", "count"), [(0, 1, 1009), (5, -3, 17), (2, 2, 0)])
def test_range(dtype: Any, start: int, delta: int, count: int) -> None:
    """Of known sizes; rows of the op have sizes that the data gives."""
    numbers = [np.array(n, dtype) for n in (start, start + count * delta, delta)]
    check("range", numbers, np.arange(count).astype(dtype) * numbers[2] + numbers[0], ())
