"""Optimizer kernels on every ISA, in ranges and on threads, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from tests.kernels import guarded, tensor, untouched

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]

SHAPES = ((1,), (15,), (16,), (17,), (0,), (40000,), (3, 5), (70, 300), (40, 600), (5, 4, 3, 2))
SHAPES_LARGE = ((33, 20000), (16384,), (16385,))  # several blocks: of rows, of a vector
N_STEPS = 3
TYPES = {"float32": 1, "float16": 10, "bfloat16": 16}
DENORMAL_FREE = 1e-3  # scale of gradients, so that squares are normal numbers in every type
TOLERANCE = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 1.5e-1}


def narrowed(x: Array, dtype: str) -> Array:
    """Numbers rounded to a type, as its bits where numpy does not have it."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(x: Array, dtype: str) -> Array:
    """The numbers of a type as float64."""
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def rounded(x: Array, dtype: str) -> Array:
    """Numbers rounded to a type, as float64."""
    return widened(narrowed(np.asarray(x), dtype), dtype)


def adam(p: Array, g: Array, s: State, t: int, h: list[float]) -> Array:
    lr, b1, b2, eps, decay, amsgrad, is_decoupled, sign = h
    g = g * sign + (0 if is_decoupled else decay * p)
    s["0"] = b1 * s["0"] + (1 - b1) * g
    s["1"] = b2 * s["1"] + (1 - b2) * g * g
    s["2"] = np.maximum(s["2"], s["1"]) if amsgrad else s["2"]
    v = s["2"] if amsgrad else s["1"]
    p = p * (1 - lr * decay) if is_decoupled else p
    return p - lr / (1 - b1**t) * s["0"] / (np.sqrt(v / (1 - b2**t)) + eps)


def sgd(p: Array, g: Array, s: State, t: int, h: list[float]) -> Array:
    lr, momentum, dampening, decay, nesterov, _, _, sign = h
    g = g * sign + decay * p
    if momentum:
        s["0"] = g if t == 1 else momentum * s["0"] + (1 - dampening) * g
        g = g + momentum * s["0"] if nesterov else s["0"]
    return p - lr * g


def lion(p: Array, g: Array, s: State, t: int, h: list[float]) -> Array:
    lr, b1, b2, decay, _, _, _, sign = h
    update = np.sign(b1 * s["0"] + (1 - b1) * g * sign)
    s["0"] = b2 * s["0"] + (1 - b2) * g * sign
    return p * (1 - lr * decay) - lr * update


def adafactor(p: Array, g: Array, s: State, t: int, h: list[float]) -> Array:
    lr, beta2_decay, eps1, eps2, decay, d, _, sign = h
    g, w = g * sign, t**beta2_decay
    alpha = max(eps2, np.sqrt((p * p).mean())) * min(lr, t**-0.5) if p.size else 0.0
    if p.ndim > 1:
        s["0"] += w * ((g * g).mean(-1, keepdims=True) - s["0"])
        s["1"] += w * ((g * g).mean(-2, keepdims=True) - s["1"])
        v = s["0"] * s["1"] / np.maximum(s["0"].mean(-2, keepdims=True), eps1)
    else:
        s["2"] += w * (g * g - s["2"])
        v = s["2"]
    u = g / np.sqrt(np.maximum(v, eps1 * eps1))
    rms = np.sqrt((u * u).mean()) if u.size else 0.0
    return p * (1 - lr * decay) - alpha / max(1.0, rms / d) * u


