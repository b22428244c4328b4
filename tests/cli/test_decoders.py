"""The command line on decoders: sizes that follow from each other, caches in one table row."""

from __future__ import annotations

import json
import pathlib

import pytest
from onnx import parser

from sardonyx.cli import main
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.folding import argument_rows, folded
from sardonyx.cli.inputs import input_shapes
from sardonyx.cli.measure import OtherLoad, busy_note
from sardonyx.load import load
from sardonyx.load.model import Declared

LAYERS = 5


def _decoder() -> bytes:
    """Caches of some layers, to which a row is appended, and a mask over old and new positions."""
    names = [f"{i}_{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    caches = "".join(f", float[batch,2,past,4] past_{name}" for name in names)
    outputs = ", ".join(f"float[batch,2,after,4] present_{name}" for name in names)
    body = " ".join(f"present_{name} = Concat<axis=2>(past_{name}, new)" for name in names)
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (int64[batch,sequence] input_ids, int64[batch,total] attention_mask{caches})
        => (float[batch,total] added, {outputs}) {{
          ids = Cast<to=1>(input_ids)  mask = Cast<to=1>(attention_mask)
          sum = ReduceSum<keepdims=1>(ids)  added = Add(mask, sum)
          shape = Constant<value_ints=[1,2,1,4]>()  new = Expand(sum, shape)
          {body} }}""").SerializeToString()


@pytest.fixture
def inputs() -> list[Declared]:
    return list(load(_decoder()).inputs)


@pytest.mark.parametrize(
    ("given", "past", "sequence", "total"),
    [
        ({}, 1, 1, 2),
        ({"past": 8}, 8, 1, 9),
        ({"sequence": 4}, 1, 4, 5),
        ({"past": 0, "sequence": 4}, 0, 4, 4),
        ({"total": 9}, 8, 1, 9),
        ({"total": 9, "past": 6}, 6, 3, 9),
        ({"total": 9, "sequence": 9}, 0, 9, 9),
    ],
)
def test_total_is_past_and_sequence(
    inputs: list[Declared], given: dict[str, int], past: int, sequence: int, total: int
) -> None:
    shapes = input_shapes(inputs, given, {})
    assert shapes["input_ids"] == (1, sequence)
    assert shapes["attention_mask"] == (1, total)
    assert shapes["past_0_key"] == (1, 2, past, 4)


@pytest.mark.parametrize(
    "given", [{"total": 5, "past": 8}, {"total": 5, "past": 8, "sequence": 1}, {"total": 0}]
)
def test_contradicting_sizes(inputs: list[Declared], given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        input_shapes(inputs, given, {})


def test_sizes_from_given_shapes(inputs: list[Declared]) -> None:
    assert input_shapes(inputs, {}, {"attention_mask": (1, 9)})["past_0_key"] == (1, 2, 8, 4)


def _argument(name: str, shape: list[object]) -> dict[str, object]:
    return {"name": name, "type": "tensor(float)", "shape": shape}


def test_caches_share_a_table_row() -> None:
    caches = [_argument(f"past.{i}.key", [1, "past + new", 4]) for i in range(3)]
    caches.append(_argument("past.3.key", [1, "new + past", 4]))
    others = [_argument("x", [2]), _argument("past.0.value", [1])]
    rows = argument_rows([*caches, *others])
    assert rows[0] == ["past.{0..3}.key", "tensor(float)", "[1, past + new, 4]", "4 of them"]
    assert [row[0] for row in rows[1:]] == ["x", "past.0.value"]
    assert len(argument_rows([*caches, *others], folds=False)) == 6


@pytest.mark.parametrize(
    "names", [["a1", "a2", "a3"], ["a1b1", "a1b2", "a2b1", "a2b2"], ["a", "b", "c", "d"]]
)
def test_few_or_different_names_have_their_own_table_rows(names: list[str]) -> None:
    assert len(folded([_argument(name, [1]) for name in names])) == len(names)


def test_info_and_run_collapse_caches(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "decoder.onnx"
    model.write_bytes(_decoder())
    assert main(["info", str(model)]) == 0
    assert "past_{0..4}_key" in capsys.readouterr().out
    assert main(["info", str(model), "--all"]) == 0
    assert "past_3_key" in capsys.readouterr().out
    assert main(["run", str(model), "--dims", "past=3", "--seconds", "0"]) == 0
    assert "5 of them" in capsys.readouterr().out
    assert main(["run", str(model), "--seconds", "0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["inputs"]) == 2 + 2 * LAYERS


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([(100.0, 2), (101.0, 2)])
    monkeypatch.setattr("sardonyx.cli.measure._processor_seconds", lambda: next(seconds))
    monkeypatch.setattr("time.process_time", lambda: 5.0)
    clock = iter([10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    share = OtherLoad().share()
    assert share == 0.5
    assert "other processes use 50%" in busy_note(share)
    assert not busy_note(0.01)
    assert not busy_note(None)
