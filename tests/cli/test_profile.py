"""`sardonyx profile`: the work of known shapes, tables, JSON, traces, starts."""

from __future__ import annotations

import itertools
import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx._native as native
from sardonyx.cli import main
from sardonyx.cli.measure import start
from sardonyx.cli.profile import ModelProfile, Subject, described, measured, rates
from sardonyx.cli.profile_cost import RULES, cost
from sardonyx.cli.profile_trace import trace
from sardonyx.cli.roofline import TYPES, Roofline
from sardonyx.program.operands import Operand, Operands
from sardonyx.reports.trace import TimedStep
from tests.cli import models


@pytest.fixture(autouse=True)
def small_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.cli.roofline.bytes_beyond_caches", lambda: 1 << 20)


def _model(path: pathlib.Path, op: str, x: tuple[int, ...], *more: Any, **attrs: Any) -> str:
    """One node on x, float32, followed by constants."""
    domain = attrs.pop("domain", "")
    names = [f"c{i}" for i in range(len(more))]
    node = helper.make_node(op, ["x", *names], ["y"], "the node", domain=domain, **attrs)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "one",
            [models.tensor("x", x, helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)))],
            [onnx.ValueInfoProto(name="y")],
            [onnx.numpy_helper.from_array(a, n) for a, n in zip(more, names, strict=True)],
        ),
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    onnx.save(model, path)
    return str(path)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _report(path: str, shape: tuple[int, ...], runs: int = 2) -> ModelProfile:
    return measured(start(path, 1, "p"), {"x": _ones(*shape)}, runs, Roofline(1), Subject(path))


_EXPERTS = _ones(5, 4), _ones(4, 12, 8), _ones(4, 12), _ones(4, 8, 12)
_BITS = np.zeros((48, 2, 16), np.uint8), np.ones(96, np.float32)


@pytest.mark.parametrize(
    ("made", "family", "operations", "n_bytes"),
    [
        (("MatMul", (6, 40), [_ones(40, 64)], {}), "matmul", 2 * 6 * 40 * 64, None),
        (("MatMul", (3, 6, 40), [_ones(40, 64)], {}), "matmul", 2 * 18 * 40 * 64, None),
        (
            ("Gemm", (40, 6), [_ones(64, 40)], {"transA": 1, "transB": 1}),
            "matmul",
            2 * 6 * 40 * 64,
            None,
        ),
        (
            ("Conv", (1, 8, 10, 12), [_ones(16, 8, 3, 3)], {"pads": [1, 1, 1, 1]}),
            "convolution",
            2 * 120 * 16 * 8 * 9,
            None,
        ),
        (
            ("Conv", (1, 32, 40, 40), [_ones(9, 32, 3, 3)], {"pads": [1, 1, 1, 1]}),
            "convolution",
            2 * 1600 * 9 * 32 * 9,
            None,
        ),
        (
            ("Conv", (2, 8, 10, 12), [_ones(16, 4, 3, 3)], {"group": 2, "strides": [2, 2]}),
            "convolution",
            2 * 2 * 20 * 16 * 4 * 9,
            None,
        ),
        (
            ("Conv", (1, 8, 10, 12), [_ones(8, 1, 3, 3)], {"group": 8}),
            "convolution",
            2 * 80 * 8 * 9,
            None,
        ),
        (
            ("ConvTranspose", (1, 8, 5, 5), [_ones(8, 4, 2, 2)], {"strides": [2, 2]}),
            "convolution",
            2 * 25 * 8 * 4 * 4,
            None,
        ),
        (
            ("ConvTranspose", (1, 16, 9, 9), [_ones(16, 4, 3, 3)], {}),
            "convolution",
            2 * 81 * 16 * 4 * 9,
            None,
        ),
        (
            ("MoE", (5, 8), _EXPERTS, {"k": 2, "domain": "com.microsoft"}),
            "n-bit matmul",
            2 * 5 * 2 * (8 * 12 + 12 * 8),
            None,
        ),
        (
            ("LSTM", (7, 2, 5), [_ones(1, 12, 5), _ones(1, 12, 3)], {"hidden_size": 3}),
            "recurrence",
            2 * 14 * 12 * 8,
            None,
        ),
        (
            (
                "MatMulNBits",
                (3, 64),
                _BITS,
                {"K": 64, "N": 48, "bits": 4, "block_size": 32, "domain": "com.microsoft"},
            ),
            "n-bit matmul",
            2 * 3 * 64 * 48,
            3 * 64 * 4 + 48 * 32 + 96 * 4 + 3 * 48 * 4,
        ),
        (("Exp", (30, 50), [], {}), "elementwise", 2 * 8 * 1500, 2 * 1500 * 4),
        (("Relu", (30, 50), [], {}), "elementwise", 0, 2 * 1500 * 4),
        (("Softmax", (30, 50), [], {}), "normalization", 2 * 7 * 1500, 2 * 1500 * 4),
        (("ReduceSum", (30, 50), [np.array([1])], {}), "reduction", 0, (1500 + 30) * 4),
        (("Transpose", (30, 50), [], {}), "movement", 0, 2 * 1500 * 4),
        (("Gather", (900, 50), [np.array([1, 5, 1])], {}), "movement", 0, 2 * 150 * 4 + 3 * 8),
    ],
)
def test_work_of_known_shapes(
    tmp_path: pathlib.Path, made: Any, family: str, operations: int, n_bytes: int | None
) -> None:
    op, x, more, attrs = made
    path = _model(tmp_path / "m.onnx", op, x, *more, **attrs)
    steps = [s for s in _report(path, x).steps if s.family == family]
    assert sum(s.cost.operations for s in steps) == operations
    if n_bytes is not None:
        assert [s.cost.n_bytes for s in steps] == [n_bytes]