# Kernel, formula, hyperparameters of two groups.
RULES: tuple[tuple[str, Callable[..., Array], list[list[float]]], ...] = (
    (
        "adam_step",
        adam,
        [[1e-2, 0.9, 0.999, 1e-6, 0.1, 0, 1, 1], [2e-2, 0.8, 0.9, 1e-6, 0, 1, 0, -1]],
    ),
    (
        "adam_step",
        adam,
        [[1e-2, 0.0, 0.99, 1e-6, 0.1, 1, 0, 1], [1e-2, 0.9, 0.99, 1e-5, 0.1, 0, 0, 1]],
    ),
    ("sgd_step", sgd, [[0.1, 0, 0, 0, 0, 0, 0, 1], [0.1, 0.9, 0.5, 0.1, 0, 0, 0, -1]]),
    ("sgd_step", sgd, [[0.1, 0.9, 0, 0.1, 1, 0, 0, 1], [0.1, 0, 0, 0.1, 0, 0, 0, 1]]),
    ("lion_step", lion, [[1e-2, 0.9, 0.99, 0.1, 0, 0, 0, 1], [1e-2, 0.5, 0.9, 0, 0, 0, 0, -1]]),
    (
        "adafactor_step",
        adafactor,
        [[1e-2, -0.8, 1e-6, 1e-3, 0, 1, 0, 1], [0.9, -0.5, 1e-6, 1e-3, 0.1, 2, 0, -1]],
    ),
)


class Param:
    """A parameter with its states, in guarded memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str, rng: Any, *, factored: bool) -> None:
        self.dtype, self.shape = dtype, shape
        shapes = [shape] * 5  # parameter, gradient, three states
        if factored and len(shape) > 1:
            shapes[2:4] = [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]
        bits = "uint16" if dtype == "bfloat16" else dtype
        self.arrays = [guarded(s, np.dtype(bits), 4) for s in shapes]
        for inner, _ in self.arrays[2:]:
            inner[...] = 0
        self.arrays[0][0][...] = narrowed(rng.standard_normal(shape), dtype)
        self.step = np.zeros(1, np.float32)
        self.expected = widened(self.arrays[0][0], dtype)
        self.states = {str(i): np.zeros(s) for i, s in enumerate(shapes[2:])}

    def record(self, group: int, *, is_first: bool) -> list[int]:
        """The row of the kernel's table."""
        rows = self.shape[-2:] if len(self.shape) > 1 else (0, 0)
        size = int(np.prod(self.shape))
        addresses = [inner.ctypes.data for inner, _ in self.arrays]
        counter = self.step.ctypes.data
        return [*addresses, counter, size, TYPES[self.dtype], group, is_first, *rows]


def run_step(
    kernel: str, params: list[Param], groups: list[list[float]], t: int, **how: Any
) -> float:
    """One step of a kernel; returns the norm of the gradients."""
    floats = [how.pop("max_norm", -1.0), how.pop("scale", 1.0), how.pop("other_squares", 0.0)]
    rows = [p.record(i % len(groups), is_first=t == 1) for i, p in enumerate(params)]
    table, numbers = np.array(rows, np.int64).reshape(-1, 12), np.array(groups)
    norm = np.zeros(1)
    error = native.call(kernel, [tensor(table), tensor(numbers)], [tensor(norm)], [], floats, **how)
    assert not error, error
    assert all(untouched(whole, inner) for p in params for inner, whole in p.arrays)
    return float(norm[0])


def params_of(dtype: str, kernel: str, shapes: tuple[tuple[int, ...], ...]) -> list[Param]:
    rng = np.random.default_rng(7)
    return [Param(s, dtype, rng, factored=kernel == "adafactor_step") for s in shapes]


def set_grads(params: list[Param], t: int) -> None:
    rng = np.random.default_rng(t)
    for p in params:
        g = rng.standard_normal(p.shape)
        g = np.sign(g) * (np.abs(g) + DENORMAL_FREE)  # no sign that rounding decides
        p.arrays[1][0][...] = narrowed(g, p.dtype)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("kernel", "formula", "groups"), RULES)
