"""The sweep of single ops: every op draws valid cases, and results are kept and reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from bench.sweep import families, nodes, report
from bench.sweep.case import Case
from bench.sweep.measure import Result, _difference, measure

CONTRIB = {"SimplifiedLayerNormalization"}  # onnxruntime has it in the domain of ONNX


def _context(model: onnx.ModelProto) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {o.domain: o.version for o in model.opset_import}
    return context


@pytest.mark.parametrize("op", sorted(families.FAMILIES))
def test_an_op_draws_cases_that_run(op: str) -> None:
    for seed in range(3):
        case = families.draw(op, seed, "tiny")
        assert case.key == families.draw(op, seed, "tiny").key
        model = onnx.load_from_string(case.model())
        if case.domain == "" and not case.outer and op not in CONTRIB:
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
            onnx.checker.check_node(model.graph.node[0], _context(model))
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = 1
        outputs = sardonyx.InferenceSession(case.model(), options).run(None, case.feed())
        assert len(outputs) == case.n_outputs


def test_seeds_draw_different_cases() -> None:
    assert len({families.draw("Conv", seed).key for seed in range(20)}) > 15


def test_cases_that_are_too_large_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.sweep.draw.MOST_ELEMENTS", 20_000)
    for seed in range(30):
        case = families.draw("ScatterND", seed)
        assert all(x.size <= 20_000 for x in case.operands if x is not None)


def test_a_measured_case_has_times_and_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.sweep.measure.ROUNDS", 1)
    monkeypatch.setattr("bench.sweep.measure.ROUND_S", 0.0)
    case = Case("Add", [np.ones((4, 4), np.float32), np.ones(4, np.float32)])
    result = measure(case, 1, ["onnxruntime"])
    assert result.differs == 0
    assert result.python_steps == 0
    assert result.ratio("onnxruntime") is not None
    refused = measure(Case("Add", [np.ones(3, np.float32), np.ones(4, np.float32)]), 1, [])
    assert "3" in refused.error
    assert refused.ratio("onnxruntime") is None


def test_a_case_with_a_huge_output_is_not_measured() -> None:
    table, rows = np.zeros((1_000_000, 4), np.float32), np.zeros(2048, np.int64)
    result = measure(Case("Gather", [table, rows], {"axis": 1}), 1, ["onnxruntime"])
    assert "more than" in result.error
    assert result.times == {}


def _result(key: str, ours: float, theirs: float, op: str = "Add") -> Result:
    return Result(key, f"{op}()", op, "drawn", 1, {"sardonyx": ours, "onnxruntime": theirs})


def test_results_keep_the_best_and_skip_truncated_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lines = [json.dumps(_result("a", ms, 1.0).record()) for ms in (2.0, 0.5, 4.0)]
    path.write_text("\n".join([*lines, lines[0][:20]]))
    (best,) = report.load(path)
    assert best.times["sardonyx"] == 0.5


def test_the_report_counts_what_takes_long_enough() -> None:
    results = [_result("a", 1.0, 0.5, "Slow"), _result("b", 1.0, 4.0), _result("c", 0.001, 0.0001)]
    assert [ratio for ratio, _ in report.judged(results, "onnxruntime")] == [0.5, 4.0]
    assert "Slow" in report.table(results, "onnxruntime", 1).splitlines()[0]
    summary = report.summary(results, ["onnxruntime"])
    assert "2 cases, geometric mean 1.41x, 50.0% at 1.0x or more, 1 under 0.9x" in summary
    assert report.svg(results, "onnxruntime").count("<circle") == 2


def test_nodes_of_a_model_are_cases(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy")
    chain = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(chain, "g", [x], [y])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    (case,) = nodes.cases(path, 10, 0)  # the two nodes cost the same
    assert (case.op, case.opset, case.source) == ("Relu", 13, "model")
    assert case.operands[0] is not None
    assert case.operands[0].shape == (2, 3)


def test_numbers_in_place_of_nan_are_a_difference() -> None:
    """Beside onnxruntime, which infinities are not: float16 rounds to them."""
    nan = np.array([1, np.nan], np.float32)
    assert _difference([nan], [nan]) == 0
    assert _difference([nan], [np.ones(2, np.float32)]) == np.inf
