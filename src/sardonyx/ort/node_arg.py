"""What a session tells of its model: inputs, outputs, metadata."""

from __future__ import annotations

from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.load.model import Declared, Model


@frozen
class NodeArg:
    """An input or output: name, type and shape, as onnxruntime shows them."""

    name: str
    type: str
    shape: list[Any]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


def node_arg(declared: Declared, inferred: AnyFact | None = None) -> NodeArg:
    """A NodeArg from a declaration; numbers that it leaves open from what was inferred."""
    fact = declared.fact if declared.fact is not None else inferred
    dims = declared.dims
    if isinstance(inferred, Fact) and inferred.shape is not None:
        found = [d if isinstance(d, int) else None for d in inferred.shape]
        if dims is None or len(dims) != len(found):
            dims = dims or tuple(found)
        else:
            pairs = zip(dims, found, strict=True)
            dims = tuple(d if isinstance(d, int) or f is None else f for d, f in pairs)
    return NodeArg(declared.name, type_name(fact), list(dims or ()))


def type_name(fact: AnyFact | None) -> str:
    """A type as onnxruntime writes it: tensor(float), seq(map(string,tensor(float)))."""
    match fact:
        case Fact():
            return f"tensor({fact.dtype.ort_name})"
        case SparseFact():
            return f"sparse_tensor({fact.dtype.ort_name})"
        case SequenceFact():
            return f"seq({type_name(fact.elem)})"
        case OptionalFact():
            return f"optional({type_name(fact.elem)})"
        case MapFact():
            return f"map({fact.key.ort_name},{type_name(fact.value)})"
    return ""


class ModelMetadata:
    """What the model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    def __init__(self, model: Model) -> None:
        self.producer_name = model.producer_name
        self.graph_name = model.graph_name
        self.domain = model.domain
        self.description = model.description
        self.graph_description = model.graph_description
        self.version = model.version
        self.custom_metadata_map = dict(model.metadata)