def test_steps_against_numpy(
    isa: str, dtype: str, kernel: str, formula: Any, groups: list[list[float]]
) -> None:
    shapes = SHAPES + (SHAPES_LARGE if dtype == "float32" else ())
    params = params_of(dtype, kernel, shapes)
    for t in range(1, N_STEPS + 1):
        set_grads(params, t)
        run_step(kernel, params, groups, t, isa=isa, splits=3)
        for i, p in enumerate(params):
            g = widened(p.arrays[1][0], dtype)
            made = formula(p.expected, g, p.states, t, groups[i % 2])
            p.expected = rounded(made, dtype)
            p.states = {name: rounded(s, dtype) for name, s in p.states.items()}
            got, bound = widened(p.arrays[0][0], dtype), TOLERANCE[dtype]
            np.testing.assert_allclose(
                got, p.expected, rtol=bound, atol=bound, err_msg=str(p.shape)
            )
            if kernel in ("adam_step", "adafactor_step"):
                assert p.step[0] == t


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(("kernel", "groups"), [(r[0], r[2]) for r in RULES[1::2]])
def test_any_split_gives_the_same_bytes(isa: str, kernel: str, groups: list[list[float]]) -> None:
    made = []
    for how in ({"splits": 1}, {"splits": 2}, {"splits": 7}, {"splits": 0, "threads": 2}):
        params = params_of("float32", kernel, SHAPES + SHAPES_LARGE)
        for t in (1, 2):
            set_grads(params, t)
            run_step(kernel, params, groups, t, isa=isa, max_norm=1.0, **how)
        made.append(b"".join(inner.tobytes() for p in params for inner, _ in p.arrays))
    assert made[1:] == made[:1] * 3


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize("kernel", ["adam_step", "adafactor_step", "lion_step", "sgd_step"])
def test_clipping_is_a_factor_of_the_gradients(isa: str, kernel: str) -> None:
    """A step that clips equals one on gradients that were multiplied before."""
    groups = next(r[2] for r in RULES if r[0] == kernel)
    clipped, scaled = (params_of("float32", kernel, SHAPES) for _ in range(2))
    set_grads(clipped, 1)
    set_grads(scaled, 1)
    squares = sum(float((widened(p.arrays[1][0], "float32") ** 2).sum()) for p in clipped)
    norm = run_step(kernel, clipped, groups, 1, isa=isa, max_norm=2.0, other_squares=25.0)
    assert norm == pytest.approx(np.sqrt(squares + 25), rel=1e-6)
    for p in scaled:
        p.arrays[1][0][...] *= np.float32(2.0 / (norm + 1e-6))
    run_step(kernel, scaled, groups, 1, isa=isa)
    for a, b in zip(clipped, scaled, strict=True):
        np.testing.assert_allclose(a.arrays[0][0], b.arrays[0][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", native.isas)
def test_scaled_gradients_are_unscaled_in_place(isa: str) -> None:
    """As torch's fused kernels do for torch.amp.GradScaler."""
    groups = RULES[0][2]
    scaled, plain = (params_of("float32", "adam_step", SHAPES) for _ in range(2))
    set_grads(scaled, 1)
    set_grads(plain, 1)
    for p in scaled:
        p.arrays[1][0][...] *= 1024
    run_step("adam_step", scaled, groups, 1, isa=isa, scale=1024.0)
    run_step("adam_step", plain, groups, 1, isa=isa)
    for a, b in zip(scaled, plain, strict=True):
        for i in range(5):
            np.testing.assert_array_equal(a.arrays[i][0], b.arrays[i][0])


@pytest.mark.parametrize("isa", native.isas)
def test_numbers_that_are_not_finite(isa: str) -> None:
    """An infinite parameter stays one without weight decay; NaN reaches all it is clipped with."""
    params = params_of("float32", "sgd_step", ((20,), (20,)))
    set_grads(params, 1)
    params[0].arrays[0][0][3] = -np.inf
    run_step("sgd_step", params, [[0.1, 0.9, 0, 0, 0, 0, 0, 1]], 1, isa=isa)
    assert params[0].arrays[0][0][3] == -np.inf
    params[0].arrays[1][0][5] = np.nan
    norm = run_step("sgd_step", params, [[0.1, 0, 0, 0, 0, 0, 0, 1]], 2, isa=isa, max_norm=1.0)
    assert np.isnan(norm)
    assert np.isnan(params[1].arrays[0][0]).all()
