"""One node by its numpy reference, for any sizes: what a random graph is made and judged by."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto, helper

from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.memory import plan
from sardonyx.place import place
from sardonyx.program.emit import emit
from sardonyx.program.program import Run
from sardonyx.program.run import bind, execute
from sardonyx.providers.reference import Reference
from sardonyx.schedule import schedule
from tests.random_graphs.value import Value

IR = 11


def reads(node: NodeProto) -> list[str]:
    """The values that a node needs, those that its bodies capture included."""
    return [*dict.fromkeys([*(n for n in node.input if n), *_captured(node)])]


def _captured(node: NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from captured(attribute.g)


def domains(nodes: Iterable[NodeProto]) -> set[str]:
    """The domains of nodes, those in bodies included."""
    found = set()
    for node in nodes:
        found.add(node.domain)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= domains(attribute.g.node)
    return found


def captured(body: GraphProto) -> list[str]:
    """Return the outer values that a body reads."""
    own = {v.name for v in body.input} | {t.name for t in body.initializer}
    found = []
    for node in body.node:
        found += [n for n in reads(node) if n not in own]
        own |= set(node.output)
    return found + [o.name for o in body.output if o.name not in own]


def model_of(nodes: Sequence[NodeProto], opsets: dict[str, int], **parts: Any) -> Any:
    """A model of nodes; parts are inputs, outputs, initializers and functions."""
    graph = helper.make_graph(
        list(nodes), "g", parts["inputs"], parts["outputs"], parts.get("initializers", [])
    )
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    functions = parts.get("functions", [])
    return helper.make_model(graph, opset_imports=imports, ir_version=IR, functions=functions)


class Eager:
    """A node compiled once, with only the ranks of its inputs known, and run on any values."""

    def __init__(self, node: NodeProto, values: dict[str, Value], opsets: dict[str, int]) -> None:
        self.node = node
        self.reads = reads(node)
        outputs = [ValueInfoProto(name=n) for n in node.output if n]
        inputs = [helper.make_value_info(n, _open(values[n].type)) for n in self.reads]
        model = model_of([node], opsets, inputs=inputs, outputs=outputs)
        graph = load(model.SerializeToString()).graph
        infer(graph, assumes=False)
        self.types = [_type_proto(v.fact) for v in graph.outputs]
        placement = place(graph, [Reference()])
        order = schedule(placement)
        self._program = emit(placement, order, plan(order))

    def __call__(self, values: dict[str, Any]) -> list[Any]:
        """The values of the node's outputs that have names."""
        feeds = {n: values[n] for n in self.reads}
        program = self._program
        frame = program.frame()
        for spec in program.inputs:
            frame[spec.slot] = feeds[spec.name]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return execute(program, Run(bind(program, feeds), frame, lambda: None))


def _open(type_: TypeProto) -> TypeProto:
    """The same type with every size left open."""
    found = TypeProto()
    found.CopyFrom(type_)
    if found.HasField("tensor_type") and found.tensor_type.HasField("shape"):
        for dim in found.tensor_type.shape.dim:
            dim.Clear()
    return found


def _type_proto(fact: AnyFact | None) -> TypeProto:
    match fact:
        case Fact():
            rank = None if fact.shape is None else [None] * len(fact.shape)
            return helper.make_tensor_type_proto(fact.dtype.onnx, rank)
        case SequenceFact(elem):
            return helper.make_sequence_type_proto(_type_proto(elem))
        case OptionalFact(elem):
            return helper.make_optional_type_proto(_type_proto(elem))
        case MapFact():
            return helper.make_map_type_proto(fact.key.onnx, _type_proto(fact.value))
    return TypeProto()
