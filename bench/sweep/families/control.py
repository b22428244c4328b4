"""Control flow: branches, loops and scans over small bodies."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from bench.sweep.case import Case
from bench.sweep.draw import Draw, Family


def _value(name: str, kind: int = TensorProto.FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _if(d: Draw, op: str) -> Case:
    """Branches that read a value of the graph around them."""
    shape = d.tokens()
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(inner, ["x1"], [f"{name}_y"])], name, [], [_value(f"{name}_y")]
        )
        for name, inner in (("then", "Relu"), ("else", "Neg"))
    }
    # The second operand only makes x1 an input; ONNX has no such operand, so it is an outer value.
    return Case(op, [np.array(d.pick((True, False))), d.array(shape)], bodies, outer=1)


def _loop(d: Draw, op: str) -> Case:
    """A recurrence over a vector: h = tanh(h + x), with each h as a scan output."""
    width = {"tiny": 8, "typical": 256, "large": 4096}[d.size]
    trips = d.pick((5, 30, 100))
    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "x3"], ["s"]),
            helper.make_node("Tanh", ["s"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [_value("i", TensorProto.INT64, []), _value("go", TensorProto.BOOL, []),
         _value("h", shape=[1, width])],
        [_value("go_on", TensorProto.BOOL, []), _value("next", shape=[1, width]),
         _value("out", shape=[1, width])],
    )  # fmt: skip
    h, x = d.array((1, width)), d.array((1, width))
    operands = [np.array(trips, np.int64), np.array(True), h, x]
    return Case(op, operands, {"body": body}, frozenset({0, 1}), n_outputs=2, outer=1)


def _scan(d: Draw, op: str) -> Case:
    """A decaying sum over the rows of a matrix."""
    width = {"tiny": 8, "typical": 256, "large": 4096}[d.size]
    rows = d.pick((5, 30, 100))
    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "row"], ["s"]),
            helper.make_node("Tanh", ["s"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [_value("h", shape=[width]), _value("row", shape=[width])],
        [_value("next", shape=[width]), _value("out", shape=[width])],
    )
    attrs = {"body": body, "num_scan_inputs": 1}
    return Case(op, [d.array((width,)), d.array((rows, width))], attrs, n_outputs=2)


FAMILIES: Final[dict[str, Family]] = {"If": _if, "Loop": _loop, "Scan": _scan}
