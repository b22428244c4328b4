"""The benchmarks on devices, with small networks on torch's CPU device."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.decoder import Decoder

torch = pytest.importorskip("torch")
from bench import devices, gpu, gpu_decode, gpu_profile, gpu_zoo, torch_inference  # noqa: E402 - torch may be missing

ZOO = {
    "zoo_nets": """
import dataclasses, torch

@dataclasses.dataclass
class Net:
    model: object
    inputs: dict
    outputs: list
    sizes: dict
    dynamo: bool = False

    def make(self, sizes):
        return tuple(make([sizes.get(d, d) for d in dims]) for dims, make in self.inputs.values())

class Call(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.model = net.model

    def forward(self, *args):
        return (self.model(*args),)

def networks():
    nn, x = torch.nn, (("batch", "rows", 8), torch.randn)
    layers = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return {"small": lambda: Net(layers(), {"x": x}, ["y"], {"rows": 3})}
""",
    "export_zoo": "TRACE = {'batch': 2, 'rows': 5}\nVARIANTS = {}\nsettle = lambda net: None\n",
    "make_llm": "from tests.decoder import Decoder\nSIZES = {'small': Decoder('qoperator')}\n",
}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts like the zoo's."""
    for name, text in ZOO.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ZOO:
        sys.modules.pop(name, None)


def given(monkeypatch: pytest.MonkeyPatch, module: Any, zoo: Path, text: str) -> Any:
    """The options of a benchmark, as its command line gives them."""
    command = ["bench", "--device", "cpu", "--zoo", str(zoo), "--work", str(zoo), *text.split()]
    monkeypatch.setattr(sys, "argv", command)
    return module.arguments()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_latencies_and_differences_of_a_network(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "--models small --dtypes float32 --batches 2 --rivals eager --rounds 1 --seconds 0"
    asked = given(monkeypatch, gpu, zoo, f"{text} --numpy --json {zoo}/rows.json")
    gpu.prepare(asked)
    network = devices.build(zoo, "small", torch.float32, asked.device)
    row = gpu.measure(asked, network, gpu.Row("small", "float32", 2))
    assert not row.failed
    assert not row.elsewhere
    assert set(row.ms) == {"eager", "bound", "numpy"}
    assert row.differs < 1e-5
    gpu.report([row], asked)
    assert "small" in capsys.readouterr().out
    assert (zoo / "rows.json").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_failing_call_is_reported(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "--models small --dtypes float32 --batches 1 --rivals eager --rounds 1 --seconds 0"
    asked = given(monkeypatch, gpu, zoo, text)
    network = devices.build(zoo, "small", torch.float32, asked.device)
    row = gpu.measure(asked, network, gpu.Row("small", "float32", 1))
    assert "ours" in row.failed
    assert set(row.ms) == {"eager"}
    assert math.isnan(row.ratio)


def test_the_ratio_compares_the_fastest_of_each() -> None:
    row = gpu.Row("m", "float32", 1, ms={"eager": 1, "compile": 6, "reduce": 4, "graph": 2})
    assert row.ratio == 2


def test_decode_in_static_buffers_equals_the_cpu_provider(
    zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "--sizes small --context 32 --prompt 6 --tokens 3 --rounds 1 --checked 5"
    asked = given(monkeypatch, gpu_decode, zoo, text)
    folder = gpu_decode.folder_of(asked, "small")
    folder.mkdir()
    path = Decoder("qoperator").save(folder / "model.onnx")
    row = gpu_decode.measure(asked, "small", Decoder(), gemv=1.0)
    assert row["differs"] < 1e-4
    assert row["weights"] == gpu_decode.weight_bytes(path) > 0
    assert not row["elsewhere"]
    gpu_decode.report([row])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("off", "is_good"), [(0.0, True), (1.0, False)])
def test_networks_are_compared_with_the_cpu(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, off: float, is_good: bool
) -> None:
    asked = given(monkeypatch, gpu_zoo, zoo, "--tf32 0")
    assert gpu_zoo.chosen(asked) == ["small"]
    network = devices.build(zoo, "small", torch.float32, asked.device)
    devices.export(zoo, network, zoo / "small.onnx", 20)
    np.savez(zoo / "small.npz", x=network.inputs(1)["x"].numpy())
    real = gpu_zoo.difference
    monkeypatch.setattr(gpu_zoo, "difference", lambda a, b: real([a[0] + off], b))
    (row,) = gpu_zoo.compare(asked, "small")
    assert not row.failed
    assert row.is_good is is_good


def test_kernels_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(4, 4)
    gpu_profile.show("products", {"eager": lambda: x @ x}, torch.device("cpu"))
    assert "aten::mm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("got", "want", "found"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1.0, math.nan], [1.0, 4.0], math.inf),
        ([1.0], [1.0, 4.0], math.inf),
        ([math.inf, 1.0], [math.inf, 1.0], 0.0),
    ],
)
def test_differences_are_relative_to_the_largest(
    got: list[float], want: list[float], found: float
) -> None:
    assert devices.difference([torch.tensor(got)], [np.array(want, np.float32)]) == found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_modules_and_exported_models(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"small --one --rounds 1 --threads 1 --zoo {zoo} --work {zoo}"
    monkeypatch.setattr(sys, "argv", ["bench", *text.split()])
    torch_inference.main()
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["name"] == "small"
    assert row["differs"] < 1e-5
    assert row["ratio"] > 0
    torch_inference.show(row)
    assert capsys.readouterr().out.startswith("small ")
