"""Cleanup of masks that are computed from the shape of an input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper, numpy_helper

if TYPE_CHECKING:
    from sardonyx.transformers.graph_edges import Makers
    from sardonyx.transformers.onnx_model import OnnxModel

_MASK = 3  # the position of the mask in Attention


def clean_graph(model: OnnxModel) -> None:
    """Simplify ConstantOfShape of an input's shape, and remove masks of ones (no-ops)."""
    for node in model.get_nodes_by_op_type("ConstantOfShape"):
        _read_whole_shape(model, node)
    for node in model.get_nodes_by_op_type("Cast"):
        _merge_cast(model, node)
    producers = model.output_name_to_node()
    for node in model.get_nodes_by_op_type("Attention"):
        if len(node.input) > _MASK and _is_all_ones(
            model, producers.get(node.input[_MASK]), producers
        ):
            node.input[_MASK] = ""
            while not node.input[-1]:
                del node.input[-1]


def _read_whole_shape(model: OnnxModel, node: NodeProto) -> None:
    """Let a ConstantOfShape read a Shape, instead of all its elements one by one."""
    producers = model.output_name_to_node()
    concat = producers.get(node.input[0])
    if concat is None or concat.op_type != "Concat":
        return
    shapes = []
    for position in range(len(concat.input)):
        path = model.match_parent_path(
            concat, ["Unsqueeze", "Gather", "Shape"], [position, 0, 0], producers
        )
        if path is None or _number(model, path[1].input[1]) != position:
            return
        shapes.append(path[2])
    source = shapes[0].input[0]
    rank = len(model.get_shape(source) or ())
    if rank == len(shapes) and all(shape.input[0] == source for shape in shapes):
        node.input[0] = shapes[0].output[0]


def _number(model: OnnxModel, name: str) -> float | None:
    value = model.get_constant_value(name)
    return None if value is None or value.size != 1 else value.item()


def _merge_cast(model: OnnxModel, cast: NodeProto) -> None:
    """Fold a Cast into the ConstantOfShape that only it reads."""
    producer = model.output_name_to_node().get(cast.input[0])
    readers = model.input_name_to_nodes().get(cast.input[0], [])
    if producer is None or producer.op_type != "ConstantOfShape" or len(readers) > 1:
        return
    outputs = model.get_graphs_output_names()
    if cast.input[0] in outputs or cast.output[0] in outputs:
        return
    dtype = helper.tensor_dtype_to_np_dtype(model.get_node_attribute(cast, "to"))
    tensor = numpy_helper.from_array(np.array([_fill_value(model, producer)]).astype(dtype))
    del producer.attribute[:]
    producer.attribute.append(helper.make_attribute("value", tensor))
    model.replace_input_of_all_nodes(cast.output[0], producer.output[0])
    model.remove_node(cast)


def _fill_value(model: OnnxModel, node: NodeProto) -> float:
    tensor = model.get_node_attribute(node, "value")
    return 0.0 if tensor is None else numpy_helper.to_array(tensor).item()


def _is_all_ones(model: OnnxModel, node: NodeProto | None, producers: Makers) -> bool:
    """Whether a mask is the row sums of a matrix of ones."""
    if node is None or node.op_type != "ReduceSum":
        return False
    producer = producers.get(node.input[0])
    if producer is not None and producer.op_type == "Cast":
        producer = producers.get(producer.input[0])
    is_constant = producer is not None and producer.op_type == "ConstantOfShape"
    return is_constant and producer is not None and _fill_value(model, producer) == 1
