"""Small example models with the names, inputs and outputs of onnxruntime's."""

from __future__ import annotations

import os


def get_example(name: str) -> str:
    """Return the path of an example: logreg_iris.onnx, mul_1.onnx or sigmoid.onnx."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if name not in os.listdir(folder):
        known = ", ".join(sorted(n for n in os.listdir(folder) if n.endswith(".onnx")))
        raise FileNotFoundError(f"there is no example {name!r}; the examples are {known}")
    return os.path.join(folder, name)
