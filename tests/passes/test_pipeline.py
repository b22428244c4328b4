"""The pass pipeline: what it runs, what it logs, where it stops."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sardonyx import InferenceSession, SessionOptions
from sardonyx.cli import main
from sardonyx.graph.graph import Graph
from sardonyx.load.graph_text import parse
from sardonyx.models import DIGITS
from sardonyx.passes import PassOptions, lower, optimize, pipeline
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.pipeline import LOWER_CPU, OPTIMIZE, PIPELINE, Pass
from tests.graphs import random_feeds, run_graph

MODELS = {
    "conv": """
        in x: f32[B,3,8,8]
        const w: f32[4,3,3,3]
        const c: f32[4]
        a = Conv(x, w, c)
        r = Relu(a)
        p = MaxPool(r, kernel_shape=[2, 2])
        s = Shape(p)
        y = Softmax(p)
        out y, s
    """,
    "attention": """
        in q: f32[B,2,4,8]
        in k: f32[B,2,4,8]
        in v: f32[B,2,4,8]
        t = Transpose(k, perm=[0, 1, 3, 2])
        s = MatMul(q, t)
        d = Div(s, 2.5)
        p = Softmax(d)
        y = MatMul(p, v)
        out y
    """,
    "quantized": """
        in x: f32[B,3,8,8]
        const w: i8[4,3,3,3]
        q = QuantizeLinear(x, 0.02, 128:u8)
        d = DequantizeLinear(q, 0.02, 128:u8)
        e = DequantizeLinear(w, 0.01)
        a = Conv(d, e)
        y = QuantizeLinear(a, 0.1, 128:u8)
        out y
    """,
}


@pytest.mark.parametrize("each", PIPELINE, ids=lambda p: f"{pipeline.number_of(p)}-{p.name}")
def test_functions_of_passes_exist(each: Pass) -> None:
    if isinstance(each.run, str):
        assert callable(pipeline._imported(each.run))
    else:
        assert all(table.rules for table in each.run)


def test_names_are_unique_within_a_lowering() -> None:
    for passes in (OPTIMIZE + LOWER_CPU, OPTIMIZE + pipeline.LOWER_DEVICE):
        assert len({p.name for p in passes}) == len(passes)


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_outputs_are_the_same_after_any_number_of_passes(text: str) -> None:
    feeds = random_feeds(parse(text))
    expected = run_graph(parse(text), feeds)
    for number in range(len(PIPELINE) + 1):
        graph, options = parse(text), PassOptions(stop_after=number)
        optimize(graph, options)
        lower(graph, options)
        for want, got in zip(expected, run_graph(graph, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def ran(monkeypatch: pytest.MonkeyPatch, text: str, options: PassOptions) -> list[str]:
    """The names of the passes that run over a graph."""
    names: list[str] = []
    run_pass = pipeline.run_pass

    def noted(each: Pass, *args: Any) -> Mapping[str, int]:
        names.append(each.name)
        return run_pass(each, *args)

    monkeypatch.setattr(pipeline, "run_pass", noted)
    graph = parse(text)
    optimize(graph, options)
    lower(graph, options)
    return names


def test_options_and_ops_choose_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ["decompose", "lower_sizes", "widen_float16", "channels_last", "prune", "fuse_chains"]
    names = ["simplify", "fuse", *usual, "copy_fed_outputs"]
    assert ran(monkeypatch, MODELS["conv"], PassOptions()) == names


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (PassOptions(level=Level.ORT_DISABLE_ALL), ["decompose", "lower_matmul", "prune"]),
        (PassOptions(stop_after=0), []),
        (PassOptions(stop_after=1), ["simplify"]),
        (PassOptions(stop_after=6), ["simplify", "decompose"]),
    ],
    ids=str,
)
def test_levels_and_stops(
    monkeypatch: pytest.MonkeyPatch, options: PassOptions, names: list[str]
) -> None:
    assert ran(monkeypatch, MODELS["attention"], options) == names


def test_a_disabled_optimizer_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("channels_last", "NhwcTransformer"):
        options = PassOptions(disabled=frozenset((name,)))
        assert "channels_last" not in ran(monkeypatch, MODELS["conv"], options)


def test_the_trace_names_passes_nodes_and_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SARDONYX_TRACE", "passes")
    with caplog.at_level(logging.INFO, "sardonyx"):
        optimize(parse(MODELS["conv"]), PassOptions())
    assert caplog.messages == [
        "pass 1 simplify: 5 -> 5 nodes",
        "pass 3 fuse: 5 -> 4 nodes, conv_activation 1x",
    ]


def test_a_session_stops_after_a_pass_and_uses_no_pack() -> None:
    options = SessionOptions()
    options.add_session_config_entry("sardonyx.stop_after_pass", "1")
    ops = {n.op.name for n in InferenceSession(DIGITS, options)._compiled.model.graph.nodes}
    assert "Relu" in ops
    assert "BatchNormalization" not in ops


def test_info_prints_the_graph_after_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(DIGITS), "--stop-after", "0", "--dump"]) == 0
    assert "BatchNormalization" in capsys.readouterr().out
    assert main(["info", str(DIGITS), "--stop-after", "-1"]) == 2


def test_bisect_finds_the_pass_that_changes_outputs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_pass = pipeline.run_pass

    def broken(each: Pass, graph: Graph, *args: Any) -> Mapping[str, int]:
        fired = run_pass(each, graph, *args)
        for node in graph.nodes:
            if each.name == "widen_float16" and node.op.name == "Softmax":
                node.attrs = {**node.attrs, "axis": 0}
        return fired

    assert main(["bisect", str(DIGITS), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pass"] is None
    monkeypatch.setattr(pipeline, "run_pass", broken)
    assert main(["bisect", str(DIGITS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "widen_float16"
    assert PIPELINE[found["pass"] - 1].name == "widen_float16"
    assert found["difference"] > 0.01
    assert main(["bisect", str(DIGITS)]) == 0
    assert f"--stop-after {found['pass'] - 1} --dump" in capsys.readouterr().out


def test_importing_the_pipeline_imports_no_pass() -> None:
    used = "sys.modules.keys() & {'sardonyx.passes.attention', 'sardonyx.passes.nbits.matmul'}"
    code = f"import sys, sardonyx.passes.pipeline; print({used})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
