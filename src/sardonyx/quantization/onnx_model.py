"""`ONNXModel`: onnxruntime's helper for programs that edit an onnx.ModelProto.

Sardonyx itself edits documents; this class is for code of users.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.document import (
    ModelDoc,
    document_bytes,
    read_document,
    save_document,
)
from sardonyx.quantization.gemm_to_matmul import replace_gemm_with_matmul

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


class ONNXModel:
    """Searches and edits a ModelProto, in place."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    @classmethod
    def of(cls, document: ModelDoc) -> ONNXModel:
        """Return the model of a document."""
        from onnx import ModelProto

        return cls(ModelProto.FromString(document_bytes(document)))

    def nodes(self) -> Sequence[NodeProto]:
        """Return the nodes of the main graph."""
        nodes: Sequence[NodeProto] = self.model.graph.node
        return nodes

    def initializer(self) -> Sequence[TensorProto]:
        """Return the initializers of the main graph."""
        tensors: Sequence[TensorProto] = self.model.graph.initializer
        return tensors

    def initializer_extend(self, inits: Iterable[TensorProto]) -> None:
        """Add initializers."""
        added = list(inits)
        if not added:
            raise ValueError("there are no initializers to add")
        self.model.graph.initializer.extend(added)

    def graph(self) -> GraphProto:
        """Return the main graph."""
        return self.model.graph

    def ir_version(self) -> int:
        """Return the IR version."""
        return self.model.ir_version

    def opset_import(self) -> Sequence[Any]:
        """Return the imported opsets."""
        opsets: Sequence[Any] = self.model.opset_import
        return opsets

    def set_opset_import(self, domain: str, version: int) -> None:
        """Import an opset, in place of the one of its domain."""
        for opset in self.model.opset_import:
            if opset.domain == domain:
                opset.version = version
                return
        self.model.opset_import.add(domain=domain, version=version)

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node, if the model has it."""
        if node in self.model.graph.node:
            self.model.graph.node.remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        """Remove nodes."""
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def add_node(self, node: NodeProto) -> None:
        """Append a node."""
        self.model.graph.node.append(node)

    def add_nodes(self, nodes_to_add: Iterable[NodeProto]) -> None:
        """Append nodes."""
        self.model.graph.node.extend(nodes_to_add)

    def add_initializer(self, tensor: TensorProto) -> None:
        """Add an initializer, unless there is one of its name."""
        if self.get_initializer(tensor.name) is None:
            self.model.graph.initializer.append(tensor)

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return the initializer with a name, or None."""
        return next((t for t in self.model.graph.initializer if t.name == name), None)

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """Return the input with a name, or None."""
        return next((v for v in self.model.graph.input if v.name == input_name), None)

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """Return the output with a name, or None."""
        return next((v for v in self.model.graph.output if v.name == output_name), None)

    def get_tensor_type(self, tensor_name: str) -> Any:
        """Return the declared type of a tensor (TypeProto.Tensor), or None."""
        graph = self.model.graph
        groups = (graph.value_info, graph.input, graph.output)
        found = (v.type.tensor_type for group in groups for v in group if v.name == tensor_name)
        return next(found, None)

    def get_constant_value(self, output_name: str) -> np.ndarray | None:
        """Return the value of a Constant node's output or of an initializer, or None."""
        from onnx import numpy_helper

        for node in self.model.graph.node:
            if node.op_type == "Constant" and output_name in node.output:
                for attr in node.attribute:
                    if attr.name == "value":
                        return numpy_helper.to_array(attr.t)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of the initializers."""
        return {tensor.name for tensor in self.model.graph.initializer}

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer, also from the inputs."""
        if tensor not in self.model.graph.initializer:
            return
        name = tensor.name
        self.model.graph.initializer.remove(tensor)
        found = self.find_graph_input(name)
        if found is not None:
            self.model.graph.input.remove(found)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        """Remove initializers."""
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of the inputs without a default."""
        return {v.name for v in self.model.graph.input} - self.get_initializer_name_set()

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """Return the nodes that read each value; one that reads it twice is listed twice."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node:
            for name in filter(None, node.input):
                found.setdefault(name, []).append(node)
        return found

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return the node that makes each value."""
        nodes = self.model.graph.node
        return {name: node for node in nodes for name in node.output if name}

    def get_children(
        self, node: NodeProto, input_name_to_nodes: dict[str, list[NodeProto]] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that read outputs of a node."""
        readers = input_name_to_nodes or self.input_name_to_nodes()
        return [reader for name in node.output for reader in readers.get(name, ())]

    def get_parents(
        self, node: NodeProto, output_name_to_node: dict[str, NodeProto] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make inputs of a node."""
        makers = output_name_to_node or self.output_name_to_node()
        return [makers[name] for name in node.input if name in makers]

    def get_parent(
        self, node: NodeProto, idx: int, output_name_to_node: dict[str, NodeProto] | None = None
    ) -> NodeProto | None:
        """Return the node that makes one input of a node, or None."""
        makers = output_name_to_node or self.output_name_to_node()
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Sequence[NodeProto], graph: GraphProto
    ) -> NodeProto | None:
        """Return the node with a name in a graph or in a list, or None."""
        nodes = (*graph.node, *new_nodes_list)
        return next((node for node in nodes if node.name == node_name), None)

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number after a prefix in the names of nodes; -1 if there is none."""
        return _largest_suffix((node.name for node in self.model.graph.node), node_name_prefix)

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number after a prefix in the names of initializers, or -1."""
        names = (tensor.name for tensor in self.model.graph.initializer)
        return _largest_suffix(names, initializer_name_prefix)

    def find_nodes_by_initializer(
        self, graph: GraphProto, initializer: TensorProto
    ) -> list[NodeProto]:
        """Return the nodes of a graph that read an initializer."""
        return [node for node in graph.node if initializer.name in node.input]

    def replace_gemm_with_matmul(self) -> None:
        """Replace every Gemm without alpha, beta and transA by MatMul and Add."""
        document = read_document(self.model)
        replace_gemm_with_matmul(document, {})
        self._take(document)

    def save_model_to_file(
        self, output_path: str | os.PathLike[str], use_external_data_format: bool = False
    ) -> None:
        """Save the model with sorted nodes, its weights beside it if that is wanted or needed."""
        document = read_document(self.model)
        document.graph.sort()
        save_document(document, output_path, external=use_external_data_format)

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Make a node read another value wherever it reads one."""
        _rename(node.input, old_input_name, new_input_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Make all nodes read another value."""
        for node in self.model.graph.node:
            _rename(node.input, old_input_name, new_input_name)

    def replace_input_of_nodes(
        self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]
    ) -> None:
        """Make the nodes with these names read another value."""
        for node in self.model.graph.node:
            if node.name in node_names_set:
                _rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Rename an output of a node."""
        _rename(node.output, old_output_name, new_output_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Rename a value where it is made."""
        for node in self.model.graph.node:
            _rename(node.output, old_output_name, new_output_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Collection[str]
    ) -> None:
        """Rename an output of the nodes with these names."""
        for node in self.model.graph.node:
            if node.name in node_names_set:
                _rename(node.output, old_output_name, new_output_name)

    def remove_unused_constant(self) -> None:
        """Remove Constant nodes and initializers that nothing reads."""
        read = self.input_name_to_nodes().keys() | {v.name for v in self.model.graph.output}
        unused = [
            node
            for node in self.model.graph.node
            if node.op_type == "Constant" and node.output[0] not in read
        ]
        self.remove_nodes(unused)
        self.remove_initializers([t for t in self.initializer() if t.name not in read])

    def is_graph_output(self, output_name: str) -> bool:
        """Return whether a value is an output of the model."""
        return self.find_graph_output(output_name) is not None

    def is_graph_input(self, tensor_name: str) -> bool:
        """Return whether a value is an input of the model."""
        return self.find_graph_input(tensor_name) is not None

    def topological_sort(self) -> None:
        """Put the nodes into topological order."""
        document = read_document(self.model)
        document.graph.sort()
        self._take(document)

    def clean_initializers(self) -> tuple[GraphProto, set[str]]:
        """Remove initializers that nothing reads; return the graph and names that nothing makes."""
        document = read_document(self.model)
        missing = document.graph.drop_unused_initializers()
        kept = document.graph.initializers
        for tensor in [t for t in self.initializer() if t.name not in kept]:
            self.remove_initializer(tensor)
        return self.model.graph, missing

    def _take(self, document: ModelDoc) -> None:
        """Replace the graph by that of a document."""
        from onnx import ModelProto

        self.model.graph.CopyFrom(ModelProto.FromString(document_bytes(document)).graph)


def _rename(names: Any, old: str, new: str) -> None:
    """Rename in a repeated field of strings."""
    for i, name in enumerate(names):
        if name == old:
            names[i] = new


def _largest_suffix(names: Iterable[str], prefix: str) -> int:
    rests = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return max((int(r) for r in rests if r.isascii() and r.isdigit()), default=-1)
