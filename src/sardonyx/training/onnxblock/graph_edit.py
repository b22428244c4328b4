"""Looks up and edits names, inputs and outputs of a ModelProto."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import onnx

_numbers: Final = itertools.count(1)


def generate_graph_name(token: str) -> str:
    """Return a name that no other call returns."""
    return f"onnx::{token}::{next(_numbers)}"


def get_input_from_input_name(onnx_model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """Return the graph input with a name."""
    return _named(onnx_model.graph.input, input_name, "input")


def get_output_from_output_name(
    onnx_model: onnx.ModelProto, output_name: str
) -> onnx.ValueInfoProto:
    """Return the graph output with a name."""
    return _named(onnx_model.graph.output, output_name, "output")


def _named(infos: Iterable[onnx.ValueInfoProto], name: str, what: str) -> onnx.ValueInfoProto:
    infos = list(infos)
    for info in infos:
        if info.name == name:
            return info
    known = ", ".join(info.name for info in infos)
    raise LookupError(f"the graph has no {what} {name!r}; it has {known or 'none'}")


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Return whether a node reads or writes a name, or the graph has an input of that name."""
    if any(info.name == node_arg_name for info in model.graph.input):
        return True
    return any(
        node_arg_name in node.input or node_arg_name in node.output for node in model.graph.node
    )


def register_graph_outputs(model: onnx.ModelProto, output_names: str | Sequence[str]) -> None:
    """Make values the outputs of the graph; their types are declared or inferred already."""
    names = [output_names] if isinstance(output_names, str) else list(output_names)
    graph = model.graph
    # An output's own declaration is preferred to the inferred one.
    known = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    for name in names:
        if name not in known:
            raise LookupError(
                f"the type of {name!r} is not known: no node of the graph computes it, or shape "
                "inference does not reach it; declare it in graph.value_info"
            )
    outputs = [known[name] for name in names]
    del graph.output[:]
    graph.output.extend(outputs)


def without_data(model: onnx.ModelProto, names: Iterable[str] = ()) -> onnx.ModelProto:
    """Return a copy whose large initializers, and those named, are inputs without a value.

    The copy is small, whatever the size of the weights: protobuf cannot serialize more than 2 GB.
    """
    chosen = set(names)
    copy = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _assign(copy, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _assign(copy.graph, field.name, value)
    inputs = {info.name for info in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in chosen and tensor.ByteSize() <= _SMALL:
            copy.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            copy.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return copy


_SMALL: Final = 1024  # bytes: shapes and axes, whose values shape inference reads


def _assign(message: object, name: str, value: object) -> None:
    """Set a field of any kind."""
    target = getattr(message, name)
    if hasattr(target, "extend"):
        target.extend(value)
    elif hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    else:
        setattr(message, name, value)
