"""Edits of nodes that fusions of other packages share: Casts, skipped nodes, constant inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from sardonyx.transformers.onnx_model import OnnxModel

_TYPES: Final = {
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
_INT32: Final = TensorProto.INT32


class FusionUtils:
    """Edits of one model."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def cast_graph_input_to_int32(self, input_name: str) -> tuple[bool, str]:
        """Return whether a value is an input of another type, and the value in int32."""
        value = self.model.find_graph_input(input_name)
        if value is None or value.type.tensor_type.elem_type == _INT32:
            return False, input_name
        return True, self.cast_input_to_int32(input_name)[0]

    def cast_input(
        self, input_name: str, target_type: str | int = "int32"
    ) -> tuple[str, NodeProto | None]:
        """Cast a value, and return the name of the result and the Cast that is added, if one is."""
        number = _TYPES[target_type] if isinstance(target_type, str) else target_type
        name = f"{input_name}_{target_type}"
        added = self.add_cast_node(input_name, number, name)
        return added.output[0], added

    def add_cast_node(
        self,
        input_name: str,
        to_type: int,
        output_name: str | None = None,
        output_name_to_node: dict[str, NodeProto] | None = None,
        graph_name: str | None = None,
    ) -> NodeProto:
        """Add a Cast of a value; a value that is itself an int Cast is cast from its source."""
        makers = self.model.output_name_to_node()
        source = makers.get(input_name)
        name = input_name
        if source is not None and source.op_type == "Cast" and to_type == _INT32:
            name = source.input[0]
        node = helper.make_node("Cast", [name], [output_name or f"{input_name}_cast"], to=to_type)
        self.model.add_node(node, graph_name)
        if output_name_to_node is not None:
            output_name_to_node[node.output[0]] = node
        return node

    def cast_input_to_int32(self, input_name: str) -> tuple[str, NodeProto | None]:
        """Cast a value to int32."""
        return self.cast_input(input_name, "int32")

    def remove_cast_int32(self, input_name: str) -> None:
        """Bypass int32 Casts of a value: their readers read the value itself."""
        for node in self.model.input_name_to_nodes().get(input_name, []):
            to = self.model.get_node_attribute(node, "to")
            if node.op_type == "Cast" and to == _INT32:
                self.model.remove_node(node)
                self.model.replace_input_of_all_nodes(node.output[0], input_name)

    @staticmethod
    def update_node_input(
        node: NodeProto, i: int, new_input_name: str, input_name_to_nodes: dict[str, list[Any]]
    ) -> int:
        """Replace an input of a node; return how many readers of the old value are left."""
        readers = input_name_to_nodes[node.input[i]]
        if node in readers:
            readers.remove(node)
        node.input[i] = new_input_name
        input_name_to_nodes.setdefault(new_input_name, []).append(node)
        return len(readers)

    @staticmethod
    def skip_parent(
        model: OnnxModel,
        node: NodeProto,
        parent_node: NodeProto,
        input_name_to_nodes: dict[str, list[Any]],
        node_input_index: int = 0,
        parent_input_index: int = 0,
    ) -> bool:
        """Bypass the parent of a node; return whether the parent is dead then."""
        old = node.input[node_input_index]
        new = parent_node.input[parent_input_index]
        count = FusionUtils.update_node_input(node, node_input_index, new, input_name_to_nodes)
        return count == 0 and model.find_graph_output(old) is None

    def get_squeeze_or_unsqueeze_axes(self, node: NodeProto) -> Any:
        """Return the axes of a Squeeze or Unsqueeze of any opset; None if they are not constant."""
        assert node.op_type in ("Squeeze", "Unsqueeze")
        if len(node.input) > 1:
            return self.model.get_constant_value(node.input[1])
        return self.model.get_node_attribute(node, "axes")

    @staticmethod
    def check_node_attribute(
        node: NodeProto, attribute_name: str, expected_value: Any, default_value: Any = None
    ) -> bool:
        """Return whether an attribute, or its default, is a value."""
        found = next((a for a in node.attribute if a.name == attribute_name), None)
        value = default_value if found is None else helper.get_attribute_value(found)
        return _equals(value, expected_value)

    @staticmethod
    def transpose_2d_int8_tensor(tensor: TensorProto) -> TensorProto:
        """Transpose an int8 matrix in place, and return it."""
        if not isinstance(tensor, TensorProto):
            raise TypeError(f"Expected input type is an ONNX TensorProto but got {type(tensor)}")
        if len(tensor.dims) != 2 or tensor.data_type != TensorProto.INT8:
            raise ValueError(f"{tensor.name} is not an int8 matrix, which alone is transposed")
        if not tensor.raw_data:
            raise ValueError(f"{tensor.name} is not stored as raw_data")
        tensor.raw_data = numpy_helper.to_array(tensor).T.tobytes()
        return tensor

    @staticmethod
    def check_qdq_node_for_fusion(
        node: NodeProto, model: OnnxModel, allow_per_tensor_quantization_only: bool = True
    ) -> bool:
        """Return whether a Q or DQ node has a constant scale, and zero points that are 0."""
        scale = model.get_constant_value(node.input[1])
        if scale is None or (allow_per_tensor_quantization_only and scale.size != 1):
            return False
        if len(node.input) == 2:
            return True
        zero_point = model.get_constant_value(node.input[2])
        return zero_point is not None and scale.ndim == zero_point.ndim and not zero_point.any()

    def check_node_input_value(
        self, node: NodeProto, input_index: int, expected_value: Any
    ) -> bool:
        """Return whether an input is a constant with this value."""
        assert len(node.input) > input_index
        return _equals(self.model.get_constant_value(node.input[input_index]), expected_value)

    def remove_identity_nodes(self) -> None:
        """Remove Identity nodes, but those that make outputs."""
        outputs = self.model.get_graphs_output_names()
        for node in self.model.get_nodes_by_op_type("Identity"):
            if node.output[0] not in outputs:
                self.model.replace_input_of_all_nodes(node.output[0], node.input[0])
                self.model.remove_node(node)

    def remove_cascaded_cast_nodes(self) -> None:
        """Bypass the first of two consecutive Casts."""
        self.model.remove_cascaded_cast_nodes()

    def remove_useless_cast_nodes(self) -> None:
        """Remove Casts of a type to itself."""
        self.model.remove_useless_cast_nodes()

    def remove_useless_reshape_nodes(self) -> None:
        """Remove Reshapes to the same shape."""
        shapes = self.model.infer_runtime_shape(update=True)
        if shapes is None:
            return
        nodes = self.model.get_nodes_by_op_type("Reshape")
        self.model.remove_pass_through(
            node
            for node in nodes
            if (shape := shapes.get_edge_shape(node.input[0]))
            and shape == shapes.get_edge_shape(node.output[0])
        )


def _equals(value: Any, expected: Any) -> bool:
    if not isinstance(expected, list):
        return bool(value == expected)
    is_list = isinstance(value, (np.ndarray, list))
    return is_list and np.array_equal(expected, value, equal_nan=False)


class NumpyHelper:
    """Arrays of tensors."""

    @staticmethod
    def to_array(tensor: TensorProto, fill_zeros: bool = False) -> Any:
        """Return a tensor as an array; or zeros of its type and shape, without reading it."""
        if fill_zeros:
            return np.zeros(tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
        return numpy_helper.to_array(tensor)