@pytest.mark.parametrize(
    ("rows", "keys", "is_causal", "pairs"),
    [(6, 6, 0, 36), (6, 6, 1, 21), (2, 6, 0, 12)],
)
def test_work_of_attention(
    tmp_path: pathlib.Path, rows: int, keys: int, is_causal: int, pairs: int
) -> None:
    """A row counts the keys that it sees by its place."""
    kv = _ones(1, 4, keys, 16)
    path = _model(
        tmp_path / "m.onnx", "Attention", (1, 4, rows, 16), kv, kv, is_causal=is_causal
    )  # fmt: skip
    (step,) = (s for s in _report(path, (1, 4, rows, 16)).steps if s.timed.kernel == "attention")
    assert step.cost.operations == 2 * 4 * pairs * (16 + 16)


def _step(kernel: str, op: str, inputs: Any, outputs: Any, **attrs: Any) -> TimedStep:
    """A step of a kernel for operands of the given dims."""

    def operand(dims: Any) -> Any:
        return None if dims is None else Operand("float32", dims, 4 * int(np.prod(dims)))

    fact = SimpleNamespace(static=None)
    values = tuple(None if x is None else SimpleNamespace(tensor=fact) for x in inputs)
    node: Any = SimpleNamespace(op=SimpleNamespace(name=op), attrs=attrs, inputs=values)
    operands = Operands(tuple(map(operand, inputs)), tuple(map(operand, outputs)))
    return TimedStep(kernel, (node,), "cpu", kernel, lambda: operands)


_QKV = (2, 3, 6, 16), (2, 3, 6, 16), (2, 3, 6, 8)
_SCALARS = {"is_causal": 1, "scale": 1.0, "keep_scale": 1.0}


