"""Functions over the ModelProto of a model: fixed sizes, edges between nodes, opsets."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import onnx

from sardonyx.convert import ConvertOptions, convert_to_bytes
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.session.inference import InferenceSession
from sardonyx.tools.proto_files import save_proto
from sardonyx.tools.symbolic_shape_infer import inferred_model

_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
Edges = dict[onnx.NodeProto, set[onnx.NodeProto]]

_LEVELS: Final = {
    "disable": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def iterate_graph_per_node_func(
    graph: onnx.GraphProto, per_node_func: Callable[..., object], **func_args: Any
) -> None:
    """Call a function for each node of a graph and of its bodies."""
    for node in graph.node:
        per_node_func(node, **func_args)
        for body in _bodies(node):
            iterate_graph_per_node_func(body, per_node_func, **func_args)


def iterate_graph_per_graph_func(
    graph: onnx.GraphProto, per_graph_func: Callable[..., object], **func_args: Any
) -> None:
    """Call a function for a graph and each of its bodies."""
    per_graph_func(graph, **func_args)
    for node in graph.node:
        for body in _bodies(node):
            iterate_graph_per_graph_func(body, per_graph_func, **func_args)


def get_opsets_imported(model: onnx.ModelProto) -> dict[str, int]:
    """Return the opsets that a model imports, by domain."""
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def update_onnx_opset(
    model_path: pathlib.Path,
    opset: int,
    out_path: pathlib.Path | None = None,
    logger: logging.Logger | None = None,
) -> onnx.ModelProto:
    """Return a model in another opset, and save it if a path is given."""
    path = pathlib.Path(model_path).resolve(strict=True)
    if logger:
        logger.info("Updating %s to opset %d", path, opset)
    model = onnx.ModelProto()
    model.ParseFromString(convert_to_bytes(path, ConvertOptions(opset=opset)))
    if out_path:
        save_proto(model, out_path)
        if logger:
            logger.info("Saved updated model to %s", out_path)
    return model


def optimize_model(
    model_path: pathlib.Path,
    output_path: pathlib.Path,
    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_BASIC,
    log_level: int = 3,
    use_external_initializers: bool = False,
) -> None:
    """Save a model as the graph passes of a level leave it."""
    options = SessionOptions()
    options.optimized_model_filepath = os.fspath(pathlib.Path(output_path).resolve())
    options.graph_optimization_level = level
    options.log_severity_level = log_level
    if use_external_initializers:
        options.add_session_config_entry(_DATA_FILE, "external_data.pb")
    path = pathlib.Path(model_path).resolve(strict=True)
    InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def _dims(graph: onnx.GraphProto) -> Iterator[Any]:
    """Yield the dims of all tensors that a graph declares."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim


def _clear_dims_below_one(graph: onnx.GraphProto) -> None:
    for dim in _dims(graph):
        if dim.HasField("dim_value") and dim.dim_value < 1:
            dim.Clear()


def remove_invalid_dim_values(graph: onnx.GraphProto) -> None:
    """Clear sizes below 1, which some converters write for dynamic dims; bodies included."""
    iterate_graph_per_graph_func(graph, _clear_dims_below_one)


def _fix_dims(graph: onnx.GraphProto, name: str, value: int) -> None:
    for dim in _dims(graph):
        if dim.HasField("dim_param") and dim.dim_param == name:
            dim.Clear()
            dim.dim_value = value


def make_dim_param_fixed(graph: onnx.GraphProto, param_name: str, value: int) -> None:
    """Give a named dim a size, everywhere in a graph and its bodies."""
    iterate_graph_per_graph_func(graph, _fix_dims, name=param_name, value=value)


def make_input_shape_fixed(
    graph: onnx.GraphProto, input_name: str, fixed_shape: Sequence[int]
) -> None:
    """Give an input a shape; its named dims have these sizes everywhere."""
    remove_invalid_dim_values(graph)
    found = next((i for i in graph.input if i.name == input_name), None)
    if found is None:
        names = ",".join(i.name for i in graph.input)
        raise ValueError(
            f"Input {input_name} was not found in graph inputs. Valid input names are: {names}"
        )
    if not found.type.HasField("tensor_type"):
        raise ValueError(f"Input {input_name} is not a tensor")
    dims = found.type.tensor_type.shape.dim
    if len(dims) != len(fixed_shape):
        raise ValueError(f"Rank mismatch. Existing:{len(dims)} Replacement:{len(fixed_shape)}")
    for axis, (dim, size) in enumerate(zip(dims, fixed_shape, strict=True)):
        if dim.HasField("dim_value"):
            if dim.dim_value != size:
                raise ValueError(
                    f"Can't replace existing fixed size of {dim.dim_value} with {size} for "
                    f"dimension {axis + 1}"
                )
        elif dim.HasField("dim_param"):
            make_dim_param_fixed(graph, dim.dim_param, size)
        else:
            dim.dim_value = size


def fix_output_shapes(model: onnx.ModelProto) -> None:
    """Declare the outputs of a model with the sizes that follow from those of its inputs."""
    known = {o.name: o for o in inferred_model(model).graph.output}
    for output in model.graph.output:
        if not is_fixed_size_tensor(output) and is_fixed_size_tensor(known[output.name]):
            output.type.tensor_type.shape.CopyFrom(known[output.name].type.tensor_type.shape)


def is_fixed_size_tensor(value: onnx.ValueInfoProto) -> bool:
    """Return whether a value is declared as a tensor with a size above 0 in every dim."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return False
    dims = value.type.tensor_type.shape.dim
    return all(dim.HasField("dim_value") and dim.dim_value > 0 for dim in dims)


def get_producer_consumer_maps(graph: onnx.GraphProto) -> tuple[Edges, Edges]:
    """Return the nodes that make what a node reads, and the nodes that read what it makes.

    Nodes of bodies are included, and edges into a body are those of its owner as well. The keys
    are nodes: onnx.NodeProto becomes hashable, by identity.
    """
    onnx.NodeProto.__hash__ = lambda self: id(self)  # type: ignore[method-assign]
    producers: Edges = {}
    consumers: Edges = {}
    outside = _link(graph, producers, consumers)
    if outside:
        missing = ",".join(sorted(outside))
        raise ValueError(f"This appears to be an invalid model with missing inputs of {missing}")
    return producers, consumers


def _link(graph: onnx.GraphProto, producers: Edges, consumers: Edges) -> set[str]:
    """Add the edges of a graph; return the names that it takes from outside."""
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    made: dict[str, onnx.NodeProto] = {}
    outside: set[str] = set()
    for node in graph.node:
        names = dict.fromkeys(name for name in node.input if name)
        for body in _bodies(node):
            names.update(dict.fromkeys(_link(body, producers, consumers)))
        for name in names:
            if name in made:
                producers.setdefault(node, set()).add(made[name])
                consumers.setdefault(made[name], set()).add(node)
            elif name not in given:
                outside.add(name)
        made.update(dict.fromkeys(node.output, node))
    return outside


def get_optimization_level(level: str) -> GraphOptimizationLevel:
    """Return the optimization level of a name."""
    if level not in _LEVELS:
        raise ValueError(f"Invalid optimization level of {level}: give one of {', '.join(_LEVELS)}")
    return _LEVELS[level]


class ModelProtoWithShapeInfo:
    """A model from a file, with the inferred shapes of all its values."""

    def __init__(self, model_path: pathlib.Path) -> None:
        self.model_path = model_path
        self.model_with_shape_info = inferred_model(onnx.load(os.fspath(model_path)))
