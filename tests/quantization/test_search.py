"""quantize_within: never slower or less accurate than asked, and resumed where it stopped."""

from __future__ import annotations

import html.parser
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import Fail, InvalidArgument, SardonyxError
from sardonyx.graph.const import ArrayConst
from sardonyx.models import DIGITS, SAMPLES
from sardonyx.quantization.search import (
    Outcome,
    QuantizationRefused,
    SearchOptions,
    evaluate,
    int8,
    quantize_within,
)
from sardonyx.quantization.search.evaluate import Evaluator, Loss, RunTimes, interleaved
from sardonyx.quantization.search.journal import Journal
from sardonyx.quantization.search.page import page
from sardonyx.quantization.search.samples import Part
from sardonyx.quantization.search.schemes import Quantizable
from tests.quantization.models import convnet, samples

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def timer(speedup: float) -> Any:
    """Return a timer that finds every candidate so many times faster than the original."""
    return lambda original, candidate, seconds: RunTimes(speedup, 1.0)


def options(speedup: float = 2.0, **changes: Any) -> SearchOptions:
    return SearchOptions(timer=timer(speedup), **{"max_loss": 0.05, "metric": "error", **changes})


def saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def products() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Return a model of three products that is smaller in n bits, and samples."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 128] x) => (float[n, 64] y) {
        p = MatMul(x, a)  q = Relu(p)  r = MatMul(q, b)  s = Tanh(r)  y = MatMul(s, c) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"a": (128, 128), "b": (128, 128), "c": (128, 64)}.items():
        array = rng.normal(0, 0.08, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model, [{"x": rng.normal(size=(16, 128)).astype(np.float32)} for _ in range(8)]


def error_of(path: Path, original: Path, feeds: list[dict[str, np.ndarray]]) -> float:
    """Return the relative error of a model, by other code than the search's."""
    pairs = [
        (a, b)
        for feed in feeds
        for a, b in zip(
            sardonyx.InferenceSession(original).run(None, feed),
            sardonyx.InferenceSession(path).run(None, feed),
            strict=True,
        )
    ]
    expected, actual = (np.concatenate([np.ravel(p[i]) for p in pairs]) for i in (0, 1))
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def test_digits(tmp_path: Path) -> None:
    out = tmp_path / "digits.int8.onnx"
    outcome = quantize_within(DIGITS, out, SAMPLES, options(metric="auto"))
    assert outcome.metric == "accuracy"  # the samples have labels
    assert outcome.loss is not None
    assert outcome.loss <= 0.05
    assert outcome.output == str(out)
    ops = {node.op_type for node in onnx.load(out).graph.node}
    assert ops & {"QuantizeLinear", "MatMulInteger"}
    arrays = np.load(SAMPLES)
    scores = sardonyx.InferenceSession(out).run(None, {"image": arrays["image"]})[0]
    assert (scores.argmax(1) == arrays["label"]).mean() >= 0.95
    assert [layer.op for layer in outcome.layers] == ["Conv", "Conv", "Gemm"]
    assert all(x.error and x.bytes_after < x.bytes_before and x.why for x in outcome.layers)
    assert os.listdir(tmp_path) == [out.name]  # intermediate results are gone


@pytest.mark.parametrize("goal", ["speed", "size"])
def test_slower_models_are_not_written(tmp_path: Path, goal: str) -> None:
    model, feeds = products()
    out, path = tmp_path / "out.onnx", saved(tmp_path, model)
    least = {"speed": 1.5, "size": 1.0}[goal]
    with pytest.raises(QuantizationRefused, match=f"{least:g} times as fast") as refusal:
        quantize_within(path, out, feeds, options(least - 0.01, goal=goal, max_loss=0.2))
    assert not out.exists()
    outcome = refusal.value.outcome
    assert outcome.output is None
    assert all(t.speedup is None or t.speedup < least for t in outcome.trials)
    assert "--min-speedup" in str(refusal.value)
    # What does not depend on the limit is used again by the next search.
    again = quantize_within(path, out, feeds, options(least, goal=goal, max_loss=0.2))
    assert out.exists()
    assert again.n_resumed
    assert again.speed is not None
    assert again.speed.speedup == least


def test_less_accurate_models_are_not_written(tmp_path: Path) -> None:
    out, model = tmp_path / "out.onnx", saved(tmp_path, convnet())
    with pytest.raises(QuantizationRefused, match=r"loses at most 0\.00%") as refusal:
        quantize_within(model, out, samples("convnet", 8), options(max_loss=0.0))
    assert not out.exists()
    assert "--max-loss" in str(refusal.value)


def test_a_bad_candidate_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever quantization makes: what counts is the loss of the very file that is written."""
    made = Quantizable.quantized

    def broken(self: Quantizable, *arguments: Any) -> Any:
        document = made(self, *arguments)
        graph = document.graph
        for name in [n for n in graph.initializers if n[0] == "w" and n.endswith("_scale")]:
            scale = graph.initializers[name].read()
            graph.initializers[name] = ArrayConst(np.asarray(scale * 50, np.float32))
        return document

    monkeypatch.setattr(Quantizable, "quantized", broken)
    out, model = tmp_path / "out.onnx", saved(tmp_path, convnet())
    with pytest.raises(QuantizationRefused):
        quantize_within(model, out, samples("convnet", 8), options(max_loss=0.01))
    assert not out.exists()


def test_held_out_samples_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that passes on the samples that calibrate gets more floats, or is refused."""
    found, calls = Evaluator.loss, list[float]()

    def loss(self: Evaluator, session: Any, part: Part) -> Loss:
        true = found(self, session, part)
        if part.indices[0] != 1:  # the samples that calibrate begin with the first one
            return true
        calls.append(true.loss)
        return Loss(1.0, true.error) if len(calls) == 1 else true

    monkeypatch.setattr(Evaluator, "loss", loss)
    out, model = tmp_path / "out.onnx", saved(tmp_path, convnet())
    outcome = quantize_within(model, out, samples("convnet", 8), options())
    assert len(calls) == 2
    verdicts = [t.verdict for t in outcome.trials]
    assert "loses too much on samples that were held out" in verdicts
    kept = [layer for layer in outcome.layers if layer.choice == "float"]
    assert len(kept) == 1
    assert kept[0].bytes_after == kept[0].bytes_before


def test_the_most_sensitive_layers_stay_float(tmp_path: Path) -> None:
    feeds = samples("convnet", 8)
    model = saved(tmp_path, convnet())
    whole = quantize_within(model, tmp_path / "all.onnx", feeds, options(max_loss=1.0))
    assert all(layer.choice != "float" for layer in whole.layers)
    assert whole.error is not None
    limit = whole.error * 0.8
    outcome = quantize_within(model, tmp_path / "some.onnx", feeds, options(max_loss=limit))
    n_float = sum(layer.choice == "float" for layer in outcome.layers)
    assert 0 < n_float < len(outcome.layers)
    assert outcome.loss is not None
    assert outcome.loss <= limit
    assert all("sensitive" in x.why for x in outcome.layers if x.choice == "float")
    assert error_of(tmp_path / "some.onnx", model, feeds[1::2]) <= limit * 1.01


def test_goals(tmp_path: Path) -> None:
    """By speed the fastest model is chosen, by accuracy that of the least error."""
    feeds, times = samples("convnet", 8), (900 * 0.8**i for i in itertools.count())
    path, out = saved(tmp_path, convnet()), tmp_path / "out.onnx"

    def slowing(original: Any, candidate: Any, seconds: float) -> RunTimes:
        return RunTimes(next(times), 1.0)

    for goal in ("speed", "accuracy"):
        chosen = SearchOptions(metric="error", max_loss=0.2, goal=goal, timer=slowing)
        outcome = quantize_within(path, out, feeds, chosen)
        whole = [t for t in outcome.trials if t.loss is not None and not t.verdict]
        fastest = max(whole, key=lambda t: t.speedup or 0.0)
        most_exact = min(whole, key=lambda t: t.error or 0.0)
        assert outcome.what == (fastest if goal == "speed" else most_exact).what


def test_weights_in_n_bits(tmp_path: Path) -> None:
    model, feeds = products()
    path, out = saved(tmp_path, model), tmp_path / "out.onnx"
    loose = quantize_within(path, out, feeds, options(goal="size", max_loss=0.5))
    assert loose.what.startswith("4-bit weights in blocks of 128")
    assert {n.op_type for n in onnx.load(out).graph.node} >= {"MatMulNBits"}
    strict = quantize_within(path, out, feeds, options(goal="size", max_loss=0.01, bits=(8,)))
    assert strict.what.startswith("8-bit weights")
    assert loose.bytes_after < strict.bytes_after < strict.bytes_before
    mixed = quantize_within(path, out, feeds, options(goal="size", max_loss=0.08))
    assert loose.bytes_after < mixed.bytes_after < strict.bytes_after
    for outcome, limit in ((loose, 0.5), (strict, 0.01), (mixed, 0.08)):
        assert outcome.loss is not None
        assert outcome.loss <= limit


def test_8_bit_matmuls_where_others_are_too_slow(tmp_path: Path) -> None:
    speeds = iter((0.5, 1.2))
    chosen = SearchOptions(
        metric="error",
        max_loss=0.9,
        goal="size",
        timer=lambda original, candidate, seconds: RunTimes(next(speeds), 1.0),
    )
    model, feeds = products()
    out = tmp_path / "out.onnx"
    outcome = quantize_within(saved(tmp_path, model), out, feeds, chosen)
    assert outcome.what.endswith("8-bit products")
    nodes = [n for n in onnx.load(out).graph.node if n.op_type == "MatMulNBits"]
    levels = [a.i for n in nodes for a in n.attribute if a.name == "accuracy_level"]
    assert levels == [4] * len(nodes)
    assert levels


def _counted(monkeypatch: pytest.MonkeyPatch, stop_after: int) -> list[str]:
    """Interrupt the search after so many results; return the list of keys that are computed."""
    remembered, computed = Journal.remembered, list[str]()

    def counting(self: Journal, key: str, compute: Callable[[], Any]) -> Any:
        def counted() -> Any:
            if len(computed) == stop_after:
                raise KeyboardInterrupt
            computed.append(key)
            return compute()

        return remembered(self, key, counted)

    monkeypatch.setattr(Journal, "remembered", counting)
    return computed


def _chosen(outcome: Outcome) -> Any:
    return outcome.what, outcome.loss, [(x.name, x.choice, x.error) for x in outcome.layers]


def test_an_interrupted_search_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = saved(tmp_path, convnet()), samples("convnet", 8)
    out, limit = tmp_path / "out.onnx", options(max_loss=0.004)
    with monkeypatch.context() as patch:
        every = _counted(patch, 1 << 30)
        whole = quantize_within(model, tmp_path / "whole.onnx", feeds, limit)
    with monkeypatch.context() as patch:
        first = _counted(patch, len(every) // 2)
        with pytest.raises(KeyboardInterrupt):
            quantize_within(model, out, feeds, limit)
    assert not out.exists()
    with monkeypatch.context() as patch:
        rest = _counted(patch, 1 << 30)
        outcome = quantize_within(model, out, feeds, limit)
    assert first + rest == every  # nothing is computed twice
    assert outcome.n_resumed >= len(first)
    assert _chosen(outcome) == _chosen(whole)
    assert out.read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_a_killed_search_continues(tmp_path: Path) -> None:
    script = f"""
import os
from sardonyx.quantization.search import SearchOptions, quantize_within
from sardonyx.quantization.search.evaluate import RunTimes
from sardonyx.quantization.search.journal import Journal
remembered, count = Journal.remembered, []
def stopping(self, key, compute):
    count.append(key)
    if len(count) > 6:
        os.kill(os.getpid(), 9)
    return remembered(self, key, compute)
Journal.remembered = stopping
quantize_within({str(DIGITS)!r}, {str(tmp_path / "out.onnx")!r}, {str(SAMPLES)!r},
                SearchOptions(timer=lambda a, b, s: RunTimes(2.0, 1.0)))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert not (tmp_path / "out.onnx").exists()
    outcome = quantize_within(DIGITS, tmp_path / "out.onnx", SAMPLES, options(metric="auto"))
    assert outcome.n_resumed >= 6
    assert (tmp_path / "out.onnx").exists()


def test_other_samples_restart_the_search(tmp_path: Path) -> None:
    model, out = saved(tmp_path, convnet()), tmp_path / "out.onnx"
    feeds = samples("convnet", 8)
    for _ in range(2):
        with pytest.raises(QuantizationRefused) as refusal:
            quantize_within(model, out, feeds, options(max_loss=0.0))
        feeds = [{"x": feed["x"] + 1} for feed in feeds]
    assert refusal.value.outcome.n_resumed == 0


def test_one_search_per_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = saved(tmp_path, convnet()), samples("convnet", 8)
    inner: list[str] = []

    def run(*_: Any) -> None:
        with pytest.raises(Fail, match="another search works in"):
            quantize_within(model, tmp_path / "out.onnx", feeds, options())
        inner.append("refused")
        raise KeyboardInterrupt

    monkeypatch.setattr(int8.Int8Search, "run", run)
    with pytest.raises(KeyboardInterrupt):
        quantize_within(model, tmp_path / "out.onnx", feeds, options())
    assert inner


def test_other_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    (work / "search.py").write_text("mine")
    feeds = samples("convnet", 8)
    chosen = options(max_loss=0.2, work=str(work))
    quantize_within(saved(tmp_path, convnet()), tmp_path / "out.onnx", feeds, chosen)
    assert sorted(p.name for p in work.iterdir()) == ["notes.txt", "search.py"]


@pytest.mark.parametrize("is_busy", [False, True])
def test_calls_are_timed_in_turn(is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The elapsed time of undisturbed calls counts; where there are none, processor time does."""
    clock = {"elapsed": 0.0, "used": 0.0, "interruptions": 0}
    calls: list[str] = []

    def run(name: str, elapsed: float, used: float) -> None:
        calls.append(name)
        is_disturbed = is_busy or len(calls) % 4 > 1
        clock["elapsed"] += elapsed * (20 if is_disturbed else 1)
        clock["used"] += used
        clock["interruptions"] += is_disturbed

    usage = SimpleNamespace(
        RUSAGE_SELF=0,
        getrusage=lambda _: SimpleNamespace(ru_nivcsw=clock["interruptions"]),
    )
    times = SimpleNamespace(
        perf_counter=lambda: clock["elapsed"], process_time=lambda: clock["used"]
    )
    monkeypatch.setattr(evaluate, "resource", usage)
    monkeypatch.setattr(evaluate, "time", times)
    speed = interleaved(lambda: run("a", 3.0, 8.0), lambda: run("b", 2.0, 4.0), 0.0)
    assert all(x != y for x, y in itertools.pairwise(calls))
    assert speed.is_busy == is_busy
    assert (speed.original_s, speed.candidate_s) == pytest.approx((8, 4) if is_busy else (3, 2))


def _nan(feeds: Any) -> Any:
    feeds[3]["x"][0, 0, 0, 0] = np.nan
    return feeds


_BAD: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str]] = {
    "too few": (lambda f: f[:3], {}, "3 samples are too few"),
    "none": (lambda f: [], {}, "no samples are given"),
    "missing input": (lambda f: [{"y": s["x"]} for s in f], {}, "lacks the input x"),
    "rank": (lambda f: [{"x": s["x"][0]} for s in f], {}, r"expects \['n', 3, 8, 8\]"),
    "size": (lambda f: [{"x": s["x"][:, :, :4]} for s in f], {}, r"the shape \[2, 3, 4, 8\]"),
    "type": (lambda f: [{"x": s["x"].astype(np.int64)} for s in f], {}, "x is int64"),
    "NaN": (_nan, {}, "x has NaN or infinity"),
    "batch of files": (lambda f: f, {"batch": 2}, "each file is one sample"),
    "labels": (lambda f: f, {"label": "right"}, "has no array right"),
    "metric": (lambda f: f, {"metric": "f1"}, "there is no metric f1"),
    "accuracy": (lambda f: f, {"metric": "accuracy"}, "accuracy needs labels"),
    "perplexity": (lambda f: f, {"metric": "perplexity"}, "needs the input input_ids"),
    "rows": (
        lambda f: {"x": f[0]["x"], "label": np.zeros(5)},
        {},
        "have a row per sample, and these differ",
    ),
    "file": (lambda f: "nowhere.npz", {}, "there is no file nowhere.npz"),
}