@pytest.mark.parametrize(
    ("step", "operations"),
    [
        (
            _step(
                "conv_winograd_unpacked_f32", "Conv", [(2, 9, 9, 8), (16, 8, 3, 3)], [(2, 7, 7, 16)]
            ),
            2 * 98 * 16 * 8 * 9,
        ),
        (
            _step(
                "conv_flipped_unpacked_f32",
                "ConvTranspose",
                [(2, 7, 7, 8), (8, 4, 3, 3)],
                [(2, 9, 9, 4)],
            ),
            2 * 98 * 8 * 4 * 9,
        ),
        (
            _step(
                "conv_weight_gradient_f32",
                "ConvWeightGradient",
                [(2, 9, 9, 8), (2, 7, 7, 16)],
                [(16, 4, 3, 3)],
            ),
            2 * 98 * 16 * 4 * 9,
        ),
        (
            _step(
                "attention_training",
                "AttentionTraining",
                _QKV,
                [(2, 6, 3, 8), (2, 3, 6)],
                **_SCALARS,
            ),
            2 * 6 * 21 * (16 + 8),
        ),
        (
            _step("attention_gradient", "AttentionGradient", _QKV, _QKV, **_SCALARS),
            2 * 6 * 21 * (3 * 16 + 2 * 8),
        ),
        (
            _step(
                "linear_attention",
                "LinearAttention",
                [(2, 5, 4 * 16), (2, 5, 2 * 16), (2, 5, 2 * 8), None, (2, 5, 2), (2, 5, 2)],
                [(2, 5, 4 * 8), (2, 2, 16, 8)],
                q_num_heads=4,
                kv_num_heads=2,
            ),
            2 * 5 * 16 * 8 * (2 * 4 + 2 * (2 + 1 + 2)),
        ),
        (
            _step(
                "matmul_nbits_transposed",
                "MatMulNBitsGradient",
                [(2, 3, 48)],
                [(2, 3, 64)],
                K=64,
                N=48,
            ),
            2 * 6 * 64 * 48,
        ),
        (
            _step("lstm_backward", "LSTMRecurrenceGradient", [(7, 2, 60), (48, 12)], [(7, 2, 48)]),
            2 * 14 * 48 * 12,
        ),
        (_step("linear_f32", "LinearRegressor", [(9, 20), (3, 20)], [(9, 3)]), 2 * 9 * 3 * 20),
        (
            _step("linear_columns_f32", "LinearRegressor", [(9, 20), (20, 16)], [(9, 3)]),
            2 * 9 * 3 * 20,
        ),
        (_step("matrix_determinant", "Det", [(5, 9, 9)], [(5,)]), 5 * 2 * 9**3 // 3),
        (_step("matrix_inverse", "Inverse", [(5, 9, 9)], [(5, 9, 9)]), 5 * 2 * 9**3),
        (_step("loss", "SoftmaxCrossEntropyLoss", [(9, 20), (9,)], [()]), 2 * 7 * 180),
        (_step("loss", "NegativeLogLikelihoodLoss", [(9, 20), (9,)], [()]), 0),
    ],
)
def test_work_of_steps_in_training(step: TimedStep, operations: int) -> None:
    assert cost(step).operations == operations


# Families whose bytes take longer than their arithmetic, or that compute without floats.
_MEMORY_BOUND_FAMILIES = {
    "custom", "elementwise", "features", "gather", "move", "normalize", "optimizer", "pooling",
    "quantize", "random", "reduce", "resize", "sample", "select", "signal", "softmax", "text",
    "trees",
}  # fmt: skip
_MEMORY_BOUND = {"append", "append_at_run", "col2im", "gather_dequantized", "rotary", "spans"}


def test_every_kernel_has_a_rule_or_is_bound_by_memory() -> None:
    """Else `sardonyx profile` would compare a compute-bound kernel with the rate of memory."""
    names = {name.removesuffix("_bf16"): kernel.family for name, kernel in native.kernels.items()}
    # Packing kernels run when a session is loaded, probes measure the machine.
    steps = {n: f for n, f in names.items() if not n.endswith("_pack") and f != "probe"}
    others = {n for n, family in steps.items() if family not in _MEMORY_BOUND_FAMILIES}
    assert others - RULES.keys() == _MEMORY_BOUND
    assert RULES.keys() <= steps.keys()


def test_int8_is_compared_with_the_int8_peak(tmp_path: pathlib.Path) -> None:
    constants = (
        np.float32(0.1), np.uint8(3), np.ones((40, 64), np.int8), np.float32(0.1), np.int8(0),
        np.float32(0.1), np.uint8(3),
    )  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "c0", "c1"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", *(f"c{i}" for i in range(7))], ["y"]),
    ]
    path = models.save(
        tmp_path / "m.onnx",
        nodes,
        [models.tensor("x", (6, 40))],
        [models.tensor("y", (6, 64), TensorProto.UINT8)],
        [(f"c{i}", np.asarray(c)) for i, c in enumerate(constants)],
    )
    (step,) = (s for s in _report(path, (6, 40)).steps if s.family == "int8 matmul")
    assert step.cost.operations == 2 * 6 * 40 * 64
    assert step.cost.type == "int8"


def test_rates_and_limits(tmp_path: pathlib.Path) -> None:
    report = _report(_model(tmp_path / "m.onnx", "MatMul", (64, 64), _ones(64, 64)), (64, 64))
    (step,) = report.steps
    roofline = report.roofline
    found = rates([step], roofline)
    assert found["at_limit_s"] == max(
        2 * 64**3 / roofline.operations_per_s["float32"],
        step.cost.n_bytes / roofline.bytes_read_per_s,
    )
    assert found["of_limit"] == pytest.approx(found["at_limit_s"] / step.seconds)
    assert found["gflops"] == pytest.approx(2 * 64**3 / step.seconds / 1e9)
    about = described(step, roofline)
    assert about["outputs"] == [["float32", [64, 64]]]
    assert about["inputs"][0] == ["float32", [64, 64]]
    assert 0 <= report.outside_s < report.run_s


