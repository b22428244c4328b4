"""SmoothQuant: moves the spread of activations between channels into the weights that read them.

See "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models"
(https://arxiv.org/abs/2211.10438). The function of the model does not change: an activation is
divided, and the weights are multiplied, by max|x|^alpha / max|w|^(1 - alpha) of each channel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst, Const, Deferred
from sardonyx.graph.fact import Fact
from sardonyx.quantization.document import GraphDoc, ModelDoc, NodeDoc, attribute
from sardonyx.quantization.document.read import value_of
from sardonyx.quantization.document.session import open_measuring
from sardonyx.quantization.document.types import ValueType, value_types
from sardonyx.quantization.quant_types import FLOATS
from sardonyx.save.types import value_info

_SMALLEST: Final = 1e-5  # of a channel's factor
_AXES_INPUT: Final = 18  # opset since which ReduceMax takes axes as an input
# Ops whose output channels are scaled by constants, with the positions of these inputs.
_FOLDABLE: Final = {"LayerNormalization": (1, 2), "SimplifiedLayerNormalization": (1,), "Mul": (1,)}


@frozen
class _ScaledProduct:
    """A matrix product with a constant, and the axis of the input channels in that."""

    node: NodeDoc
    weight: str
    axis: int


def smooth(
    document: ModelDoc, feeds: Iterable[Mapping[str, Any]], alpha: float = 0.5, folds: bool = True
) -> list[str]:
    """Smooth a document in place; return the names of the Mul nodes that were added.

    With `folds`, the division is folded into the constants of the node before it where possible.
    """
    if not 0 <= alpha <= 1:
        raise InvalidArgument(f"SmoothQuantAlpha must be between 0 and 1, got {alpha}")
    graph, types = document.graph, value_types(document)
    groups = _groups(graph, types)
    largest = _largest_by_channel(document, groups, types, feeds)
    added = []
    for name, readers in groups.items():
        weights = [graph.initializers[reader.weight] for reader in readers]
        factors = _factors(largest[name], weights, readers, alpha)
        for reader, weight in zip(readers, weights, strict=True):
            shape = [-1 if i == reader.axis else 1 for i in range(2)]
            graph.initializers[reader.weight] = _scaled(weight, factors.reshape(shape))
        if not (folds and _fold(graph, name, readers, factors)):
            added.append(_divide(graph, name, readers, factors))
    graph.sort()
    return added


def _groups(graph: GraphDoc, types: Mapping[str, ValueType]) -> dict[str, list[_ScaledProduct]]:
    """Return the products of activations of known rank with constants, by activation."""
    groups: dict[str, list[_ScaledProduct]] = {}
    captured = graph.body_reads()
    for node in graph.nodes:
        if node.op_type not in ("MatMul", "Gemm") or node.domain or node.attr("transA", 0):
            continue
        kind, weight = types.get(node.inputs[0]), graph.constant(node.inputs[1])
        if kind is None or not kind.dims or kind.dtype.onnx not in FLOATS or weight is None:
            continue
        is_alone = _has_one_reader(graph, node.inputs[1], captured)
        if len(weight.shape) == 2 and is_alone:
            axis = 1 if node.attr("transB", 0) else 0
            groups.setdefault(node.inputs[0], []).append(_ScaledProduct(node, node.inputs[1], axis))
    return groups


def _has_one_reader(graph: GraphDoc, name: str, captured: Collection[str]) -> bool:
    """Return whether one node reads a value, and neither a body nor the caller."""
    return len(graph.readers(name)) == 1 and not graph.is_output(name) and name not in captured


def _largest_by_channel(
    document: ModelDoc,
    groups: Iterable[str],
    types: Mapping[str, ValueType],
    feeds: Iterable[Mapping[str, Any]],
) -> dict[str, Array]:
    """Return the largest absolute value of each channel over all samples, by activation."""
    measured = document.copy()
    graph, outputs = measured.graph, {}
    for name in groups:
        kind = types[name]
        size, output = f"{name}_smooth_abs", f"{name}_smooth_max"
        axes = list(range(len(kind.dims or ()) - 1))
        reduce = NodeDoc(
            "ReduceMax", [size], [output], attrs={"keepdims": attribute("keepdims", 0)}
        )
        if not axes:
            reduce = NodeDoc("Identity", [size], [output])
        elif document.opset < _AXES_INPUT:
            reduce.set("axes", axes)
        else:
            graph.initializers[f"{output}_axes"] = ArrayConst(np.array(axes, np.int64))
            reduce.inputs.append(f"{output}_axes")
        graph.add(NodeDoc("Abs", [name], [size]), reduce)
        graph.outputs.append(value_of(value_info(output, Fact(kind.dtype, None), [None]).joined()))
        outputs[name] = output
    session, found = open_measuring(measured), dict[str, Array]()
    for sample in feeds:
        results = session.run(list(outputs.values()), sample) if outputs else []
        for name, array in zip(outputs, results, strict=True):
            found[name] = np.maximum(found[name], array) if name in found else np.array(array)
    if outputs and not found:
        raise ValueError("No data is collected.")
    return found


def _factors(
    largest: Array, weights: list[Const], readers: list[_ScaledProduct], alpha: float
) -> Array:
    """Return the factor of each channel; 1 for a channel that is always 0."""
    sizes = [_largest(w.view(), 1 - r.axis) for w, r in zip(weights, readers, strict=True)]
    weight = np.max(sizes, axis=0).astype(np.float64)
    activation = largest.astype(np.float64)
    is_used = (weight > 0) & (activation > 0)
    safe = np.where(is_used, weight, 1.0)
    factors = np.where(is_used, activation, 1.0) ** alpha / safe ** (1 - alpha)
    clipped: Array = np.maximum(factors, _SMALLEST).astype(largest.dtype)
    return clipped


def _largest(weight: Array, axis: int) -> Array:
    """Return the largest absolute values, in memory for them alone."""
    largest: Array = np.maximum(weight.max(axis), -weight.min(axis))
    return largest


def _scaled(const: Const, factors: Array) -> Const:
    shape, dtype = const.shape, const.dtype
    product = lambda: (const.view() * factors).astype(dtype.np, copy=False)  # noqa: E731
    return Deferred(dtype, shape, product, const.is_small)


def _fold(graph: GraphDoc, name: str, readers: list[_ScaledProduct], factors: Array) -> bool:
    """Divide the constants of the node that makes an activation, if nothing else reads it."""
    captured = graph.body_reads()
    if name in captured or graph.is_output(name):
        return False
    maker = next((node for node in graph.nodes if node.outputs[:1] == [name]), None)
    if maker is None or maker.op_type not in _FOLDABLE:
        return False
    if {id(node) for node in graph.readers(name)} != {id(reader.node) for reader in readers}:
        return False
    names = [maker.input(i) for i in _FOLDABLE[maker.op_type] if maker.input(i)]
    consts: dict[str, Const] = {}
    for constant in names:
        const = graph.constant(constant)
        if const is None or const.shape != factors.shape:
            return False
        if not _has_one_reader(graph, constant, captured):
            return False
        consts[constant] = const
    graph.initializers.update({n: _scaled(c, 1 / factors) for n, c in consts.items()})
    return True


def _divide(graph: GraphDoc, name: str, readers: list[_ScaledProduct], factors: Array) -> str:
    """Add a Mul between an activation and its readers; return its name."""
    label, output, scale = f"{name}_smooth_mul", f"{name}_smooth_output", f"{name}_smooth_scale"
    graph.initializers[scale] = ArrayConst((1 / factors).astype(factors.dtype))
    for reader in readers:
        graph.replace_node_input(reader.node, name, output)
    graph.add(NodeDoc("Mul", [name, scale], [output], label))
    return label
