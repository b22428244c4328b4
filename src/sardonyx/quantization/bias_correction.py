"""Bias correction: biases compensate the mean error of quantized weights.

Weights with a rounding error d shift the mean of an output by d * E[x]. The shift is subtracted
from the bias of the layer, as in "Data-Free Quantization Through Weight Equalization and
Bias Correction" (https://arxiv.org/abs/1906.04721).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.fact import Fact
from sardonyx.quantization.document import GraphDoc, ModelDoc, NodeDoc, attribute
from sardonyx.quantization.document.read import value_of
from sardonyx.quantization.document.session import open_measuring
from sardonyx.quantization.document.types import value_types
from sardonyx.quantization.quant_types import FLOATS
from sardonyx.quantization.quantized_weight import release
from sardonyx.save.types import value_info

_AXES_INPUT: Final = 18  # opset since which ReduceMean takes axes as an input


def input_means(
    document: ModelDoc, names: Collection[str], feeds: Iterable[Mapping[str, Any]]
) -> dict[str, Array]:
    """Return the mean per channel of some activations over all samples.

    Channels are along axis 1 of activations that a Conv reads, else along the last axis.
    """
    measured, types = document.copy(), value_types(document)
    graph, outputs = measured.graph, {}
    for name in sorted(names):
        kind = types.get(name)
        if kind is None or not kind.dims or len(kind.dims) < 2 or kind.dtype.onnx not in FLOATS:
            continue
        rank = len(kind.dims)
        is_image = any(n.op_type in ("Conv", "ConvTranspose") for n in graph.readers(name))
        axes = [i for i in range(rank) if i != (1 if is_image else rank - 1)]
        output = f"{name}_input_mean"
        node = NodeDoc("ReduceMean", [name], [output], attrs={"keepdims": attribute("keepdims", 0)})
        if document.opset < _AXES_INPUT:
            node.set("axes", axes)
        else:
            graph.initializers[f"{output}_axes"] = ArrayConst(np.array(axes, np.int64))
            node.inputs.append(f"{output}_axes")
        graph.add(node)
        graph.outputs.append(value_of(value_info(output, Fact(kind.dtype, None), [None]).joined()))
        outputs[name] = output
    return _averages(open_measuring(measured), outputs, feeds) if outputs else {}


def _averages(
    session: Any, outputs: Mapping[str, str], feeds: Iterable[Mapping[str, Any]]
) -> dict[str, Array]:
    sums: dict[str, Array] = {}
    count = 0
    for feed in feeds:
        count += 1
        results = session.run(list(outputs.values()), dict(feed))
        for name, array in zip(outputs, results, strict=True):
            wide = np.asarray(array, np.float64)
            sums[name] = sums[name] + wide if name in sums else wide
    return {name: total / count for name, total in sums.items()}


def corrected_biases(
    document: ModelDoc, quantized: ModelDoc, means: Mapping[str, Array], layers: Collection[str]
) -> None:
    """Correct the biases of some layers of a document for the weights of its quantized form.

    Layers without a bias, or whose bias has other readers, are unchanged.
    """
    graph = document.graph
    for node in graph.nodes:
        if node.name not in layers or node.inputs[0] not in means:
            continue
        bias, weight = _bias(graph, node), graph.constant(node.inputs[1])
        rounded = None if weight is None else _rounded(quantized.graph, node.inputs[1])
        if bias is None or weight is None or rounded is None:
            continue
        shift = _shift(node, rounded - weight.view().astype(np.float32), means[node.inputs[0]])
        release(weight)
        old = graph.initializers[bias].read()
        if shift is not None and shift.size == old.size:
            new = (old - shift.reshape(old.shape)).astype(old.dtype)
            graph.initializers[bias] = ArrayConst(new)


def _bias(graph: GraphDoc, node: NodeDoc) -> str | None:
    """Return the constant that is added to a node's output, and to nothing else."""
    if node.op_type in ("Conv", "Gemm"):
        name = node.input(2)
        is_plain = float(node.attr("beta", 1.0)) == 1 and float(node.attr("alpha", 1.0)) == 1
        return name if is_plain and _is_own(graph, name) else None
    readers = graph.readers(node.outputs[0])
    if len(readers) != 1 or readers[0].op_type != "Add" or graph.is_output(node.outputs[0]):
        return None
    others = [n for n in readers[0].inputs if n != node.outputs[0]]
    return others[0] if len(others) == 1 and _is_own(graph, others[0]) else None


def _is_own(graph: GraphDoc, name: str) -> bool:
    return bool(name) and graph.constant(name) is not None and len(graph.readers(name)) == 1


def _rounded(graph: GraphDoc, name: str) -> Array | None:
    """Return a weight as the quantized model uses it; None if it is not quantized."""
    codes = graph.constant(f"{name}_quantized")
    if codes is None:
        return None
    maker = next(n for n in graph.nodes if n.op_type == "DequantizeLinear"
                 and n.inputs[0] == f"{name}_quantized")  # fmt: skip
    scale, zero = (graph.initializers[n].read().astype(np.float32) for n in maker.inputs[1:3])
    values = codes.read().astype(np.float32)
    if scale.ndim:
        axis = int(maker.attr("axis", 1)) % values.ndim
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    result: Array = (values - zero) * scale
    return result


def _shift(node: NodeDoc, error: Array, means: Array) -> Array | None:
    """Return the mean shift of each output channel that an error of the weight causes."""
    if node.op_type == "Conv":
        groups = int(node.attr("group", 1))
        per_map = error.sum(tuple(range(2, error.ndim)))  # [maps, channels of a group]
        maps, depth = per_map.shape
        by_group = means.reshape(groups, 1, depth)
        return np.asarray((per_map.reshape(groups, maps // groups, depth) * by_group).sum(-1))
    if error.ndim != 2 or node.attr("transA", 0):
        return None
    if node.attr("transB", 0):
        error = error.T
    return np.asarray(means @ error) if error.shape[0] == means.size else None
