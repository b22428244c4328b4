"""`sardonyx plan SCRIPT.py:FUNCTION`: figures of a training step, and errors in scripts."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from sardonyx.base.units import format_bytes
from sardonyx.cli import main

torch = pytest.importorskip("torch")

SCRIPT = '''
import torch
from torch import nn
from sizes import ROWS  # a module beside the script

def layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))

def example():
    return layers(), torch.randn(ROWS, 64), lambda y: y.square().mean()

def without_a_loss():
    return layers(), (torch.randn(ROWS, 64),)

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x):
        y = self.layers(x)
        return {"loss": y.square().mean(), "y": y}

def with_keywords():
    return WithLoss(), {"x": torch.randn(ROWS, 64)}

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers(), layers()

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)

def with_a_graph_break():
    return Broken(), torch.randn(ROWS, 64)

def one_value(): return layers()
def no_module(): return torch.relu, torch.ones(2)
def no_loss(): return layers(), torch.ones(2, 64), 3
def raises(): return layers()[9]
def wrong_sizes(): return layers(), torch.ones(2, 63)
def no_gradients(): return layers().requires_grad_(False), torch.ones(2, 64)
'''  # fmt: skip
ROWS = 1024
ACTIVATION = ROWS * 64 * 4
PARAMETERS = 6 * (64 * 64 + 64) * 4


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SARDONYX_GRAPH_CACHE", "0")
    (tmp_path / "sizes.py").write_text(f"ROWS = {ROWS}\n", "utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plan(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that plan prints."""
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, "train.py:example")
    assert said["shapes"] == {"argument 0": [ROWS, 64]}
    whole, *others = said["budgets"]
    assert [b["memory_budget"] for b in said["budgets"]] == [None, 0.5, 0.25]
    assert whole["gradient_bytes"] == PARAMETERS
    assert whole["argument_bytes"] == PARAMETERS + ACTIVATION
    assert whole["saved_bytes"] == 6 * ACTIVATION == sum(t["bytes"] for t in said["saved"])
    assert whole["peak_bytes"] == max(g["peak_bytes"] for g in whole["graphs"])
    assert said["saved"][0]["module"] == "0.0"
    for other in others:
        assert other["saved_bytes"] <= whole["saved_bytes"] // 2
        assert other["peak_bytes"] < whole["peak_bytes"]
        assert other["recomputed_bytes"] > whole["recomputed_bytes"]
    saves = {a["text"]: a["saves_bytes"] for a in said["advice"] if a["kind"] == "budget"}
    least = whole["peak_bytes"] - others[-1]["peak_bytes"]
    assert [n for text, n in saves.items() if "memory_budget=0.25" in text] == [least]


def test_text_and_page(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "train.py:example", "--top", "3", "--html", "step.html"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for text in ("train.py:example  argument 0 [1024, 64]", "live at the peak", "backward graph",
                 f"saved for the backward pass  {format_bytes(6 * ACTIVATION)} in 6",
                 "in 3 more: --top lists them", "what would lower the peak",
                 "the whole timeline is in step.html"):  # fmt: skip
        assert text in said.out
    page = (tmp_path / "step.html").read_text("utf-8")
    for name in ("forward", "backward", "backward, budget 0.25"):
        assert f'"name":"{name}"' in page


@pytest.mark.parametrize("function", ["without_a_loss", "with_keywords"])
def test_forms_of_examples(function: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, f"train.py:{function}", "--memory-budget", "0.5")
    (only,) = said["budgets"]
    assert only["memory_budget"] == 0.5
    assert only["gradient_bytes"] == PARAMETERS
    assert only["saved_bytes"] <= 3 * ACTIVATION


def test_graph_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    """The peak counts what is saved for the backward graphs of earlier forward graphs."""
    said = plan(capsys, "train.py:with_a_graph_break", "--memory-budget", "1")
    (only,) = said["budgets"]
    assert [g["kind"] for g in only["graphs"]] == ["forward", "forward", "backward", "backward"]
    assert only["saved_bytes"] >= 12 * ACTIVATION
    assert only["peak_bytes"] > only["saved_bytes"]
    assert max(g["peak_bytes"] for g in only["graphs"]) < only["saved_bytes"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train.py", "name its function that returns a module and inputs, as in train.py:example"),
        ("missing.py:example", "there is no file missing.py"),
        ("train.py:exampel", "train.py has no function exampel; it has layers, example, "),
        ("train.py:WithLoss", "WithLoss must return (module, inputs) or (module, inputs, loss"),
        ("train.py:one_value", "must return (module, inputs) or (module, inputs, loss function), "),
        ("train.py:no_module", "not (builtin_function_or_method, Tensor)"),
        ("train.py:no_loss", "third value of train.py:no_loss must be a loss function, got int"),
        ("train.py:raises", "calling raises raises IndexError: index 9 is out of range"),
        ("train.py:wrong_sizes", "the training step fails: "),
        ("train.py:no_gradients", "no result of the module requires a gradient"),
        ("broken.py:example", "running broken.py raises SyntaxError: "),
        ("exits.py:example", "running exits.py raises SystemExit: 3"),
        ("train.py:example --dims batch=2", "--dims is for ONNX models"),
        ("train.py:example --order priority_based", "--order is for ONNX models"),
        ("train.py:example --memory-budget 7", "memory_budget must be a fraction"),
        ("train.py:example --memory-budget -1", "is not a memory budget from 0"),
        ("train.py:example --html train.py", "train.py is read by this command"),
        ("model.onnx --memory-budget 0.5", "--memory-budget is for a training step"),
    ],
)  # fmt: skip
def test_errors(
    argv: str, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("def example(:\n", "utf-8")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n", "utf-8")
    assert main(["plan", *argv.split()]) in (1, 2)
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_an_error_names_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "train.py:raises"]) == 1
    line = next(i for i, text in enumerate(SCRIPT.splitlines(), 1) if "def raises" in text)
    assert f"train.py:{line}" in capsys.readouterr().err