@pytest.mark.parametrize("case", _BAD)
def test_bad_samples(tmp_path: Path, case: str) -> None:
    change, settings, words = _BAD[case]
    feeds = [{"x": f["x"].copy()} for f in samples("convnet", 8)]
    with pytest.raises(SardonyxError, match=words):
        quantize_within(
            saved(tmp_path, convnet()), tmp_path / "o.onnx", change(feeds), options(**settings)
        )
    assert not (tmp_path / "o.onnx").exists()


def test_bad_files(tmp_path: Path) -> None:
    model, out = saved(tmp_path, convnet()), tmp_path / "o.onnx"
    (tmp_path / "text.npz").write_text("not arrays")
    with pytest.raises(InvalidArgument, match="cannot be read as arrays"):
        quantize_within(model, out, tmp_path / "text.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match=r"has no \.npz files"):
        quantize_within(model, out, tmp_path / "empty")
    with pytest.raises(Fail, match="there is no folder"):
        quantize_within(model, tmp_path / "nowhere" / "o.onnx", samples("convnet"))
    with pytest.raises(Fail, match="is a folder"):
        quantize_within(model, tmp_path / "empty", samples("convnet"))


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(Fail, match="cannot be written to"):
        quantize_within(saved(tmp_path, convnet()), tmp_path / "o.onnx", samples("convnet", 8))


def test_models_without_layers(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) {'
    model = saved(tmp_path, onnx.parser.parse_model(text + "y = Sin(x) }"))
    feeds = [{"x": np.ones((1, 4), np.float32)}] * 4
    with pytest.raises(InvalidArgument, match="nothing to quantize"):
        quantize_within(model, tmp_path / "o.onnx", feeds, options())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"goal": "both"}, "speed, accuracy or size"),
        ({"max_loss": -1.0}, "at least 0"),
        ({"max_loss": float("nan")}, "at least 0"),
        ({"bits": (5,)}, "bits must be 2, 3, 4 or 8"),
    ],
)
def test_bad_options(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        SearchOptions(**settings)


def test_a_function_as_metric(tmp_path: Path) -> None:
    def largest(expected: Any, actual: Any, sample: Any) -> float:
        assert set(sample.feed) == {"x"}
        return float(np.abs(expected[0] - actual[0]).max())

    out = tmp_path / "o.onnx"
    chosen = options(metric=largest, max_loss=0.1)
    outcome = quantize_within(saved(tmp_path, convnet()), out, samples("convnet", 8), chosen)
    assert outcome.metric == "largest"
    assert outcome.loss is not None
    assert 0 < outcome.loss <= 0.1


class _Tags(html.parser.HTMLParser):
    """Collects elements, and fails on one that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.mark.parametrize("is_refused", [False, True])
def test_page_and_facts(tmp_path: Path, is_refused: bool) -> None:
    model = convnet()
    model.graph.node[0].name = "<b>&"
    path, feeds = saved(tmp_path, model), samples("convnet", 8)
    if is_refused:
        with pytest.raises(QuantizationRefused) as refusal:
            quantize_within(path, tmp_path / "o.onnx", feeds, options(1.0))
        outcome = refusal.value.outcome
    else:
        outcome = quantize_within(path, tmp_path / "o.onnx", feeds, options(max_loss=0.2))
    text, tags = page(outcome), _Tags()
    tags.feed(text)
    assert tags.seen.count("svg") == (1 if is_refused else 3)
    assert "<b>&" not in text
    assert "nan" not in text.replace("nano", "")
    assert "script" not in tags.seen
    facts = json.loads(json.dumps(outcome.facts()))
    assert len(facts["trials"]) == len(outcome.trials)
    assert bool(facts["refusal"]) == is_refused
