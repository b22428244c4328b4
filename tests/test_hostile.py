"""Hostile models: a session or an error of ours, whatever is given, in bounded time and memory.

`tools/fuzz_models.py` does the same for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.errors import RuntimeException, SardonyxError
from tests.attempt import attempt, bounded_memory, feeds_for
from tests.mutate import MUTATIONS, change_bytes, change_model
from tests.seeds import SEEDS, WEIGHT_BYTES, WEIGHTS, seeds

# What numpy warns of when numbers are absurd is no concern here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def _limited() -> Iterator[None]:
    with bounded_memory(2 << 30):
        yield


@pytest.mark.parametrize("make", SEEDS)
def test_the_seeds_are_valid(make: Callable[[], onnx.ModelProto]) -> None:
    onnx.checker.check_model(make())
    assert attempt(make().SerializeToString(), Random(3)) in ("ran", "failed")


def test_a_seed_runs_on_fitting_values() -> None:
    options = sardonyx.SessionOptions()
    options.add_external_initializers_from_files_in_memory(
        [WEIGHTS], [WEIGHT_BYTES], [len(WEIGHT_BYTES)]
    )
    ran = 0
    for data in seeds():
        session = sardonyx.InferenceSession(data, options)
        feeds = feeds_for(session, Random(0))
        session.run(None, {k: np.zeros_like(v) for k, v in feeds.items()})
        ran += 1
    assert ran == len(SEEDS)


@settings(max_examples=150)
@given(st.sampled_from(seeds()), st.sampled_from(seeds()), st.randoms(use_true_random=False))
def test_changed_bytes(data: bytes, other: bytes, rng: Random) -> None:
    attempt(change_bytes(rng, data, other), rng)


@settings(max_examples=250)
@given(st.sampled_from(seeds()), st.randoms(use_true_random=False))
def test_changed_parts(data: bytes, rng: Random) -> None:
    attempt(change_model(rng, data), rng)
