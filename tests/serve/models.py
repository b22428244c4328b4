"""Small models to serve."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

DOUBLE = """
    <ir_version: 10, opset_import: ["" : 21]>
    double (float[n, 3] x) => (float[n, 3] y) {
      two = Constant <value: tensor = float {2.0}> ()
      y = Mul (x, two)
    }"""
TRIPLE = DOUBLE.replace("2.0", "3.0")
# Makes 16 MB of a row.
WIDE = """
    <ir_version: 10, opset_import: ["" : 21]>
    wide (float[n, 3] x) => (float[n, 4000000] y) {
      axes = Constant <value: tensor = int64[1] {1}> ()
      sizes = Constant <value: tensor = int64[2] {1, 4000000}> ()
      total = ReduceSum <keepdims: int = 1> (x, axes)
      y = Expand (total, sizes)
    }"""
# Rows of a batch are not independent: requests must not be joined.
CENTERED = """
    <ir_version: 10, opset_import: ["" : 21]>
    centered (float[n, 3] x) => (float[n, 3] y) {
      axes = Constant <value: tensor = int64[1] {0}> ()
      mean = ReduceMean <keepdims: int = 1> (x, axes)
      y = Sub (x, mean)
    }"""
# Sums over a sequence, of what the mask lets through; also the doubled tokens.
MASKED = """
    <ir_version: 10, opset_import: ["" : 21]>
    masked (int64[b, s] input_ids, int64[b, s] attention_mask)
        => (int64[b, 1] total, int64[b, s] tokens) {
      axes = Constant <value: tensor = int64[1] {1}> ()
      seen = Mul (input_ids, attention_mask)
      total = ReduceSum <keepdims: int = 1> (seen, axes)
      tokens = Add (input_ids, input_ids)
    }"""
# Runs for as many steps as its input says.
STEPS = """
    <ir_version: 10, opset_import: ["" : 21]>
    steps (int64 n) => (int64 last) {
      yes = Constant <value: tensor = bool {1}> ()
      zero = Constant <value: tensor = int64 {0}> ()
      last = Loop <body: graph = step (int64 i, bool go, int64 before)
          => (bool again, int64 after) {
        again = Identity (go)
        one = Constant <value: tensor = int64 {1}> ()
        after = Add (before, one)
      }> (n, yes, zero)
    }"""
PICK = """
    <ir_version: 10, opset_import: ["" : 21]>
    pick (int64[n] index) => (float[n] y) {
      table = Constant <value: tensor = float[4] {1.0, 2.0, 3.0, 4.0}> ()
      y = Gather (table, index)
    }"""
ENCODER = """
    <ir_version: 10, opset_import: ["" : 21]>
    encoder (int64[b, s] input_ids, int64[b, s] attention_mask)
        => (float[b, s, 3] last_hidden_state) {
      table = Constant <value: tensor = float[6, 3] {1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0,
                                                   1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0}> ()
      axes = Constant <value: tensor = int64[1] {2}> ()
      words = Gather (table, input_ids)
      mask = Unsqueeze (attention_mask, axes)
      weight = Cast <to: int = 1> (mask)
      last_hidden_state = Mul (words, weight)
    }"""


def identity(onnx_type: str) -> str:
    return f"""
    <ir_version: 10, opset_import: ["" : 21]>
    same ({onnx_type}[n, m] x) => ({onnx_type}[n, m] y) {{ y = Identity (x) }}"""


def save(text: str, path: Path) -> Path:
    """Write a model; it appears under its name complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    temporary.rename(path)
    return path
