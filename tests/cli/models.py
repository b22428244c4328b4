"""Tiny models for the command line's tests."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: pathlib.Path, nodes: Any, inputs: Any, outputs: Any, weights: Any = ()) -> str:
    """Writes a model and returns its path."""
    graph = helper.make_graph(
        nodes, "tiny", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in weights]
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="tests",
    )
    onnx.save(model, path)
    return str(path)


def tensor(name: str, shape: Any, dtype: int = TensorProto.FLOAT) -> Any:
    """A declared input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def sums(path: pathlib.Path) -> str:
    """total = x + y * scale, with dims that have names."""
    return save(
        path,
        [
            helper.make_node("Mul", ["y", "scale"], ["scaled"], "scaling"),
            helper.make_node("Add", ["x", "scaled"], ["total"], "adding"),
        ],
        [tensor("x", ["batch", 3]), tensor("y", ["batch", 3])],
        [tensor("total", ["batch", 3])],
        [("scale", np.array([1, 2, 3], np.float32))],
    )


def texts(path: pathlib.Path) -> str:
    """A text and an integer pass through."""
    return save(
        path,
        [
            helper.make_node("Identity", ["word"], ["same"]),
            helper.make_node("Add", ["n", "n"], ["twice"]),
        ],
        [tensor("word", ["n_words"], TensorProto.STRING), tensor("n", [], TensorProto.INT64)],
        [tensor("same", None, TensorProto.STRING), tensor("twice", [], TensorProto.INT64)],
    )


def grown(path: pathlib.Path) -> str:
    """A cache of past + 1 rows, as decoders are exported."""
    return save(
        path,
        [helper.make_node("Relu", ["mask"], ["kept"])],
        [tensor("past", ["past_length"]), tensor("mask", ["past_length + 1"])],
        [tensor("kept", None)],
    )


def large(path: pathlib.Path) -> str:
    """64 MiB of weights in the file, which a Transpose reads."""
    weight = np.zeros((4096, 4096), np.float32)
    return save(
        path,
        [
            helper.make_node("Transpose", ["w"], ["transposed"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "transposed"], ["y"]),
        ],
        [tensor("x", ["batch", 4096])],
        [tensor("y", ["batch", 4096])],
        [("w", weight)],
    )
