"""Differences from onnxruntime that are known: in which node, when, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper

from tests.random_graphs.compare import is_float


@dataclass(frozen=True)
class Node:
    """What a condition of the table sees: a node, its inputs in one run, and its opset."""

    proto: NodeProto
    inputs: list[Any]
    opset: int

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            a.name: helper.get_attribute_value(a)
            for a in self.proto.attribute
            if a.type != AttributeProto.GRAPH
        }


@dataclass(frozen=True)
class Known:
    """A difference that is not ours: in which op, when, and why."""

    op: str
    why: str
    when: Callable[[Node], bool] = lambda node: True


def has_nan(node: Node) -> bool:
    return any(
        isinstance(x, np.ndarray) and is_float(x.dtype) and bool(np.isnan(x.astype(float)).any())
        for x in node.inputs
    )


def has_nan_to_compare(node: Node) -> bool:
    return has_nan(node) and node.attrs.get("reduction") in (b"max", b"min")


def has_special(node: Node) -> bool:
    """Infinite, NaN, or so large that a power of it is."""
    return any(
        isinstance(x, np.ndarray)
        and is_float(x.dtype)
        and not np.all(np.abs(x.astype(float)) < 1e9)
        for x in node.inputs
    )


def may_overflow(node: Node) -> bool:
    """Whether all numbers together are more than the type, or float64, holds exactly."""
    if not is_whole(node):
        return False
    numbers = np.maximum(np.abs(node.inputs[0].astype(float)), 1)
    with np.errstate(over="ignore"):
        total = np.prod(numbers) if node.proto.op_type == "ReduceProd" else np.sum(numbers**2)
    return bool(total > min(np.iinfo(node.inputs[0].dtype).max, 2**52))


def is_beyond_double(node: Node) -> bool:
    return is_whole(node) and bool(np.any(np.abs(node.inputs[0].astype(float)) > 2**52))


def has_broken_indices(node: Node) -> bool:
    x = node.inputs[0]
    return x.dtype.kind == "f" and bool(np.any(x != np.round(x)))


def has_negative_zero(node: Node) -> bool:
    x = node.inputs[0]
    if node.attrs["to"] != onnx.TensorProto.BOOL or not str(x.dtype).startswith("float8"):
        return False
    return bool(np.any((x.astype(np.float32) == 0) & np.signbit(x.astype(np.float32))))


def has_negative_shares(node: Node) -> bool:
    return len(node.inputs) > 14 and bool(np.any(node.inputs[14] < 0))


def is_text(node: Node) -> bool:
    return bool(node.inputs[0].dtype.kind == "O")


def is_whole(node: Node) -> bool:
    return node.inputs[0].dtype.kind in "iu"


def is_sparse_same(node: Node) -> bool:
    attrs = node.attrs
    pairs = zip(node.inputs[1].shape[2:], attrs.get("strides", ()), strict=False)
    return attrs.get("auto_pad", b"").startswith(b"SAME") and any(k < s for k, s in pairs)


def has_large_exponents(node: Node) -> bool:
    exponents = node.inputs[1]
    return exponents.dtype.kind in "iu" and bool(np.any(np.abs(exponents) > 31))


def has_uneven_corners(node: Node) -> bool:
    attrs, x = node.attrs, node.inputs[0]
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if attrs.get("coordinate_transformation_mode") != b"align_corners" or scales is None:
        return False
    sizes = np.asarray(x.shape) * scales.astype(np.float64) if scales.size else np.zeros(1)
    return bool(np.any(sizes != np.round(sizes)))


def interpolates_integers(node: Node) -> bool:
    return is_whole(node) and node.attrs.get("mode", b"nearest") != b"nearest"


def has_flat_channel(node: Node) -> bool:
    x = node.inputs[0]
    return x.size > 0 and bool(np.any(np.ptp(x.reshape(*x.shape[:2], -1), axis=2) < 1e-4))


def is_empty(node: Node) -> bool:
    return bool(node.inputs[0].size == 0)


def is_small_chance(node: Node) -> bool:
    """Whether a result is so small that an error of 1e-7 counts."""
    return bool(np.any(node.inputs[0].astype(float) < -5))


def is_double(node: Node) -> bool:
    return bool(node.inputs[0].dtype == np.float64)


def vanishes(node: Node) -> bool:
    x = node.inputs[0]
    if not is_float(x.dtype):
        return False
    total = np.sum(np.log10(np.maximum(np.abs(x.astype(float)), 1e-300)))
    return bool(total < (-6 if x.dtype.itemsize < 4 else -7))


def resizes_integers(node: Node) -> bool:
    bodies = [a.g for a in node.proto.attribute if a.type == AttributeProto.GRAPH]
    return any(n.op_type == "Resize" for body in bodies for n in body.node)


NAN = "compares with NaN, so that what comes out depends on where it stands"
_COMPARING = (
    "ArgMin ArgMax Hardmax ReduceMax ReduceMin MaxPool GlobalMaxPool TopK Max Min "
    "Clip Relu LeakyRelu PRelu ThresholdedRelu Sign"
)
KNOWN: tuple[Known, ...] = (
    *(Known(op, NAN, has_nan) for op in _COMPARING.split()),
    *(Known(op, NAN, has_nan_to_compare) for op in ("ScatterElements", "ScatterND")),
    *(Known(op, "bounds sums, so that NaN is lost", has_nan) for op in ("RNN", "GRU", "LSTM")),
    Known("DynamicQuantizeLinear", "an infinite range has no scale", has_special),
    Known("QuantizeLinear", "NaN and infinities have no integer", has_special),
    Known("GridSample", "leaves out points that have no weight, even if they are NaN", has_special),
    Known("Resize", "counts points that have no weight, even if they are infinite", has_special),
    *(
        Known(op, "adds what is infinite or huge in an order of its own", has_special)
        for op in (
            "LayerNormalization", "RMSNormalization", "InstanceNormalization", "LpNormalization",
            "GroupNormalization", "MeanVarianceNormalization", "CumSum", "GlobalAveragePool",
            "AveragePool", "ReduceLogSumExp", "Softmax", "LogSoftmax", "SkipLayerNormalization",
            "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization",
        )
    ),
    Known("LRN", "takes what leaves the window from a running sum", has_special),
    Known("ReduceProd", "multiplies in an order of its own, which may overflow", has_special),
    Known("ReduceProd", "multiplies halves and small numbers in an order of its own", vanishes),
    Known("ReduceMean", "of nothing is 0", is_empty),
    Known("Sigmoid", "is off by about 1e-7, whatever the result", is_small_chance),
    Known("GroupNormalization", "computes float64 in float32", is_double),
    Known("CropAndResize", "decides in float32 what is outside"),
    Known("DynamicQuantizeLSTM", "rounds at other steps, and one rounding flips others"),
    Known("If", "holds a Resize, of integers or with corners", resizes_integers),
    *(
        Known(op, "adds integer powers or cuts the exponentials, not the logarithm", is_whole)
        for op in ("ReduceLogSum", "ReduceLogSumExp")
    ),
    Known("Cast", "takes the negative zero of a type of 8 bits for true", has_negative_zero),
    Known("QMoE", "does not divide by a sum of shares that is negative", has_negative_shares),
    Known("Gather", "copies only the first string of a row", is_text),
    Known("NonZero", "takes a scalar for a list of one", lambda n: n.inputs[0].ndim == 0),
    Known("Pow", "integers beyond the range of the type are undefined", has_large_exponents),
    *(
        Known(op, "integers beyond the range of the type are undefined", may_overflow)
        for op in ("ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2")
    ),
    Known("ConvTranspose", "makes less of a kernel smaller than its stride", is_sparse_same),
    Known("ReduceSum", "adds integers in float64", is_beyond_double),
    Known(
        "MeanVarianceNormalization", "divides by a deviation of zero, without the epsilon",
        has_flat_channel,
    ),
    Known("Resize", "aligns the corners of a whole number of pixels", has_uneven_corners),
    Known("Resize", "cuts to integers what it computed in float32", interpolates_integers),
    Known("OneHot", "has no place for an index that is not whole", has_broken_indices),
    Known("OneHot", "counts from the end before opset 11 too", lambda n: n.opset < 11),
)  # fmt: skip
