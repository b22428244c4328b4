"""Models that were exported for inference are reported when they are to be trained."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.errors import InvalidArgument
from sardonyx.train import gradient
from sardonyx.train.adapters.targets import editable

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Every kind of layer that an export for inference changes, and two equal normalizations."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.conv, self.bn = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.3)
        self.a, self.norm1 = nn.Linear(36, 8), nn.LayerNorm(8)
        self.b, self.norm2 = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        """Return the sum of squares."""
        x = self.dropout(torch.relu(self.bn(self.conv(x)))).flatten(1)[:, None]
        return self.norm2(self.b(self.norm1(self.a(x)))).square().sum()


def exported(**options: Any) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = (torch.zeros(2, 1, 5, 5),)
        torch.onnx.export(Net().eval(), inputs, file, dynamo=False, **options)
    return onnx.load_from_string(file.getvalue())


def warned(model: Any, caplog: pytest.LogCaptureFixture) -> str:
    """The one warning of a gradient, or nothing."""
    with caplog.at_level(logging.WARNING, "sardonyx"):
        gradient(model)
    found = [record.getMessage() for record in caplog.records if record.name == "sardonyx"]
    assert len(found) <= 1
    return "".join(found)


def test_an_export_for_inference(caplog: pytest.LogCaptureFixture) -> None:
    text = warned(exported(), caplog)
    assert "norm2.bias and norm1.bias, norm2.weight and norm1.weight" in text
    assert "BatchNormalization was folded into these weights of convolutions: onnx::Conv_" in text
    assert "lost their names: onnx::MatMul_" in text
    assert "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False" in text
    assert "sardonyx.train.wrap" in text


def test_an_export_for_training(caplog: pytest.LogCaptureFixture) -> None:
    mode = torch.onnx.TrainingMode.TRAINING
    assert warned(exported(training=mode, do_constant_folding=False), caplog) == ""


def test_an_export_that_preserves_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    mode = torch.onnx.TrainingMode.PRESERVE
    text = warned(exported(training=mode, do_constant_folding=False), caplog)
    assert "use running statistics, not those of the batch: /bn/BatchNormalization" in text
    assert "bn.running_var and bn.weight" in text  # both are ones, and merged


def test_a_signature_of_the_newer_exporter(caplog: pytest.LogCaptureFixture) -> None:
    """It lists all parameters of the module, as metadata of the graph."""
    source = model_of(
        "g (float[n, 2] x) => (float loss) { y = MatMul(x, w) loss = ReduceSum<keepdims=0>(y) }",
        w=np.eye(2),
    )
    entry = source.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "# inputs\np_w: PARAMETER target='w'\np_b: PARAMETER target='norm.bias'\nx: INPUT"
    text = warned(source, caplog)
    assert "folded or transposed these parameters, which the model lacks: norm.bias\n" in text
    caplog.clear()
    assert "lacks: norm.bias\n" in warned(editable(source), caplog)


def test_the_newer_exporter(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("onnxscript")
    program = torch.onnx.export(
        Net().eval(), (torch.zeros(2, 1, 5, 5),), dynamo=True, verbose=False
    )
    text = warned(program.model_proto, caplog)
    assert "lacks: a.weight, b.weight, bn.bias, bn.weight and 2 more" in text


def model_of(text: str, **weights: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(w, np.float32), n) for n, w in weights.items()
    )
    return model


def test_layers_of_several_modules_with_one_weight(caplog: pytest.LogCaptureFixture) -> None:
    source = model_of(
        """g (float[n, 2] x) => (float loss) {
            a = MatMul(x, w) b = MatMul(a, w) loss = ReduceSum<keepdims=0>(b) }""",
        w=np.eye(2),
    )
    source.graph.node[0].name = "/layers.0/MatMul"
    source.graph.node[1].name = "/layers.1/MatMul"
    assert (
        "share one initializer, so they are trained as one: w in /layers.0 and /layers.1"
        in warned(source, caplog)
    )


def test_a_module_that_is_called_twice(caplog: pytest.LogCaptureFixture) -> None:
    source = model_of(
        """g (float[n, 2] x) => (float loss) {
            a = MatMul(x, w) b = MatMul(a, w) loss = ReduceSum<keepdims=0>(b) }""",
        w=np.eye(2),
    )
    source.graph.node[0].name = "/layer/MatMul"
    source.graph.node[1].name = "/layer/MatMul_1"
    assert warned(source, caplog) == ""


DROPOUT = """g (float[n, 2] x) => (float loss) {
    m = MatMul(x, w) y = Dropout(m, ratio, MODE) loss = ReduceSum<keepdims=0>(y) }"""


def test_inactive_dropout(caplog: pytest.LogCaptureFixture) -> None:
    source = model_of(DROPOUT.replace(", MODE", ""), w=np.eye(2), ratio=0.5)
    assert "these Dropout nodes do nothing: Dropout" in warned(source, caplog)


def test_active_dropout(caplog: pytest.LogCaptureFixture) -> None:
    source = model_of(DROPOUT.replace("MODE", "mode"), w=np.eye(2), ratio=0.5)
    source.graph.initializer.append(numpy_helper.from_array(np.array(True), "mode"))
    assert warned(source, caplog) == ""


CONSTANT = """g (float[n, 2] x) => (float loss) {
    c = Constant<value_floats=[1.0, 2.0]>() s = Constant<value_ints=[2, 1]>()
    m = MatMul(x, w) y = Add(m, m) loss = ReduceSum<keepdims=0>(y) }"""


def test_weights_that_are_constants(caplog: pytest.LogCaptureFixture) -> None:
    text = CONSTANT.replace("MatMul(x, w)", "MatMul(x, c) k = Mul(m, w)").replace("m, m", "k, k")
    source = model_of(text, w=[2.0])
    assert "constants, not initializers, and are not trained: c of MatMul" in warned(source, caplog)


def test_nothing_to_train(caplog: pytest.LogCaptureFixture) -> None:
    source = model_of(CONSTANT.replace("MatMul(x, w)", "MatMul(x, c)"))
    with pytest.raises(InvalidArgument, match="loss depends on no initializer"):
        gradient(source)
    assert "c of MatMul" in caplog.text
