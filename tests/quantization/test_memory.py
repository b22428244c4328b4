"""Quantization holds one layer's weights at a time, also while it calibrates."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx.quantization.calibrate import create_calibrator
from sardonyx.quantization.document import read_document, session
from sardonyx.quantization.document.session import UnpackedSession, open_measuring
from tests.quantization.models import MODELS, samples

_SIZE, _LAYERS = 2048, 6
_MB = 1 << 20
_LAYER_MB = _SIZE * _SIZE * 4 / _MB

_SCRIPT = """
import sys, threading
import numpy as np
from sardonyx.quantization import quantize_dynamic, quantize_static
from sardonyx.quantization.document import session
from sardonyx.quantization.matmul_nbits import *

for module in (session, sys.modules["sardonyx.quantization.quantize"]):
    module.KEPT_BYTES = 0
how, model, out = sys.argv[1:]
feeds = [{"x": np.full((2, 2048), 0.1 * i, np.float32)} for i in range(1, 4)]

def quantize(model, out):
    if how == "dynamic":
        return quantize_dynamic(model, out)
    if how in ("static", "smooth"):
        return quantize_static(model, out, feeds, extra_options={"SmoothQuant": how == "smooth"})
    config = {"rtn": RTNWeightOnlyQuantConfig, "k_quant": KQuantWeightOnlyQuantConfig}[how]
    quantizer = MatMulNBitsQuantizer(model, algo_config=config())
    quantizer.process()
    quantizer.model.save_model_to_file(out, use_external_data_format=True)

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

small, big = model.split(",")
quantize(small, out)  # loads modules, starts threads
before = peak = anonymous()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
quantize(big, out)
done.set()
watcher.join()
print((peak - before) / 1024)
"""


def _products(size: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).normal(0, 0.02, (size, size)).astype(np.float32)
    names = ["x", *(f"h{i}" for i in range(_LAYERS - 1)), "y"]
    pairs = itertools.pairwise(names)
    nodes = [helper.make_node("MatMul", [a, f"w_{b}"], [b], b) for a, b in pairs]
    x, y = (helper.make_tensor_value_info(n, 1, ["n", size]) for n in "xy")
    weights = [numpy_helper.from_array(weight, f"w_{name}") for name in names[1:]]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> str:
    """Return the paths of a small and of a large model."""
    folder = tmp_path_factory.mktemp("models")
    paths = []
    for layers in (1, _LAYERS):
        model = _products(_SIZE)
        del model.graph.node[layers:]
        model.graph.node[-1].output[0] = "y"
        onnx.save(
            model, folder / f"{layers}.onnx", save_as_external_data=True, location=f"{layers}.data"
        )
        paths.append(str(folder / f"{layers}.onnx"))
    return ",".join(paths)


@pytest.mark.parametrize("how", ["static", "smooth", "dynamic", "rtn", "k_quant"])
def test_memory_for_one_layer(tmp_path: Path, models: str, how: str) -> None:
    command = [sys.executable, "-c", _SCRIPT, how, models, str(tmp_path / "out.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 1.5 * _LAYER_MB


@pytest.mark.parametrize("name", MODELS)
def test_values_of_unpacked_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges do not depend on whether weights are packed, and callers see no weights."""
    found = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(session, "KEPT_BYTES", limit)
        calibrator = create_calibrator(MODELS[name](), augmented_model_path=None)
        assert isinstance(calibrator.infer_session, UnpackedSession) == (not limit)
        inputs = [i.name for i in calibrator.infer_session.get_inputs()]
        assert inputs == list(samples(name)[0])
        calibrator.collect_data(samples(name))
        found.append(calibrator.compute_data().to_dict()["data"])
    for value, packed in found[0].items():
        for packed_end, end in zip(packed.range_value, found[1][value].range_value, strict=True):
            np.testing.assert_allclose(end, packed_end, rtol=1e-6, atol=1e-7)


def test_weights_that_others_read_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "KEPT_BYTES", 0)
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 4] x, bool c) => (float[4, 4] y, float[4, 4] w) {
        a = MatMul(x, w)  b = MatMul(a, v)  d = MatMul(b, u)  s = Add(d, b)
        y = If (c) <then_branch = t () => (float[4, 4] p) { p = Identity(u) },
                    else_branch = e () => (float[4, 4] q) { q = Identity(s) }> }"""
    model = onnx.parser.parse_model(text)
    for name in "uvw":
        weight = np.random.default_rng(ord(name)).normal(size=(4, 4)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    document = read_document(model)
    opened = open_measuring(document)
    assert isinstance(opened, UnpackedSession)
    assert list(opened._weights) == ["v"]
    assert list(document.graph.initializers) == ["u", "v", "w"]
