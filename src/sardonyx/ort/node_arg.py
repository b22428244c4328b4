"""NodeArg and ModelMetadata: a model's inputs, outputs and metadata."""

from __future__ import annotations

from typing import Any

from sardonyx.base.records import frozen
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.load.model import Declared, Model


@frozen
class NodeArg:
    """An input or output: name, type and shape, as onnxruntime spells them."""

    name: str
    type: str
    shape: list[Any]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


def node_arg(declared: Declared, inferred: AnyFact | None = None) -> NodeArg:
    """Return the NodeArg of a declaration; open sizes are filled in from the inferred fact."""
    fact = declared.fact if declared.fact is not None else inferred
    dims = declared.dims
    if isinstance(inferred, Fact) and inferred.shape is not None:
        sizes = [d if isinstance(d, int) else None for d in inferred.shape]
        # A declaration of another rank than inferred stays as the model has it.
        if dims is None or len(dims) != len(sizes):
            dims = dims or tuple(sizes)
        else:
            pairs = zip(dims, sizes, strict=True)
            dims = tuple(d if isinstance(d, int) or s is None else s for d, s in pairs)
    return NodeArg(declared.name, type_name(fact), list(dims or ()))


def type_name(fact: AnyFact | None) -> str:
    """Return a type as onnxruntime spells it: tensor(float), seq(map(string,tensor(float)))."""
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
    """The metadata of a model, as onnxruntime names it."""

    __slots__ = ("custom_metadata_map", "description", "domain", "graph_description", "graph_name",
                 "producer_name", "version")  # fmt: skip

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    def __init__(self, model: Model) -> None:
        self.custom_metadata_map = dict(model.metadata)
        for name in ModelMetadata.__annotations__.keys() - {"custom_metadata_map"}:
            setattr(self, name, getattr(model, name))

    def _facts(self) -> dict[str, Any]:
        """The fields that are not empty."""
        facts = {name: getattr(self, name) for name in sorted(ModelMetadata.__slots__)}
        return {name: value for name, value in facts.items() if value}

    def __repr__(self) -> str:
        from sardonyx.base.notebook import call_text

        return call_text("ModelMetadata", self._facts())

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import panel

        return panel("ModelMetadata", "", self._facts().items())
