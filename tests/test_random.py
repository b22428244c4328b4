"""Random ops: equal seeds give equal numbers, and moments are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.ops import lookup
from sardonyx.ops.random.standard import set_seed


def run(name: str, *arrays: Any, **attrs: Any) -> Any:
    op = lookup("", name)
    assert op is not None
    return op.run(arrays, {**op.defaults, **attrs})


@pytest.mark.parametrize("name", ["RandomNormal", "RandomUniform"])
def test_a_seed_gives_the_same_numbers_again(name: str) -> None:
    a, b, c = (run(name, shape=(64,), seed=s)[0] for s in (7.0, 7.0, 7.5))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_without_a_seed_numbers_differ() -> None:
    a, b = (run("RandomNormal", shape=(64,))[0] for _ in range(2))
    assert not np.array_equal(a, b)
    drawn = []
    for _ in range(2):
        set_seed(5)
        drawn.append(run("RandomNormal", shape=(64,))[0])
    assert np.array_equal(*drawn)


def test_moments() -> None:
    (normal,) = run("RandomNormal", shape=(40_000,), mean=3.0, scale=2.0, seed=1.0)
    assert abs(normal.mean() - 3) < 0.05
    assert abs(normal.std() - 2) < 0.05
    (uniform,) = run("RandomUniform", shape=(40_000,), low=-1.0, high=3.0, seed=1.0)
    assert abs(uniform.mean() - 1) < 0.05
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    (hits,) = run("Bernoulli", np.full(40_000, 0.3, np.float32), seed=1.0)
    assert abs(hits.mean() - 0.3) < 0.02


def test_multinomial_follows_the_probabilities() -> None:
    wanted = np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]])
    (drawn,) = run("Multinomial", np.log(wanted), sample_size=20_000, seed=1.0)
    for row, shares in zip(drawn, wanted, strict=True):
        assert np.allclose(np.bincount(row, minlength=3) / 20_000, shares, atol=0.02)


def test_dropout_scales_what_it_keeps() -> None:
    x = np.ones(20_000, np.float32)
    y, mask = run("Dropout", x, np.float32([0.75]), np.array(True), seed=2)
    assert abs(mask.mean() - 0.25) < 0.02
    assert np.array_equal(y, np.where(mask, np.float32(4), np.float32(0)))
