"""Models in other forms give the same answers; tools/metamorphic.py runs them by the thousand."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.metamorphic import check as checking
from tests.metamorphic import isas, sessions, settings
from tests.metamorphic.check import GOOD, check, original, transformed
from tests.metamorphic.known import KNOWN
from tests.metamorphic.sources import SOURCES, Case, Source
from tests.metamorphic.table import FORMS, SETTINGS, TRANSFORMS, drawn
from tests.random_graphs.onnxruntime_process import OrtProcess
from tests.two_paths import difference

AT_ONCE = 25
SAMPLES = {"cases": 150, "random": 150, "models": 100}  # variants of the suite

MODEL = onnx.parser.parse_model("""
<ir_version: 9, opset_import: ["" : 20]>
g (float[2, 3] x, float[2, 3] y, int64[1] axis) => (float[2, 3] z, float[2] s) {
  two = Constant <value = float {2.0}> ()
  a = Add (x, y)
  b = Mul (a, two)
  z = Sub (b, w)
  s = ReduceSum <keepdims = 0> (z, axis)
}
""")
MODEL.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))


@pytest.fixture(scope="module")
def ort() -> Iterator[OrtProcess]:
    process = OrtProcess()
    yield process
    process.stop()


@functools.cache
def source(name: str) -> Source:
    return SOURCES[name]()


def some_case() -> Case:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"x": numbers, "y": numbers[::-1].copy(), "axis": np.array([1])}
    return Case("some", MODEL, feeds, lambda _, a, b: difference(a, b))


@pytest.mark.parametrize(
    ("name", "first"), [(n, i) for n, count in SAMPLES.items() for i in range(0, count, AT_ONCE)]
)
def test_samples(name: str, first: int, ort: OrtProcess) -> None:
    """Cases drawn from a source, in forms that are drawn too."""
    outcomes = []
    for seed in range(first, first + AT_ONCE):
        rng = Random(f"{name} {seed}")
        case = source(name).case(rng.randrange(source(name).count or 1_000_000))
        if case is not None:
            outcomes.append(check(original(case), drawn(rng), rng, ort))
    bad = [
        f"{o.case}, {' '.join(o.transforms)}: {o.kind}: {o.detail}"
        for o in outcomes
        if o.kind not in GOOD
    ]
    assert not bad, "\n".join(bad)
    assert sum(o.kind == "same" for o in outcomes) > AT_ONCE // 3


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_valid_and_mean_the_same(name: str, ort: OrtProcess) -> None:
    """Every form is a model that onnxruntime takes too, and gives the same for."""
    it = original(some_case())
    v, applied = transformed(it, [name], Random(3))
    assert applied == [name]
    is_same = v.model.SerializeToString() == MODEL.SerializeToString()
    assert not is_same or name in ("feeds_strided", "reordered")
    feeds = {n: np.ascontiguousarray(x) for n, x in v.feeds.items()}
    (found,) = ort.run(v.model.SerializeToString(), [feeds])
    for a, b in zip(found, v.wanted, strict=False):
        np.testing.assert_allclose(a, b, 1e-6)


@pytest.mark.parametrize("name", [n for n in SETTINGS if n not in isas.ISAS])
def test_settings(name: str, ort: OrtProcess) -> None:
    outcome = check(original(some_case()), [name], Random(1), ort)
    assert (outcome.kind, outcome.transforms) == ("same", [name])


@pytest.mark.parametrize("stored", sessions.STORED)
def test_saved_forms_are_loaded(stored: str, tmp_path: Path) -> None:
    path = sessions.STORED[stored](MODEL.SerializeToString(), tmp_path, settings.Settings())
    session = sessions.session(path, settings.Settings())
    assert ("pack" in session._compiled.stages.seconds()) == (stored == "packed")
    assert len(list(tmp_path.iterdir())) == (1 if stored == "saved" else 2)


def test_kernels_of_other_cpus(ort: OrtProcess) -> None:
    isas.start(["base"], "spawn")
    try:
        outcome = check(original(some_case()), ["if_then", "base"], Random(1), ort)
        assert (outcome.kind, outcome.transforms) == ("same", ["if_then", "base"])
    finally:
        isas.stop()
    assert check(original(some_case()), ["base"], Random(1), ort).kind == "does not apply"


def test_chains_are_of_every_transform() -> None:
    chains = [drawn(Random(seed)) for seed in range(1000)]
    assert {name for chain in chains for name in chain} == TRANSFORMS.keys()
    assert max(map(len, chains)) > 2


def test_a_wrong_answer_is_detected(monkeypatch: pytest.MonkeyPatch, ort: OrtProcess) -> None:
    it = original(some_case())
    run = settings.run

    def off(*args: Any) -> Any:
        first, *rest = run(*args)
        return [first + np.float32(1e-3), *rest]

    monkeypatch.setattr(checking.settings, "run", off)
    outcome = check(it, ["if_then"], Random(1), ort)
    assert outcome.kind == "differs"
    assert outcome.detail.startswith("output 0: 6 of 6 differ")


def test_a_wrong_refusal_is_detected(monkeypatch: pytest.MonkeyPatch, ort: OrtProcess) -> None:
    it = original(some_case())

    def refuse(*_: Any) -> Any:
        raise checking.SardonyxError("no")

    monkeypatch.setattr(checking.settings, "run", refuse)
    assert check(it, ["if_then"], Random(1), ort).kind == "refused"


def test_known_differences_have_reasons() -> None:
    assert all(known.why for known in KNOWN)
