"""A model in another form that must give the same answers, and the parts that forms are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)


@dataclass(frozen=True)
class Settings:
    """How a variant is run."""

    level: str = ""  # of optimization
    threads: int = 1
    parallel: bool = False
    arena: bool = True
    stored: str = ""  # a file that it is loaded from: a name in sessions.STORED
    way: str = "run"  # how it is called: a name in calls.CALLS
    isa: str = ""  # in a process with these kernels
    dims: tuple[tuple[str, int], ...] = ()  # sizes that names are given
    seed: int = 0  # of what a call draws


@dataclass(frozen=True)
class Variant:
    """A model with feeds and the outputs that they must give, those of the model it is made of.

    Of more outputs than `wanted` has, only the first are compared. `exact` asks for the same bits:
    the same kernels run on the same numbers. Else sums may be taken in another order, and types on
    the way may be wider.
    """

    model: ModelProto
    feeds: dict[str, Any]
    wanted: Sequence[Any]  # empty if there are none, since the original is refused
    settings: Settings = field(default_factory=Settings)
    exact: bool = True
    is_random: bool = False  # outputs draw numbers: runs of one session differ
    depth: int = 0  # transforms so far: makes names unique

    def changed(self, model: ModelProto | None = None, **parts: Any) -> Variant:
        """The next variant: not exact unless said so."""
        parts["exact"] = self.exact and parts.get("exact", False)
        made = self.model if model is None else model
        return replace(self, model=made, depth=self.depth + 1, **parts)

    def name(self, stem: str) -> str:
        """A name that no value has."""
        return f"meta{self.depth}_{stem}"

    def copy(self) -> ModelProto:
        """The model, to be changed, with no more outputs than are compared."""
        made = ModelProto()
        made.CopyFrom(self.model)
        del made.graph.output[len(self.wanted) or len(made.graph.output) :]
        return made


Transform = Callable[[Variant, Random], Variant | None]  # None: it does not apply


def opset(model: ModelProto) -> int:
    """The version of ONNX's own ops; one is added if there is none."""
    for imported in model.opset_import:
        if imported.domain in ("", "ai.onnx"):
            return int(imported.version)
    model.opset_import.append(helper.make_opsetid("", 21))
    return 21


def fed_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Inputs without a default."""
    defaults = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in defaults]


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.g
        yield from a.graphs


def family(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from family(body)


def captured(node: NodeProto) -> set[str]:
    """Every name that a node or a node in its bodies reads; some are of the bodies themselves."""
    found = {n for n in node.input if n}
    for body in bodies(node):
        for inner in body.node:
            found |= captured(inner)
        found |= {o.name for o in body.output}
    return found


def tensor_types(declared: TypeProto) -> Iterator[TypeProto.Tensor]:
    """The tensor types in a type."""
    kind = declared.WhichOneof("value")
    if kind == "tensor_type":
        yield declared.tensor_type
    elif kind in ("sequence_type", "optional_type"):
        yield from tensor_types(getattr(declared, kind).elem_type)


def are_tensors(values: Iterable[Any]) -> bool:
    return all(isinstance(v, np.ndarray) for v in values)


def type_of(array: Any, shape: Any = "same") -> TypeProto:
    """The type of a tensor; with no shape if it is None."""
    text = array.dtype.kind in "OUS"
    number = 8 if text else int(helper.np_dtype_to_tensor_dtype(array.dtype))
    return helper.make_tensor_type_proto(number, list(array.shape) if shape == "same" else shape)


def constant(array: Any, name: str) -> Any:
    """An initializer."""
    plain = array.astype(object) if array.dtype.kind in "US" else array
    return numpy_helper.from_array(np.ascontiguousarray(plain).reshape(plain.shape), name)


def rename(graph: GraphProto, names: dict[str, str]) -> None:
    """Gives values other names, in bodies too; what is not in the table keeps its own."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for body in bodies(node):
            rename(body, names)


def own_names(graph: GraphProto) -> list[str]:
    """Return the names that nodes and bodies define, here and in bodies."""
    found = []
    for part in family(graph):
        found += [n for node in part.node for n in node.output if n]
        if part is not graph:
            found += [v.name for v in (*part.input, *part.initializer)]
            found += [s.values.name for s in part.sparse_initializer]
    return [*dict.fromkeys(found)]


def body_of(v: Variant, model: ModelProto) -> tuple[list[NodeProto], list[ValueInfoProto]]:
    """All nodes of a model for a body, and its outputs, each made by a node of it."""
    nodes = list(model.graph.node)
    made = {n for node in nodes for n in node.output}
    outputs = []
    for i, output in enumerate(model.graph.output):
        info = ValueInfoProto()
        info.CopyFrom(output)
        if info.name not in made or info.name in {o.name for o in outputs}:
            info.name = v.name(f"same{i}")
            nodes.append(helper.make_node("Identity", [output.name], [info.name]))
        outputs.append(info)
    return nodes, outputs


def with_nodes(
    model: ModelProto, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]
) -> ModelProto:
    """The model with other nodes and outputs; inputs and constants stay."""
    del model.graph.node[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(outputs)
    return model
