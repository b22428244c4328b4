"""Element types and shapes of all values of a document, by shape inference on a graph of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx.base.records import frozen, replace
from sardonyx.errors import UNEXPECTED_ERRORS, SardonyxError
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.infer import infer
from sardonyx.graph.op import ONNX
from sardonyx.load import LoadOptions, load
from sardonyx.load.upgrade import find
from sardonyx.ops import lookup
from sardonyx.quantization.document.model import GraphDoc, ModelDoc, NodeDoc, ValueDoc
from sardonyx.quantization.document.read import value_of
from sardonyx.quantization.document.write import document_bytes
from sardonyx.save.types import value_info

_KEPT: Final = 1024  # elements; shape inference needs the elements of no larger tensor


@frozen
class ValueType:
    """The element type of a tensor, and its dims (a size, or None) if the rank is known."""

    dtype: DType
    dims: tuple[int | None, ...] | None


def value_types(document: ModelDoc, standard_only: bool = False) -> dict[str, ValueType]:
    """Return the types of all tensors of the main graph that are not initializers, by name.

    Values whose type cannot be inferred, as those after an unknown op, have the type that the
    document declares, or are not among them. With `standard_only`, only ops of ONNX are known.
    """
    graph = document.graph
    found = {v.name: t for v in _declared(graph) if (t := _type_of(v)) is not None}
    try:
        for name, fact in _facts(_skeleton(document, standard_only)).items():
            dims = fact.shape
            sizes = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
            if name not in graph.initializers:
                found[name] = ValueType(fact.dtype, sizes)
    except (SardonyxError, *UNEXPECTED_ERRORS):
        return found  # the session that runs the model reports what is wrong with it
    return found


def with_value_infos(document: ModelDoc) -> None:
    """Declare the inferred types of all intermediate values in the document."""
    graph = document.graph
    names = {v.name for v in (*graph.inputs, *graph.outputs)}
    declared = {v.name: v for v in graph.values}
    made = {name for node in graph.nodes for name in node.outputs if name}
    for name, kind in value_types(document).items():
        if name in made and name not in names:
            raw = value_info(name, Fact(kind.dtype, None), kind.dims).joined()
            declared[name] = value_of(raw)
    graph.values = list(declared.values())


def _declared(graph: GraphDoc) -> Iterable[ValueDoc]:
    return (*graph.values, *graph.outputs, *graph.inputs)


def _type_of(value: ValueDoc) -> ValueType | None:
    if value.dtype is None:
        return None
    dims = value.shape
    sizes = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
    return ValueType(value.dtype, sizes)


def _facts(skeleton: ModelDoc) -> dict[str, Fact]:
    # Sizes are not needed, but ranks and types after branches are: no shapes are guessed.
    folder = skeleton.folder
    model = load(document_bytes(skeleton), LoadOptions(folder=folder))
    infer(model.graph)
    values = model.graph.all_values()
    facts = {v.name: v.fact for v in values if v.name and isinstance(v.fact, Fact)}
    for declared, value in zip(model.outputs, model.graph.outputs, strict=True):
        if isinstance(value.fact, Fact):
            facts[declared.name] = value.fact
    return facts


def _skeleton(document: ModelDoc, standard_only: bool) -> ModelDoc:
    """Return the nodes whose types can be inferred, with large initializers as inputs."""
    graph = document.graph
    small = {n: c for n, c in graph.initializers.items() if c.count <= _KEPT}
    large = {n: c for n, c in graph.initializers.items() if n not in small}
    kept = GraphDoc(graph.name or "graph", initializers=small, values=[])
    kept.inputs = [v for v in graph.inputs if v.name not in large]
    kept.inputs += [_as_input(name, const) for name, const in large.items()]
    available = {v.name for v in kept.inputs} | small.keys()
    for node in graph.nodes:
        reads = [name for name in node.inputs if name]
        for body in node.bodies():
            reads.extend(body.captures())
        if available.issuperset(reads) and _is_known(document, node, standard_only):
            kept.nodes.append(node)
            available.update(node.outputs)
    kept.outputs = [v for v in graph.outputs if v.name in available]
    return replace(document, graph=kept)


def _as_input(name: str, const: Const) -> ValueDoc:
    return value_of(value_info(name, Fact(const.dtype, const.shape)).joined())


def _is_known(document: ModelDoc, node: NodeDoc, standard_only: bool) -> bool:
    """Return whether the types of a node's outputs can be inferred, those of its bodies too."""
    if standard_only and node.domain != ONNX:
        return False
    version = document.opsets.get(node.domain)
    if (node.domain, node.op_type) not in document.functions:
        if version is None:
            return False
        if (node.domain, node.op_type) != (ONNX, "Constant") and (
            lookup(node.domain, node.op_type) is None
            and find(node.domain, node.op_type, version) is None
        ):
            return False
    inner = (n for body in node.bodies() for n in body.nodes)
    return all(_is_known(document, n, standard_only) for n in inner)
