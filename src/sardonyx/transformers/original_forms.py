"""Gives the unchanged nodes of a rewritten model the form that they have in the original one.

A model that went through Sardonyx's graph has the newest form of each node: default attributes are
left out, and Constant nodes are initializers. Programs that fuse further compare nodes and look
them up by name, so what no fusion touched is returned as it was.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto
from onnx.numpy_helper import to_array


def restore(result: ModelProto, original: ModelProto) -> None:
    """Replace nodes, Constant nodes and declared types by equal ones of the original model."""
    makers = {node.output[0]: node for node in original.graph.node if node.output}
    for node in result.graph.node:
        old = makers.get(node.output[0]) if node.output else None
        if old is not None and _is_same(node, old):
            node.CopyFrom(old)
    _restore_constants(result, makers)
    _sort_initializers(result, original)
    made = {name for node in result.graph.node for name in node.output}
    del result.graph.value_info[:]
    result.graph.value_info.extend(v for v in original.graph.value_info if v.name in made)
    imported = {entry.domain or "ai.onnx" for entry in result.opset_import}
    for entry in original.opset_import:
        if (entry.domain or "ai.onnx") not in imported:
            result.opset_import.append(entry)


def _is_same(node: NodeProto, old: NodeProto) -> bool:
    """Whether a node computes what a node of the original model does, from the same values."""
    if node.op_type != old.op_type or (node.domain or "ai.onnx") != (old.domain or "ai.onnx"):
        return False
    if _names(node.input) != _names(old.input) or _names(node.output) != _names(old.output):
        return False
    # Attributes that the newer form leaves out have their defaults.
    attributes = {attribute.name: attribute for attribute in old.attribute}
    return all(_is_equal(a, attributes.get(a.name)) for a in node.attribute)


def _names(names: Iterable[str]) -> list[str]:
    """Return names without absent ones at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _is_equal(attribute: AttributeProto, old: AttributeProto | None) -> bool:
    if old is None or attribute.type != old.type:
        return False
    if attribute.type == AttributeProto.TENSOR:
        return _holds(attribute.t, old.t)
    fields = ("f", "i", "s", "floats", "ints", "strings", "g", "graphs")
    return all(getattr(attribute, field) == getattr(old, field) for field in fields)


def _holds(tensor: TensorProto, old: TensorProto) -> bool:
    """Whether two tensors have equal types, shapes and bytes."""
    if tensor.data_type != old.data_type or list(tensor.dims) != list(old.dims):
        return False
    return bool(to_array(tensor).tobytes() == to_array(old).tobytes())


def _restore_constants(result: ModelProto, makers: dict[str, NodeProto]) -> None:
    """Let initializers that were Constant nodes be these nodes."""
    graph = result.graph
    exits = {value.name for value in graph.output}
    nodes = []
    for tensor in list(graph.initializer):
        old = makers.get(tensor.name)
        if old is None or old.op_type != "Constant" or tensor.name in exits:
            continue
        if any(a.name == "value" and _holds(tensor, a.t) for a in old.attribute):
            nodes.append(old)
            graph.initializer.remove(tensor)
    if nodes:
        others = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *others])


def _sort_initializers(result: ModelProto, original: ModelProto) -> None:
    """Put initializers into the order of the original model, new ones last."""
    position = {tensor.name: i for i, tensor in enumerate(original.graph.initializer)}
    tensors = sorted(result.graph.initializer, key=lambda t: position.get(t.name, len(position)))
    del result.graph.initializer[:]
    result.graph.initializer.extend(tensors)
