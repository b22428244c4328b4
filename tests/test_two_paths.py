"""The comparison of the fast and the checked path reports differences, and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from tests.hostile_runs import load_and_run
from tests.invalid_feeds import mutate_feeds
from tests.two_paths import Disagree, agreed, both, difference

NAN = float("nan")
ADD = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2] x, float[N, 2] y) => (float[N, 2] z) { z = Add (x, y) }
""").SerializeToString()
FEEDS = {"x": np.ones((3, 2), np.float32), "y": np.ones((3, 2), np.float32)}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.float32([1, 2]), np.float32([1, 2])),
        (np.float32([1, NAN]), np.float32([1, -NAN])),
        (np.array([1, NAN], ml_dtypes.bfloat16), np.array([1, NAN], ml_dtypes.bfloat16)),
        (np.array(["a", "é"], object), np.array(["a", "é"], object)),
        ([np.int64(3), None], [np.int64(3), None]),
        ({"a": 1.0, "b": NAN}, {"a": 1.0, "b": NAN}),
        (InvalidArgument("no"), InvalidArgument("no")),
    ],
)
def test_equal_results(found: Any, wanted: Any) -> None:
    assert not difference(found, wanted)


@pytest.mark.parametrize(
    ("found", "wanted", "text"),
    [
        (np.float32([1, 2]), np.float32([1, 3]), r"1 of 2 differ in float32\[2\], first at \(1,\)"),
        (np.float32([0.0]), np.float32([-0.0]), "0.0, not -0.0"),
        (np.float32([NAN]), np.float32([0]), "nan, not 0"),
        (np.float32([1]), np.float64([1]), r"float32\[1\], not float64\[1\]"),
        (np.zeros((1, 2)), np.zeros((2, 1)), "not float64"),
        (np.array(["a"], object), np.array(["b"], object), "a, not b"),
        ([np.int64(3)], [np.int64(3)] * 2, "not"),
        ({"a": 1.0}, {"a": 2.0}, "at 'a': 1.0, not 2.0"),
        (None, np.zeros(1), "not"),
        (InvalidArgument("no"), InvalidArgument("yes"), "no, not InvalidArgument: .*yes"),
        (ValueError("no"), InvalidArgument("no"), "ValueError: no, not InvalidArgument"),
        ([np.zeros(1)], InvalidArgument("no"), "a result .* not InvalidArgument"),
    ],
)
def test_different_results(found: Any, wanted: Any, text: str) -> None:
    with pytest.raises(Disagree, match=text):
        agreed(wanted, found)


def test_both_paths_are_run() -> None:
    opened: list[sardonyx.InferenceSession] = []

    def start() -> sardonyx.InferenceSession:
        opened.append(sardonyx.InferenceSession(ADD))
        return opened[-1]

    assert both(start, FEEDS)[0].tolist() == [[2, 2]] * 3
    assert opened[0] is not opened[1]
    with pytest.raises(InvalidArgument, match="rank 1"):
        both(start, {**FEEDS, "x": np.ones(2, np.float32)})


def test_a_path_difference_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sardonyx.InferenceSession.run

    def odd(session: Any, names: Any, feeds: dict[str, Any], options: Any = None) -> Any:
        return [feeds["x"]] if options is None else run(session, names, feeds, options)

    monkeypatch.setattr(sardonyx.InferenceSession, "run", odd)
    with pytest.raises(Disagree, match=r"1\.0, not 2\.0"):
        both(lambda: sardonyx.InferenceSession(ADD), FEEDS)
    with pytest.raises(Disagree):
        load_and_run(ADD, Random(4), invalid_feed_rate=0.0)


def test_mutated_feeds_leave_the_given_ones_unchanged() -> None:
    given = {"x": np.zeros((2, 3), np.float32), "s": [np.zeros(2, np.int64)] * 2, "o": None}
    kinds = set()
    for seed in range(300):
        mutated = mutate_feeds(Random(seed), given)
        changed = {n for n in mutated.keys() | given.keys() if mutated.get(n) is not given.get(n)}
        kinds |= {(n, type(mutated.get(n)).__name__) for n in changed}
    assert {("x", "ndarray"), ("x", "NoneType"), ("s", "list"), ("s", "ndarray")} <= kinds
    assert [x.shape for x in given["s"]] == [(2,), (2,)]
    assert given["x"].shape == (2, 3)
