"""Sessions of models with custom ops of the domain acme."""

from __future__ import annotations

import onnx

import sardonyx

HEAD = '<ir_version: 10, opset_import: ["": 21, "acme": 1]>'


def session(text: str) -> sardonyx.InferenceSession:
    """Return a session of a graph in onnx.parser's syntax."""
    return sardonyx.InferenceSession(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())
