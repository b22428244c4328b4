"""Symbolic shape inference: annotates the values of a model with types and symbolic shapes.

python -m onnxruntime.tools.symbolic_shape_infer --input model.onnx --output annotated.onnx
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import onnx

from sardonyx.errors import SardonyxError
from sardonyx.graph.dtype import ALL, by_name
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.infer import infer
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.load import NEWEST, LoadOptions, load
from sardonyx.load.build import NameScope
from sardonyx.load.upgrade import find
from sardonyx.ops import lookup
from sardonyx.save.types import value_info
from sardonyx.tools.dim_names import DimNames
from sardonyx.tools.proto_files import save_proto

logger = logging.getLogger(__name__)

_TYPES: Final = frozenset(dtype.name for dtype in ALL)
_OLDEST: Final = 7  # opset
_SMALL: Final = 1 << 10  # bytes of initializers whose values may be shapes


class IncompleteInference(Exception):
    """The shape of a value is not known."""


class SymbolicShapeInference:
    """Infers shapes in terms of the symbolic dims of a model's inputs."""

    def __init__(
        self,
        int_max: int = 2**31 - 1,
        auto_merge: bool = False,
        guess_output_rank: bool = False,
        verbose: int = 0,
        prefix: str = "",
    ) -> None:
        """`auto_merge`: dims that must broadcast are equal, which is always assumed here.

        The other arguments are accepted for compatibility: integers are exact, and ranks inferred.
        """
        self._names = DimNames(prefix)

    @staticmethod
    def infer_shapes(
        in_mp: onnx.ModelProto,
        int_max: int = 2**31 - 1,
        auto_merge: bool = False,
        guess_output_rank: bool = False,
        verbose: int = 0,
    ) -> onnx.ModelProto | None:
        """Return a copy of a model with a value_info for every value, and complete outputs.

        Raises if the rank of a value cannot be inferred. None for opsets below 7.
        """
        opset = get_opset(in_mp)
        if not opset or opset < _OLDEST:
            logger.warning("models of opset %d or newer are supported, not %s", _OLDEST, opset)
            return None
        inference = SymbolicShapeInference(int_max, auto_merge, guess_output_rank, verbose)
        return inference.annotated(in_mp)

    def annotated(
        self, model: onnx.ModelProto, sizes: Mapping[str, int] | None = None
    ) -> onnx.ModelProto:
        """Return an annotated copy of a model, with some symbolic dims fixed for inference."""
        values, graph = inferred(model, sizes or {})
        out, unknown = self._annotated(model, values, graph)
        if unknown:
            shown = ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
            raise IncompleteInference(
                f"Incomplete symbolic shape inference: the rank of {shown} is not known"
            )
        return out

    def _annotated(
        self, model: onnx.ModelProto, values: Mapping[str, Value], graph: Graph
    ) -> tuple[onnx.ModelProto, list[str]]:
        out = onnx.ModelProto()
        out.CopyFrom(model)
        self._names.declare(model.graph, graph)
        return out, self._annotate(out.graph, values)

    def _annotate(self, graph: onnx.GraphProto, values: Mapping[str, Value]) -> list[str]:
        """Write what is known of a graph's values; return the names of those without a rank."""
        infos, unknown = {}, []
        for node in graph.node:
            for name in filter(None, node.output):
                value = values.get(name)
                if value is None:
                    continue
                if not _has_rank(value.fact):
                    unknown.append(name)
                infos[name] = self._value_info(name, value.fact)
            self._annotate_bodies(node, values)
        for output in graph.output:
            if output.name in infos:
                output.CopyFrom(infos[output.name])
        kept = [info for info in graph.value_info if info.name not in infos]
        del graph.value_info[:]
        graph.value_info.extend([*kept, *infos.values()])
        return unknown

    def _annotate_bodies(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> None:
        made = (values[n].node for n in node.output if n in values)
        owner = next((m for m in made if m is not None and m.op.has_bodies), None)
        bodies = {} if owner is None else dict(owner.subgraphs)
        for attribute in node.attribute:
            if attribute.HasField("g") and attribute.name in bodies:
                self._annotate(attribute.g, _values_of(bodies[attribute.name]))

    def _value_info(self, name: str, fact: AnyFact | None) -> onnx.ValueInfoProto:
        inner = fact
        while isinstance(inner, (SequenceFact, OptionalFact)):
            inner = inner.elem
        shape = inner.shape if isinstance(inner, Fact) else None
        dims = None if shape is None else [self._names.shown(size) for size in shape]
        info = onnx.ValueInfoProto()
        info.ParseFromString(bytes(value_info(name, fact, dims).joined()))
        return info


def inferred_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an annotated copy of a model; values of unknown rank have none."""
    values, graph = inferred(model, {})
    return SymbolicShapeInference()._annotated(model, values, graph)[0]


def inferred(model: onnx.ModelProto, sizes: Mapping[str, int]) -> tuple[dict[str, Value], Graph]:
    """Return the values of a model's main graph by name, inferred, and the graph."""
    names = NameScope()
    small = _without_weights(model)
    try:
        loaded = load(small.SerializeToString(), LoadOptions(dims_by_name=dict(sizes)), names)
        try:
            infer(loaded.graph)
        except SardonyxError:
            names = NameScope()
            split = LoadOptions(dims_by_name=dict(sizes), split_names=True)
            loaded = load(small.SerializeToString(), split, names)
            infer(loaded.graph, False, {})
    except SardonyxError as error:
        raise ValueError(_with_onnx_names(error)) from error
    return names.values, loaded.graph


def _with_onnx_names(error: SardonyxError) -> str:
    """Return the message of an error in one line, with ONNX's names of the types in it."""
    words = dict.fromkeys(re.findall(r"\b[a-z]+\d+\w*\b", error.what))
    types = [(w, onnx.TensorProto.DataType.Name(by_name(w).onnx)) for w in words if w in _TYPES]
    legend = ", ".join(f"{ours} is {name}" for ours, name in types)
    place = f" at {error.where['node']}" if "node" in error.where else ""
    return f"shapes cannot be inferred{place}: {error.what}{f' ({legend})' if legend else ''}"


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with inputs in place of weights, whose values do not matter for shapes."""
    small = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    small.opset_import.extend(model.opset_import)
    imported = {entry.domain for entry in model.opset_import}
    used = {node.domain for node in model.graph.node} | {MICROSOFT}
    missing = sorted(used - imported - {"", "ai.onnx"})
    small.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in missing)
    small.functions.extend(model.functions)
    graph, source = small.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    for node in graph.node:
        if not node.domain and _is_only_of_microsoft(node.op_type):
            node.domain = MICROSOFT  # as onnxruntime's tool, which knows ops by their names
    graph.output.extend(source.output)
    graph.sparse_initializer.extend(source.sparse_initializer)
    is_weight = {t.name: not _is_small(t) for t in source.initializer}
    graph.input.extend(i for i in source.input if i.name not in is_weight)
    for tensor in source.initializer:
        if is_weight[tensor.name]:
            dims = list(tensor.dims)
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, dims)
            graph.input.append(info)
        else:
            graph.initializer.append(tensor)
    return small


def _is_only_of_microsoft(op_type: str) -> bool:
    is_standard = lookup(ONNX, op_type) is not None or any(
        find(ONNX, op_type, version) for version in range(_OLDEST, NEWEST[ONNX])
    )
    return not is_standard and lookup(MICROSOFT, op_type) is not None


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= _SMALL


def _values_of(graph: Graph) -> dict[str, Value]:
    return {value.name: value for value in _produced(graph) if value.name}


def _produced(graph: Graph) -> Iterator[Value]:
    for node in graph.nodes:
        yield from node.outputs


def _has_rank(fact: AnyFact | None) -> bool:
    return fact is not None and not (isinstance(fact, Fact) and fact.shape is None)


def get_opset(mp: onnx.ModelProto, domain: Sequence[str] | str | None = None) -> int | None:
    """Return the opset that a model imports of a domain, by default of ai.onnx."""
    domains = domain or ["", "onnx", "ai.onnx"]
    domains = [domains] if isinstance(domains, str) else domains
    return next((int(o.version) for o in mp.opset_import if o.domain in domains), None)


def get_shape_from_type_proto(type_proto: Any) -> list[int | str | None] | None:
    """Return the dims of a tensor type: a number, a name, or None; None without a shape."""
    if type_proto.WhichOneof("value") == "sequence_type":
        return get_shape_from_type_proto(type_proto.sequence_type.elem_type)
    if not type_proto.tensor_type.HasField("shape"):
        return None
    return [get_dim_from_proto(dim) for dim in type_proto.tensor_type.shape.dim]


def get_dim_from_proto(dim: Any) -> int | str | None:
    """Return the number or name of a dim."""
    which = dim.WhichOneof("value")
    return getattr(dim, which) if which is not None else None


def get_shape_from_value_info(vi: onnx.ValueInfoProto) -> list[int | str | None] | None:
    """Return the dims of a declared value."""
    return get_shape_from_type_proto(vi.type)


def get_elem_type_from_type_proto(type_proto: Any) -> int:
    """Return the element type of a tensor, or of the tensors of a sequence."""
    if is_sequence(type_proto):
        return int(type_proto.sequence_type.elem_type.tensor_type.elem_type)
    return int(type_proto.tensor_type.elem_type)


def is_sequence(type_proto: Any) -> bool:
    """Return whether a type is a sequence."""
    return bool(type_proto.WhichOneof("value") == "sequence_type")


def get_attribute(node: onnx.NodeProto, attr_name: str, default_value: Any = None) -> Any:
    """Return an attribute of a node, or a default."""
    found = (onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == attr_name)
    return next(found, default_value)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Annotate a model with symbolic shapes.")
    parser.add_argument("--input", required=True, help="the model")
    parser.add_argument("--output", help="the annotated model")
    for name in ("--auto_merge", "--guess_output_rank"):
        parser.add_argument(name, action="store_true", help="for compatibility")
    parser.add_argument("--int_max", type=int, default=2**31 - 1, help="for compatibility")
    parser.add_argument("--verbose", type=int, default=0, help="for compatibility")
    parser.add_argument("--save_as_external_data", action="store_true")
    parser.add_argument("--all_tensors_to_one_file", action="store_true", help="always so")
    parser.add_argument("--external_data_location", default="./", help="the file of the weights")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Annotate the model of the command line."""
    arguments = parse_arguments(argv)
    out = SymbolicShapeInference.infer_shapes(onnx.load(arguments.input))
    if not arguments.output or out is None:
        return
    data_file = None
    if arguments.save_as_external_data:
        name = os.path.basename(arguments.external_data_location)
        data_file = name or f"{os.path.basename(arguments.output)}.data"
    save_proto(out, arguments.output, data_file, arguments.external_data_size_threshold)


if __name__ == "__main__":
    main()
