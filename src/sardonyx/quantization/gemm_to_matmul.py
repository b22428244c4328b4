"""Replaces Gemm by MatMul and Add, which dynamic quantization has integer ops for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sardonyx.graph.const import Const, Deferred
from sardonyx.quantization.document import GraphDoc, ModelDoc, NodeDoc
from sardonyx.quantization.document.types import ValueType


def replace_gemm_with_matmul(
    document: ModelDoc, types: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """Replace every Gemm without alpha, beta and transA; return the types of the new values."""
    added: dict[str, ValueType] = {}
    _replace([document.graph], types, added)
    return added


def _replace(
    path: list[GraphDoc], types: Mapping[str, ValueType], added: dict[str, ValueType]
) -> None:
    graph = path[-1]
    nodes: list[NodeDoc] = []
    for node in graph.nodes:
        for body in node.bodies():
            _replace([*path, body], types, added)
        nodes.extend(_as_matmul(node, path, types, added) if _is_plain(node) else [node])
    graph.set_nodes(nodes)


def _is_plain(node: NodeDoc) -> bool:
    if node.op_type != "Gemm" or node.domain:
        return False
    factors = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    return factors == (1.0, 1.0) and not node.attr("transA", 0)


def _as_matmul(
    node: NodeDoc,
    path: list[GraphDoc],
    types: Mapping[str, ValueType],
    added: dict[str, ValueType],
) -> list[NodeDoc]:
    weight, output, bias = node.inputs[1], node.outputs[0], node.input(2)
    nodes = []
    if node.attr("transB", 0):
        owner = next((g for g in reversed(path) if weight in g.initializers), None)
        is_output = any(g.is_output(weight) for g in path)
        if owner is not None and not is_output and _n_readers(path[0], weight) == 1:
            owner.initializers[weight] = transposed(owner.initializers[weight])
            owner.inputs = [i for i in owner.inputs if i.name != weight]
        elif owner is not None:
            owner.initializers[f"{weight}_Transposed"] = transposed(owner.initializers[weight])
            weight += "_Transposed"
        else:
            label = _label(node, "Transpose")
            nodes.append(NodeDoc("Transpose", [weight], [f"{weight}_Transposed"], label))
            weight += "_Transposed"
    product = f"{output}_MatMul" if bias else output
    nodes.append(NodeDoc("MatMul", [node.inputs[0], weight], [product], _label(node, "MatMul")))
    if bias:
        nodes.append(NodeDoc("Add", [product, bias], [output], _label(node, "Add")))
        if output in types:
            added[product] = types[output]
    return nodes


def _label(node: NodeDoc, op: str) -> str:
    return f"{node.name}_{op}" if node.name else ""


def _n_readers(graph: GraphDoc, name: str) -> int:
    """Return how many inputs of nodes, in bodies too, have a name."""
    family = graph.family()
    return sum(node.inputs.count(name) for inner in family for node in inner.nodes)


def transposed(const: Const) -> Const:
    """Return the transpose of a matrix, which is made when it is read."""
    shape = const.shape[::-1]
    return Deferred(const.dtype, shape, lambda: np.ascontiguousarray(const.view().T))
