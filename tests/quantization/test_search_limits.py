"""quantize_within on outputs, samples and disks that could make it break its promise."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.base import atomic_file
from sardonyx.base.records import replace
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.models import DIGITS, SAMPLES
from sardonyx.quantization.document import read_document, save_document
from sardonyx.quantization.search import QuantizationRefused, SearchOptions, quantize_within
from sardonyx.quantization.search.candidates import Candidate, Candidates
from sardonyx.quantization.search.evaluate import Evaluator, RunTimes, interleaved
from sardonyx.quantization.search.metrics import KINDS, MetricKind
from sardonyx.quantization.search.outcome import NOT_COMPARABLE
from sardonyx.quantization.search.page import page
from sardonyx.quantization.search.samples import Part, read_samples
from tests.quantization.models import convnet, samples, transformer
from tests.quantization.test_search import options, products, saved

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_IDENTITY = '<ir_version: 8, opset_import: ["": 17]> g (float[n, k] x) => (float[n, k] y) {%s}'


def evaluator(tmp_path: Path, metric: MetricKind, *feeds: Any, label: str | None = None) -> Any:
    """Return an evaluator of a model that returns its input, and the samples."""
    path = saved(tmp_path, onnx.parser.parse_model(_IDENTITY % "y = Identity(x)"))
    found = read_samples(read_document(path), list(feeds) * (4 // len(feeds)), label)
    part = Part(found, tuple(range(len(found))))
    return Evaluator(path, metric, 1, interleaved), part


def candidate(outputs: Callable[[Any], Any]) -> Any:
    return SimpleNamespace(run=lambda names, feed: [outputs(feed["x"])])


_BROKEN: dict[str, Callable[[Any], Any]] = {
    "NaN": lambda x: x * np.float32(np.nan),
    "one NaN": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, x),
    "infinity": lambda x: x / np.float32(0),
    "shape": lambda x: x[:1],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("how", _BROKEN)
@pytest.mark.parametrize("metric", ["error", "cosine", "top1", "accuracy"])
def test_outputs_that_no_metric_can_compare(tmp_path: Path, metric: str, how: str) -> None:
    """The largest of a row of NaN is its first score, which is that of the original here."""
    x = np.eye(3, dtype=np.float32)[[0, 0]] + 0.1
    feed = {"x": x, "labels": np.zeros(2, np.int64)}
    compared, part = evaluator(tmp_path, KINDS[metric], feed)
    assert compared.own_loss(part) == pytest.approx(0.0, abs=1e-12)
    assert compared.loss(candidate(lambda x: x), part).loss == pytest.approx(0.0, abs=1e-12)
    found = compared.loss(candidate(_BROKEN[how]), part)
    assert (found.loss, found.error) == (np.inf, np.inf)
    assert compared.error(candidate(_BROKEN[how]), part) == np.inf


@pytest.mark.parametrize("goal", ["speed", "size"])
@pytest.mark.parametrize("metric", ["cosine", "top1", "error"])
def test_models_with_nan_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, goal: str
) -> None:
    opened = Candidates.opened

    def broken(self: Candidates) -> Candidate:
        found = opened(self)
        session = SimpleNamespace(run=lambda *a: [y * np.nan for y in found.session.run(*a)])
        return replace(found, session=session)

    monkeypatch.setattr(Candidates, "opened", broken)
    model, feeds = products()
    chosen = options(goal=goal, metric=metric, max_loss=0.3)
    with pytest.raises(QuantizationRefused) as refusal:
        quantize_within(saved(tmp_path, model), tmp_path / "o.onnx", feeds, chosen)
    assert not (tmp_path / "o.onnx").exists()
    outcome = refusal.value.outcome
    assert {t.verdict for t in outcome.trials} == {NOT_COMPARABLE}
    assert NOT_COMPARABLE in page(outcome)
    assert "Infinity" not in json.dumps(outcome.facts())


def test_a_nan_loss_exceeds_every_limit(tmp_path: Path) -> None:
    kind = MetricKind("mine", "mine", lambda: SimpleNamespace(add=max, loss=lambda: np.nan))
    compared, part = evaluator(tmp_path, kind, {"x": np.ones((1, 2), np.float32)})
    compared._compare = lambda *_: True
    assert compared.loss(candidate(lambda x: x), part).loss == np.inf


def test_rows_of_zeros_are_equal(tmp_path: Path) -> None:
    x = np.array([[0, 0], [1, 2]], np.float32)
    compared, part = evaluator(tmp_path, KINDS["cosine"], {"x": x})
    assert compared.own_loss(part) == pytest.approx(0.0, abs=1e-12)
    assert compared.loss(candidate(lambda x: x), part).loss == pytest.approx(0)
    assert compared.loss(candidate(lambda x: x + 1), part).loss > 0.5


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    """Where the original is never right, no candidate is worse."""
    arrays = dict(np.load(SAMPLES))
    for labels in (arrays["label"] + 1, arrays["label"].astype(str)):
        data = {"image": arrays["image"], "label": labels}
        with pytest.raises(InvalidArgument, match="accuracy cannot show a loss"):
            quantize_within(DIGITS, tmp_path / "o.onnx", data, options(metric="accuracy"))


def test_a_metric_that_is_not_a_loss(tmp_path: Path) -> None:
    def similarity(expected: Any, actual: Any, sample: Any) -> float:
        return 1.0

    feeds, model = samples("convnet", 8), saved(tmp_path, convnet())
    with pytest.raises(InvalidArgument, match="the loss of the original itself is 1"):
        quantize_within(model, tmp_path / "o.onnx", feeds, options(metric=similarity))


def test_functions_of_the_same_name_share_no_results(tmp_path: Path) -> None:
    model, feeds = saved(tmp_path, convnet()), samples("convnet", 8)

    def function(factor: float) -> Any:
        return lambda expected, actual, _: factor * float(np.abs(expected[0] - actual[0]).max())

    for factor, resumed in ((1.0, 0), (1e-9, 0)):
        chosen = options(1.0, metric=function(factor))
        with pytest.raises(QuantizationRefused) as refusal:
            quantize_within(model, tmp_path / "o.onnx", feeds, chosen)
        assert refusal.value.outcome.n_resumed == resumed


def test_perplexity_leaves_out_tokens_below_0() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    tokens = np.array([[1, 2, 3, 4, 5], [3, 3, -100, -100, -100]])
    metric = KINDS["perplexity"].make()
    metric.add([logits], [2 * logits], SimpleNamespace(feed={}, labels=tokens))  # type: ignore[arg-type]
    rows = np.concatenate([logits[0, :4], logits[1, :1]]).astype(np.float64)
    right = [2, 3, 4, 5, 3]

    def mean(z: Any) -> Any:
        return (np.log(np.exp(z).sum(1)) - z[np.arange(5), right]).mean()

    assert metric.loss() == pytest.approx(np.expm1(mean(2 * rows) - mean(rows)), rel=1e-5)


def test_tokens_that_have_no_scores(tmp_path: Path) -> None:
    model = saved(tmp_path, convnet())
    feeds = [{**f, "labels": np.zeros((2, 3), np.int64)} for f in samples("convnet", 4)]
    with pytest.raises(InvalidArgument, match="have no perplexity"):
        quantize_within(model, tmp_path / "o.onnx", feeds, options(metric="perplexity"))


def test_original_with_nan(tmp_path: Path) -> None:
    text = _IDENTITY % "l = Log(x)  y = MatMul(l, w)"
    model = onnx.parser.parse_model(text)
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    model.graph.initializer.append(weight)
    feeds = [{"x": np.full((1, 4), v, np.float32)} for v in (1, 1, 1, 1, 1, -1)]
    with pytest.raises(InvalidArgument, match="NaN or infinity for the data"):
        quantize_within(saved(tmp_path, model), tmp_path / "o.onnx", feeds, options())


def test_slower_for_samples_of_another_size(tmp_path: Path) -> None:
    """A model that is faster on the whole may be slower for small inputs."""
    model, feeds = products()
    sizes = [{"x": f["x"][: 1 + 3 * (i // 2)]} for i, f in enumerate(feeds)]  # 1, 4, 7 or 10 rows
    calls: list[int] = []

    def timer(slowest: float) -> Any:
        def timed(original: Any, candidate: Any, seconds: float) -> RunTimes:
            calls.append(len(original()[0]))
            return RunTimes(*{1: (slowest, 1.0), 7: (5.0, 1.0), 10: (9.0, 1.0)}[calls[-1]])

        return timed

    path, out = saved(tmp_path, model), tmp_path / "o.onnx"
    with pytest.raises(QuantizationRefused):
        quantize_within(path, out, sizes, SearchOptions(0.2, "error", timer=timer(0.9)))
    assert calls[:3] == [1, 7, 10]
    outcome = quantize_within(path, out, sizes, SearchOptions(0.2, "error", timer=timer(1.0)))
    assert outcome.speed is not None
    assert (outcome.speed.speedup, outcome.speed.lowest) == (5.0, 1.0)
    assert any("the least favourable one the result is 1.00x as fast" in r for r in outcome.remarks)


def test_larger_models_are_not_written(tmp_path: Path) -> None:
    model, feeds = saved(tmp_path, transformer()), samples("transformer", 8)
    with pytest.raises(QuantizationRefused, match="is smaller") as refusal:
        quantize_within(model, tmp_path / "o.onnx", feeds, options(goal="size", max_loss=0.9))
    verdicts = [t.verdict for t in refusal.value.outcome.trials if t.speed is not None]
    assert set(verdicts) == {"not smaller than the original"}


def test_a_fixed_batch_size_takes_whole_batches(tmp_path: Path) -> None:
    model = convnet()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    rows = np.concatenate([f["x"] for f in samples("convnet", 6)])[:11]
    found = read_samples(read_document(saved(tmp_path, model)), {"x": rows})
    assert [len(s.feed["x"]) for s in found] == [2] * 5


def test_samples_of_unknown_kind(tmp_path: Path) -> None:
    model = saved(tmp_path, convnet())
    with pytest.raises(InvalidArgument, match="one is a list"):
        quantize_within(model, tmp_path / "o.onnx", [[1, 2]], options())


def test_a_calibration_reader_has_samples(tmp_path: Path) -> None:
    feeds = iter(samples("convnet", 8))
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))
    model, out = saved(tmp_path, convnet()), tmp_path / "o.onnx"
    assert quantize_within(model, out, reader, options(max_loss=0.2)).n_calibrating == 4


def test_the_original_is_not_overwritten(tmp_path: Path) -> None:
    model = saved(tmp_path, convnet())
    stored = tmp_path / "stored.onnx"
    save_document(read_document(model), stored, external=True, data_file="o.onnx.data", min_bytes=0)
    (tmp_path / "link.onnx").symlink_to(model)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for source, out in ((model, model), (model, "link.onnx"), (stored, "o.onnx")):
        with pytest.raises(InvalidArgument, match="is a file of the model"):
            quantize_within(source, tmp_path / out, samples("convnet", 8), options())
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def _full(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    """Let writes of some files fail as on a full disk."""
    found = atomic_file._open

    def full(temporary: str) -> Any:
        if any(name in temporary for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return found(temporary)

    monkeypatch.setattr(atomic_file, "_open", full)


@pytest.mark.parametrize("name", ["search.json", "candidate", "prepared", "ranges"])
@pytest.mark.parametrize("goal", ["speed", "size"])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, goal: str) -> None:
    """That is the error, and no candidate's: the same command continues."""
    if (name, goal) == ("ranges", "size"):
        pytest.skip("weights alone have no ranges")
    model, feeds = products()
    path, out, chosen = (
        saved(tmp_path, model),
        tmp_path / "o.onnx",
        options(goal=goal, max_loss=0.3),
    )
    with monkeypatch.context() as patch:
        _full(patch, [name])
        with pytest.raises(Fail, match="No space left on device"):
            quantize_within(path, out, feeds, chosen)
    assert not out.exists()
    assert quantize_within(path, out, feeds, chosen).output == str(out)


def test_a_killed_replacement_leaves_no_model_with_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it replaces files, it leaves no model rather than one with other weights."""
    from sardonyx.quantization.search import candidates, weights

    monkeypatch.setattr(weights, "_EXTERNAL", 0)
    model, feeds = products()
    path, out, chosen = (
        saved(tmp_path, model),
        tmp_path / "o.onnx",
        options(goal="size", max_loss=0.3),
    )
    quantize_within(path, out, feeds, chosen)
    assert {"o.onnx", "o.onnx.data"} <= set(os.listdir(tmp_path))
    move = candidates._move

    def killed(source: str, target: str) -> None:
        if not target.endswith(".data"):
            raise KeyboardInterrupt
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(candidates, "_move", killed)
        with pytest.raises(KeyboardInterrupt):
            quantize_within(path, out, feeds, options(goal="size", max_loss=0.01))
    assert not out.exists()
    assert quantize_within(path, out, feeds, options(goal="size", max_loss=0.01)).loss
    assert sardonyx.InferenceSession(out).run(None, feeds[0])[0].shape == (16, 64)
