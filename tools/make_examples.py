"""Writes the example models of onnxruntime.datasets, as `sardonyx.as_onnxruntime` serves them.

Needs onnx and scikit-learn (for its irises), and takes a second:

    python tools/make_examples.py

Names, inputs, outputs and shapes are those of onnxruntime's examples, which programs in its
documentation use; the irises are classified by a regression of our own.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src/sardonyx/as_onnxruntime/shadow/onnxruntime/datasets"
F, INT64 = TensorProto.FLOAT, TensorProto.INT64


def irises() -> onnx.ModelProto:
    """The kind of an iris by the length and width of its sepals: label and probabilities."""
    data = load_iris()
    fitted = LogisticRegression(C=10).fit(data.data[:, :2], data.target)
    labels = [int(label) for label in fitted.classes_]
    classify = helper.make_node(
        "LinearClassifier",
        ["float_input"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[float(x) for x in fitted.coef_.ravel()],
        intercepts=[float(x) for x in fitted.intercept_],
        classlabels_ints=labels,
        post_transform="SOFTMAX",
    )
    name = helper.make_node(
        "ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=labels
    )
    kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(F, []))
    probabilities = helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind))
    graph = helper.make_graph(
        [classify, name],
        "irises",
        [helper.make_tensor_value_info("float_input", F, [3, 2])],
        [helper.make_tensor_value_info("label", INT64, [3]), probabilities],
    )
    return _model(graph, {"": 13, "ai.onnx.ml": 1})


def product() -> onnx.ModelProto:
    """Y = X * [[1, 2], [3, 4], [5, 6]]."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["X", "W"], ["Y"], name="mul_1")],
        "product",
        [helper.make_tensor_value_info("X", F, [3, 2])],
        [helper.make_tensor_value_info("Y", F, [3, 2])],
        [helper.make_tensor("W", F, [3, 2], range(1, 7))],
    )
    return _model(graph, {"": 13})


def sigmoid() -> onnx.ModelProto:
    """One Sigmoid."""
    graph = helper.make_graph(
        [helper.make_node("Sigmoid", ["x"], ["y"])],
        "sigmoid",
        [helper.make_tensor_value_info("x", F, [3, 4, 5])],
        [helper.make_tensor_value_info("y", F, [3, 4, 5])],
    )
    return _model(graph, {"": 13})


def _model(graph: onnx.GraphProto, opsets: dict[str, int]) -> onnx.ModelProto:
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="sardonyx")


def main() -> None:
    examples = {"logreg_iris": irises(), "mul_1": product(), "sigmoid": sigmoid()}
    for name, model in examples.items():
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, FOLDER / f"{name}.onnx")
        print(f"{name}.onnx: {model.ByteSize()} bytes")


if __name__ == "__main__":
    main()