def test_passes_of_a_loop_are_added_up(tmp_path: pathlib.Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Exp", ["s"], ["t"])],
        "body",
        [
            models.tensor("i", [], TensorProto.INT64),
            models.tensor("go", [], TensorProto.BOOL),
            models.tensor("s", ["m"]),
        ],
        [models.tensor("on", [], TensorProto.BOOL), models.tensor("t", ["m"])],
    )
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        [models.tensor("x", ["m"])],
        [models.tensor("y", ["m"])],
        [("n", np.array(5))],
    )
    (step,) = (s for s in _report(path, (300,)).steps if s.family == "elementwise")
    assert step.passes == 5
    assert step.cost.n_bytes == 5 * 2 * 300 * 4


def test_table(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.sums(tmp_path / "m.onnx")
    assert main(["profile", path, "--dims", "batch=2", "--runs", "2", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    for word in (
        "m.onnx", "1 thread,", "GFLOP/s", "GB/s", "of limit", "by family", "elementwise",
        "outside of steps", "longest steps", "adding", "chain 2x3", "a run takes",
    ):  # fmt: skip
        assert word in said


def test_json(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.sums(tmp_path / "m.onnx")
    assert main(["profile", path, "--runs", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["limits"]["operations_per_s"].keys() == set(TYPES)
    assert sum(f["steps"] for f in said["families"]) == len(said["steps"])
    assert said["run_s"] > 0
    assert "optimize" in said["start"]["stages"]


def test_trace(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = models.sums(tmp_path / "m.onnx"), tmp_path / "t.json"
    assert main(["profile", path, "--runs", "2", "--trace", str(file)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"m.onnx", "start", "run"}
    slices = [e for e in events if e["ph"] == "X"]
    for whole in ("start", "run"):
        (outer,) = (e for e in slices if e["name"] == whole)
        inner = [e for e in slices if e["tid"] == outer["tid"] and e is not outer]
        assert inner
        times = sorted((e["ts"], e["ts"] + e["dur"]) for e in inner)
        assert all(a[1] <= b[0] + 0.01 for a, b in itertools.pairwise(times))
        assert outer["ts"] <= times[0][0]
        assert times[-1][1] <= outer["ts"] + outer["dur"] + 0.01
    (step,) = (e for e in slices if e["tid"] == 2 and e["name"] != "run")
    assert step["args"]["outputs"] == [["float32", [1, 3]]]
    assert step["args"]["op"] == "Chain"
    assert step["args"]["GB/s"] > 0


def test_trace_of_what_python_runs(tmp_path: pathlib.Path) -> None:
    """Steps without a kernel are steps too."""
    path = _model(tmp_path / "m.onnx", "DynamicTimeWarping", (1, 4), domain="com.microsoft")
    report = _report(path, (1, 4))
    assert "in Python" in report.families()
    made = [e for e in trace(report)["traceEvents"] if e.get("name") == "the node"]
    assert made[0]["args"]["outputs"] == [["int32", [2, 4]]]


def test_start(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.sums(tmp_path / "m.onnx")
    assert main(["profile", path, "--start", "--starts", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"load", "infer", "optimize", "lower", "place", "weights"} <= said["stages"].keys()
    assert min(said["import"], said["first_run"], said["later_run"]) > 0
    assert said["import_later"] >= 0
    parts = said["import_later"] + sum(said["stages"].values()) + said["other"]
    assert parts == pytest.approx(said["session"])
    assert main(["profile", path, "--start", "--starts", "1"]) == 0
    out = capsys.readouterr().out
    for word in ("start of m.onnx", "1 fresh process", "prepack them for kernels", "the first run"):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "{folder}/none/t.json"], "there is no folder"),
        (["--trace", "{folder}/m.onnx"], "is read by this command"),
        (["--trace", "{folder}/m.npz"], "is read by this command"),
        (["--trace", "{folder}"], "is a folder"),
        (["--trace", "/dev/null"], "is not a regular file"),
        (["--start", "--trace", "{folder}/t.json"], "--trace is for runs"),
        (["--starts", "2"], "--starts needs --start"),
        (["--precison", "bf16"], "usage: sardonyx profile"),
        (["--precison", "bf16"], "did you mean --precision?"),
        (["--threads", "1000"], "1000 threads are more than the maximum of 256"),
        (["--runs", "0"], "is not a number from 1"),
        (["--dims", "time=3"], "--dims names time"),
        (["--inputs", "{folder}/none.npz"], "there is no file"),
    ],
)
def test_wrong_arguments(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    path = models.sums(tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", x=np.ones((1, 3), np.float32), y=np.ones((1, 3), np.float32))
    given = [a.format(folder=tmp_path) for a in arguments]
    assert main(["profile", path, *given]) in (1, 2)
    assert said in capsys.readouterr().err
