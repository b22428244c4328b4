"""Takes nodes out of a model that Sardonyx cannot infer, and puts them back.

The optimizer is also for models that another runtime runs: with ops of its own, or with nodes that
contradict ONNX. What such a node makes is an input of unknown shape while the rest is fused.
"""

from __future__ import annotations

import logging
from typing import Final

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from sardonyx.base.records import frozen
from sardonyx.compile import load_model
from sardonyx.convert.inference import loaded
from sardonyx.errors import SardonyxError
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.infer import infer
from sardonyx.load import LoadOptions
from sardonyx.load.model import Model
from sardonyx.load.source import read_model
from sardonyx.ops import lookup
from sardonyx.transformers.pruning import reads, set_nodes, sort_graph

logger = logging.getLogger(__name__)
_MAX_NODES: Final = 64  # nodes that contradict ONNX; each is found by inferring the model once more


@frozen
class Partial:
    """A model without the nodes that are set aside."""

    model: Model
    nodes: tuple[NodeProto, ...]

    def put_back(self, result: ModelProto, original: ModelProto) -> None:
        """Add the nodes to the model that was made of this one."""
        if not self.nodes:
            return
        graph = result.graph
        graph.node.extend(self.nodes)
        made = {name for node in self.nodes for name in node.output}
        kept = [value for value in graph.input if value.name not in made]
        del graph.input[:]
        graph.input.extend(kept)
        del graph.output[:]
        graph.output.extend(original.graph.output)
        constants = {tensor.name for tensor in graph.initializer}
        read = {name for node in self.nodes for name in reads(node)}
        graph.initializer.extend(
            t for t in original.graph.initializer if t.name in read - constants
        )
        sort_graph(graph)


def partial(proto: ModelProto) -> Partial:
    """Return the part of a model that can be inferred; raises if that leaves nothing to fuse."""
    known = {(f.domain, f.name) for f in proto.functions}
    nodes = [n for n in proto.graph.node if (n.domain, n.op_type) not in known and _is_unknown(n)]
    types = _declared_types(proto.graph)
    nodes += _type_unknown_values(proto.graph, nodes, types)
    for _ in range(_MAX_NODES):
        rest = _without(proto, nodes, types) if nodes else proto
        source = read_model(rest)
        try:
            return Partial(loaded(source, LoadOptions(), {}), tuple(nodes))
        except SardonyxError as error:
            failed = _failed(load_model(source))
            found = _proto_of(proto, failed)
            if failed is None or found is None or found in nodes:
                raise
            logger.warning("%s is not fused: %s", found.name or found.op_type, error.what)
            nodes.append(found)
            types |= dict.fromkeys(found.output, _type_of(failed))
    raise SardonyxError(f"more than {_MAX_NODES} nodes contradict ONNX")


def _declared_types(graph: GraphProto) -> dict[str, int]:
    """Return the element types of the values that have a declared one."""
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    return {**types, **{t.name: t.data_type for t in graph.initializer}}


def _type_unknown_values(
    graph: GraphProto, nodes: list[NodeProto], types: dict[str, int]
) -> list[NodeProto]:
    """Add the types that unknown nodes probably return: those of an input.

    Return the Casts of such values, which are needed if another type is returned.
    """
    guessed = set()
    for node in nodes:
        known = (types[name] for name in node.input if types.get(name))
        dtype = next(known, TensorProto.FLOAT)
        for name in node.output:
            if not types.get(name):
                guessed.add(name)
                types[name] = dtype
    casts = [n for n in graph.node if n.op_type == "Cast" and n.input[0] in guessed]
    for cast in casts:
        types[cast.output[0]] = next(a.i for a in cast.attribute if a.name == "to")
    return casts


def _is_unknown(node: NodeProto) -> bool:
    """Whether neither Sardonyx nor ONNX has the op; older ops of ONNX are upgraded on load."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return lookup(domain, node.op_type) is None and not onnx.defs.has(node.op_type, domain)


def _failed(model: Model) -> Node | None:
    """Return the node at which inference fails."""
    try:
        infer(model.graph)
    except SardonyxError:
        return model.graph.scope.node
    return None


def _proto_of(proto: ModelProto, node: Node | None) -> NodeProto | None:
    names = set() if node is None else {value.name for value in node.outputs if value.name}
    return next((n for n in proto.graph.node if not names.isdisjoint(n.output)), None)


def _type_of(node: Node) -> int:
    """Return the element type that the outputs of a node probably have: that of an input."""
    facts = [None if value is None else value.fact for value in node.inputs]
    return next((f.dtype.onnx for f in facts if isinstance(f, Fact)), TensorProto.FLOAT)


def _without(proto: ModelProto, nodes: list[NodeProto], types: dict[str, int]) -> ModelProto:
    """Return a model whose inputs are also what these nodes make, its outputs what they read."""
    rest = ModelProto()
    rest.CopyFrom(proto)
    graph = rest.graph
    kept = [node for node in graph.node if node not in nodes]
    made = {name for node in nodes for name in node.output if name}
    fed = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    ends = {value.name for value in graph.output} - made
    read = {name for node in nodes for name in reads(node)} - made - fed - ends
    read &= {name for node in kept for name in node.output}  # not what is inside their bodies
    set_nodes(graph, kept)
    outputs = [value for value in graph.output if value.name in ends]
    del graph.output[:]
    graph.output.extend(outputs)
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(read))
    for name in sorted(made):
        dtype = types.get(name) or TensorProto.FLOAT
        graph.input.append(helper.make_tensor_value_info(name, dtype, None))
    return rest
