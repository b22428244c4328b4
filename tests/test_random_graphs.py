"""Random graphs on Sardonyx and onnxruntime; tools/random_graphs.py runs them by the thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.random_graphs.check import check
from tests.random_graphs.compare import difference
from tests.random_graphs.graph import RandomGraph, Run, make
from tests.random_graphs.known import KNOWN
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.random_graphs.runs import theirs
from tests.random_graphs.shrink import shrink

ROOT = Path(__file__).parents[1]
SEEDS = 240  # graphs of the suite
AT_ONCE = 24
GOOD = ("same", "both refuse", "empty")


@pytest.fixture(scope="module")
def ort() -> Iterator[OrtProcess]:
    process = OrtProcess()
    yield process
    process.stop()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_graphs(first: int, ort: OrtProcess) -> None:
    outcomes = [check(make(seed), ort) for seed in range(first, first + AT_ONCE)]
    bad = [f"seed {o.seed}: {o.kind}: {o.detail}" for o in outcomes if o.kind not in GOOD]
    assert not bad, "\n".join(bad)
    assert sum(not o.ort for o in outcomes) > AT_ONCE // 2  # most are heard of onnxruntime too


DIGESTS = """
import hashlib
from tests.random_graphs.graph import make
for seed in range(24):
    model = make(seed).model().SerializeToString(deterministic=True)
    print(seed, hashlib.sha256(model).hexdigest())
"""


def test_graphs_are_deterministic() -> None:
    """Also in another process, where sets of strings have another order."""
    digests = []
    for hash_seed in ("1", "2"):
        paths = os.pathsep.join([str(ROOT), *sys.path])
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(done.stdout.splitlines())
    assert digests[0] == digests[1]
    assert len(digests[0]) == 24


def test_known_differences_have_reasons() -> None:
    assert all(k.op and k.why for k in KNOWN)
    assert len({(k.op, k.why) for k in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(
    ("found", "wanted", "noisy", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2.0001]), [], True),
        (np.float32([1, 2]), np.float32([1, 2.001]), [], False),
        (np.float32([1, 2]), np.float32([1, 2.001]), [np.float32([1, 2.0011])], True),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), [], True),
        (np.float32([np.nan, 1]), np.float32([0, 1]), [], False),
        (np.float32([np.nan, 1]), np.float32([0, 1]), [np.float32([np.inf, 1])], True),
        (np.int64([3]), np.int64([4]), [], False),
        (np.int64([3]), np.int64([4]), [np.int64([3])], True),
        (np.uint8([3, 9]), np.uint8([4, 9]), [np.uint8([4, 8])], True),
        (np.uint8([1, 9]), np.uint8([4, 9]), [np.uint8([4, 8])], False),
        (np.zeros((2, 3)), np.zeros((3, 2)), [], False),
        (np.zeros((2, 3)), np.zeros((3, 2)), [np.zeros((4, 2))], True),
        (np.float32([1]), np.float64([1]), [], False),
        ([np.int64([1])], [np.int64([1]), np.int64([2])], [], False),
        ({"a": 1.0}, {"a": 2.0}, [], False),
        (None, np.zeros(1), [], False),
        (np.array(["a"], object), np.array(["b"], object), [], False),
    ],
)  # fmt: skip
def test_differences(found: object, wanted: object, noisy: list[object], same: bool) -> None:
    assert (difference(found, wanted, noisy) == "") is same


def _broken(graph: RandomGraph) -> RandomGraph:
    """The graph with one output that is not what its nodes make."""
    name = graph.outputs[0]
    runs = [Run(r.feeds, {**r.values, name: r.values[name] + 1}) for r in graph.runs]
    return replace(graph, runs=runs, steps=[])


def test_a_wrong_answer_is_detected_and_shrunk(ort: OrtProcess) -> None:
    seeds = (s for s in range(1000) if len(make(s).nodes) > 8)
    graphs = (make(s) for s in seeds)
    graph = next(g for g in graphs if g.outputs and g.runs[0].values[g.outputs[0]].dtype == "f4")
    broken = _broken(graph)
    assert check(broken, ort).kind == "native differs"
    small = shrink(broken, lambda g: check(g, ort).kind)
    assert len(small.nodes) < len(graph.nodes)
    assert small.outputs == graph.outputs[:1]


def test_crashes_of_onnxruntime_are_reported(ort: OrtProcess) -> None:
    graph = next(g for g in map(make, range(100)) if g.outputs and not g.refusal)
    assert theirs(graph, graph.outputs, ort)
    assert ort._process is not None
    ort._process.kill()
    with pytest.raises(OrtError, match="died"):
        theirs(graph, graph.outputs, ort)
    assert theirs(graph, graph.outputs, ort)
