"""Gives the unchanged nodes of a rewritten model the form that they have in the original one.

A model that went through Sardonyx's graph has the newest form of each node: default attributes are
left out, and Constant nodes are initializers. Programs that fuse further compare nodes and look
them up by name, so what no fusion touched is returned as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto
from onnx.defs import get_schema, has
from onnx.helper import make_attribute
from onnx.numpy_helper import to_array

from sardonyx.load.tolerated import UNCHECKED
from sardonyx.transformers.pruning import set_nodes

_MICROSOFT: Final = "com.microsoft"
_PAST: Final = 4  # the position of the past in Attention
# Defaults that onnxruntime's optimizer writes.
_EXPLICIT: Final = {
    "LayerNormalization": (("epsilon", 1e-5),),
    "SkipLayerNormalization": (("epsilon", 1e-12),),
    "QuickGelu": (("alpha", 1.702),),
}


def restore(result: ModelProto, original: ModelProto) -> None:
    """Replace nodes, Constant nodes and declared types by equal ones of the original model."""
    producers = {node.output[0]: node for node in original.graph.node if node.output}
    _restore_aliases(result, original, producers)
    opset = _opset(result)
    for node in result.graph.node:
        old = producers.get(node.output[0]) if node.output else None
        if old is not None and _is_same(node, old, opset):
            inputs = [*node.input, *old.input[len(node.input) :]]
            node.CopyFrom(old)
            node.input[:] = inputs
        elif _is_fused(node, old):
            _spell_out(node)
    _restore_constants(result, producers)
    _sort_initializers(result, original)
    made = {name for node in result.graph.node for name in node.output}
    del result.graph.value_info[:]
    result.graph.value_info.extend(v for v in original.graph.value_info if v.name in made)
    imported = {entry.domain or "ai.onnx" for entry in result.opset_import}
    for entry in original.opset_import:
        if (entry.domain or "ai.onnx") not in imported:
            result.opset_import.append(entry)


def _is_fused(node: NodeProto, old: NodeProto | None) -> bool:
    if node.op_type == "LayerNormalization":
        return old is None or old.op_type != node.op_type
    return node.domain == _MICROSOFT and (old is None or old.domain != _MICROSOFT)


def _spell_out(node: NodeProto) -> None:
    """Give a fused node the form that tools expect: named defaults, a place for the mask."""
    defaults = [*_EXPLICIT.get(node.op_type, ())]
    if node.op_type == "Attention" and len(node.input) > _PAST and node.input[_PAST]:
        defaults.append(("unidirectional", 0))
    for name, value in defaults:
        if all(attribute.name != name for attribute in node.attribute):
            node.attribute.append(make_attribute(name, value))
    attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
    del node.attribute[:]
    node.attribute.extend(attributes)
    if node.op_type in ("Attention", "MultiHeadAttention") and len(node.input) == 3:
        node.input.append("")


def _opset(model: ModelProto) -> int:
    entries = (e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    return next(entries, 1)


def _restore_aliases(
    result: ModelProto, original: ModelProto, producers: dict[str, NodeProto]
) -> None:
    """Let initializers that were Identity nodes of others be these again."""
    if any(a.HasField("g") for node in result.graph.node for a in node.attribute):
        return  # bodies may read them too
    sources = {tensor.name: tensor for tensor in original.graph.initializer}
    known = {tensor.name for tensor in result.graph.initializer}
    renamed: dict[str, str] = {}
    for tensor in list(result.graph.initializer):
        name, producer = tensor.name, producers.get(tensor.name)
        while producer is not None and producer.op_type == "Identity":
            name, producer = producer.input[0], producers.get(producer.input[0])
        if name == tensor.name or name not in sources or not _holds(tensor, sources[name]):
            continue
        renamed[tensor.name] = name
        result.graph.initializer.remove(tensor)
        if name not in known:
            known.add(name)
            result.graph.initializer.append(sources[name])
    for node in result.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _is_same(node: NodeProto, old: NodeProto, opset: int) -> bool:
    """Whether a node is one of the original model, of which other nodes may make the inputs."""
    if node.op_type != old.op_type or (node.domain or "ai.onnx") != (old.domain or "ai.onnx"):
        return False
    # Inputs that another opset has as attributes differ in number.
    if [not name for name in _names(node.input)] != [not name for name in _names(old.input)]:
        return False
    if _names(node.output) != _names(old.output):
        return False
    attributes = {attribute.name: attribute for attribute in old.attribute}
    given = {attribute.name for attribute in node.attribute}
    return all(_is_equal(a, attributes.get(a.name)) for a in node.attribute) and all(
        _is_default(a, node, opset) for a in old.attribute if a.name not in given
    )


def _is_default(attribute: AttributeProto, node: NodeProto, opset: int) -> bool:
    """Whether a node without an attribute means the same in an opset, as far as ONNX says.

    A pass may have changed the node, and ops of other opsets have other attributes and defaults.
    """
    if node.domain not in ("", "ai.onnx") or not has(node.op_type, opset, ""):
        return True
    declared = get_schema(node.op_type, opset, "").attributes.get(attribute.name)
    if declared is None:
        return ("", node.op_type) in UNCHECKED  # others have no unknown attributes
    if declared.default_value.type == AttributeProto.UNDEFINED:
        return True
    return _is_equal(declared.default_value, attribute)


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


def _restore_constants(result: ModelProto, producers: dict[str, NodeProto]) -> None:
    """Let initializers that were Constant nodes be these nodes."""
    graph = result.graph
    exits = {value.name for value in graph.output}
    nodes = []
    for tensor in list(graph.initializer):
        old = producers.get(tensor.name)
        if old is None or old.op_type != "Constant" or tensor.name in exits:
            continue
        if any(a.name == "value" and _holds(tensor, a.t) for a in old.attribute):
            nodes.append(old)
            graph.initializer.remove(tensor)
    if nodes:
        set_nodes(graph, [*nodes, *graph.node])


def _sort_initializers(result: ModelProto, original: ModelProto) -> None:
    """Put initializers into the order of the original model, new ones last."""
    position = {tensor.name: i for i, tensor in enumerate(original.graph.initializer)}
    tensors = sorted(result.graph.initializer, key=lambda t: position.get(t.name, len(position)))
    del result.graph.initializer[:]
    result.graph.initializer.extend(tensors)
