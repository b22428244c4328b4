"""`sardonyx info`."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from sardonyx.cli import main
from sardonyx.cli.console import short_name, shortened, table
from sardonyx.models import DIGITS
from sardonyx.providers.cpu.index import MULTIPLIES_BF16
from tests.cli import models
from tests.pack.packs import embedded

KEYS = {
    "model", "file_bytes", "producer", "graph", "ir_version", "opsets", "inputs", "outputs",
    "overridable", "nodes_before", "nodes_after", "ops_before", "ops_after", "weights", "nodes",
    "python_steps", "guards", "plan", "start", "memory_bytes",
}  # fmt: skip


def info(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that info prints."""
    assert main(["info", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = info(capsys, str(DIGITS))
    assert said.keys() >= KEYS
    assert said["opsets"] == {"ai.onnx": 17}
    assert said["inputs"] == [
        {"name": "image", "type": "tensor(float)", "shape": ["batch", 1, 8, 8]}
    ]
    assert said["outputs"][0]["shape"] == ["batch", 10]
    assert said["ops_before"]["Conv"] == 2
    assert said["nodes_before"] == sum(said["ops_before"].values())
    assert said["nodes_after"] == sum(said["ops_after"].values()) == len(said["nodes"])
    assert {"load", "infer", "optimize", "place"} <= said["start"]["stages"].keys()
    assert {w["source"] for w in said["weights"]} <= {"embedded", "external", "folded", "held"}
    sizes = [w["bytes"] for w in said["weights"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(n["provider"] for n in said["nodes"])


def test_planned_memory_grows_with_dims(capsys: pytest.CaptureFixture[str]) -> None:
    one = info(capsys, str(DIGITS))["plan"]
    many = info(capsys, str(DIGITS), "--dims", "batch=8")["plan"]
    assert one["shapes"] == {"image": [1, 1, 8, 8]}
    assert 0 < one["least_bytes"] <= one["peak_bytes"] <= one["sum_bytes"]
    assert many["peak_bytes"] >= 7 * one["peak_bytes"]
    by_shape = info(capsys, str(DIGITS), "--shapes", "image=8x1x8x8")["plan"]
    assert by_shape == many


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    everything = ["--nodes", "--why", "--weights", "--guards"]
    assert main(["info", str(DIGITS), *everything]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    for word in ("pytorch", "ai.onnx 17", "image", "[batch, 1, 8, 8]", "largest weights",
                 "Python step", "each node", "refusals", "guards", "start", "Conv"):  # fmt: skip
        assert word in said


def test_precision(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that round, or why none does, are told only if reduced precision is requested."""
    model = str(DIGITS)
    assert info(capsys, model)["precision"] == {"asked": "exact", "rounded": 0, "why": ""}
    said = info(capsys, model, "--precision", "bf16")["precision"]
    assert (said["rounded"] > 0) == MULTIPLIES_BF16
    monkeypatch.setattr("sardonyx.cli.info.MULTIPLIES_BF16", False)
    assert main(["info", model, "--precision", "bf16"]) == 0
    assert "precision bf16: it changes nothing on this CPU" in capsys.readouterr().out
    assert main(["info", model]) == 0
    assert "precision" not in capsys.readouterr().out


def test_dump(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.sums(tmp_path / "m.onnx")
    assert main(["info", path, "--dump"]) == 0
    said = capsys.readouterr().out
    assert "in x: f32[batch,3]" in said
    assert said.rstrip().endswith("out total")
    assert info(capsys, path, "--dump")["graph"] == said


def test_external_weights(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx

    path = models.sums(tmp_path / "m.onnx")
    onnx.save(
        onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0
    )
    (weight,) = info(capsys, path)["weights"]
    assert (weight["name"], weight["bytes"], weight["source"]) == ("scale", 12, "external")


def test_guards(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import helper

    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "y"], ["z"], "adding")],
        [models.tensor("x", ["a"]), models.tensor("y", ["b"])],
        [models.tensor("z", None)],
    )
    (guard,) = info(capsys, path)["guards"]
    assert guard["needs"] == "a and b broadcast"
    assert "adding" in guard["node"]
    assert main(["info", path, "--guards"]) == 0
    assert "a and b broadcast" in capsys.readouterr().out


def test_weights_are_not_read(tmp_path: pathlib.Path) -> None:
    path = models.large(tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx", "info", path, "--json"],
        capture_output=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["file_bytes"] > 64 << 20
    assert sum(w["bytes"] for w in said["weights"]) >= 64 << 20
    if said["memory_bytes"] is None:
        pytest.skip("this system does not tell how much memory is anonymous")
    assert said["memory_bytes"] < 10 << 20


def test_unknown_dims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(DIGITS), "--dims", "width=3"]) == 2
    assert "the symbolic dims of the inputs are batch" in capsys.readouterr().err


def test_lines_fit_the_terminal(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)  # the path of a model is shown as it was given
    shutil.copy(DIGITS, "digits.onnx")
    models.sums(tmp_path / "m.onnx")
    for argv in (
        ["info", "digits.onnx", "--weights"],
        ["info", "m.onnx"],
        ["run", "digits.onnx", "--seconds", "0"],
    ):
        assert main(argv) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_wrapped_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table([["a", "one two three four five six seven eight"], ["b", "short"]])
    assert capsys.readouterr().out.splitlines() == [
        "  a  one two three four five six seven",
        "     eight",
        "  b  short",
    ]
    table([["a" * 30, "one two three four five"]], ("name", ""))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("a") == 31  # long names are folded, not cut


def test_numbers_are_not_cut_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table([["a name", "12.3 MB", "45.6 MB"]], ("", "first", "second"), right=(1, 2))
    assert capsys.readouterr().out.splitlines() == [
        "            first   second",
        "  a name  12.3 MB  45.6 MB",
    ]


def test_tables_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither wrapped nor padded, and markup of rich is text like any other."""
    table([["[red]a[/red]", "12 B", "x" * 300], [":boom:", "3 B", "y"]], right=(1,))
    assert capsys.readouterr().out.splitlines() == [
        "  [red]a[/red]  12 B  " + "x" * 300,
        "  :boom:         3 B  y",
    ]


def test_short_names() -> None:
    assert short_name("abc") == "abc"
    assert short_name("a" * 50 + "b" * 50, 10) == "aaaa..bbbb"
    assert short_name("model.decoder.layers.12.mlp", 12) == "..ers.12.mlp"
    assert short_name("\x1b[2J") == "\\x1b[2J"


def test_shortened_names_stay_different() -> None:
    names = [
        f"model.layers.{i}.{part}.weight_Q4"
        for i in range(12)
        for part in ("mlp.gate_up_proj", "mlp.down_proj", "attn.qkv_proj", "attn.o_proj")
    ]
    short = shortened([*names, "lm_head.weight"], 20)
    assert len(set(short)) == len(names) + 1
    assert max(map(len, short)) <= 20
    assert short[0].startswith("..0.")
    assert short[-1] == "lm_head.weight"


def test_weights_in_a_pack(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = embedded(tmp_path), str(tmp_path / "out.onnx")
    assert main(["pack", path, "--standalone", "-o", out]) == 0
    capsys.readouterr()
    assert {w["source"] for w in info(capsys, out)["weights"]} == {"pack"}
    assert main(["info", out, "--weights"]) == 0
    said = capsys.readouterr().out
    assert "in the pack" in said
    assert "pack at " in said
    assert "in external data files" not in said
    assert "small constants" not in said


def test_a_provider_with_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    provider = ("--provider", "torch", "--provider-option", "device=cpu,gpu_mem_limit=20000")
    said = info(capsys, str(DIGITS), *provider)
    assert {n["provider"] for n in said["nodes"]} == {"torch", "cpu"}
    here, there = said["devices"]["by_device"]
    assert (here["device"], there["device"]) == ("cpu", "torch-cpu")
    assert 0 < there["weight_bytes"] <= 15000
    assert said["devices"]["copied_in"] == [{"name": "image", "device": "torch-cpu"}]
    assert [c["to"] for c in said["devices"]["copies"]] == ["cpu"]
    assert main(["info", str(DIGITS), *provider, "--why"]) == 0
    text = capsys.readouterr().out
    assert "1 copy between them" in text
    assert "raise gpu_mem_limit" in text


def test_an_option_wants_a_provider(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(DIGITS), "--provider-option", "device=cpu"]) == 2
    assert "must follow the --provider" in capsys.readouterr().err
