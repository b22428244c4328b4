"""Lookups in a ModelProto by its edges: parents, children, paths of ops, constants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Readers = dict[str, list[NodeProto]]
Makers = dict[str, NodeProto]
Path = list[NodeProto]


class GraphEdges:
    """A model whose nodes are found by the names that they read and make, bodies included."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def graph(self) -> GraphProto:
        """Return the main graph."""
        return self.model.graph

    def graphs(self) -> list[GraphProto]:
        """Return the main graph and all bodies."""
        found = [self.model.graph]
        for graph in found:  # which grows
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        found.append(attribute.g)
                    found.extend(attribute.graphs)
        return found

    def functions(self) -> list[list[onnx.FunctionProto]]:
        """Return the model's functions."""
        return [list(self.model.functions)]

    def nodes(self) -> list[NodeProto]:
        """Return all nodes."""
        return [node for graph in self.graphs() for node in graph.node]

    def input_name_to_nodes(self, exclude_subgraphs: bool = False) -> Readers:
        """Return the readers of each value."""
        readers: Readers = {}
        for node in self._nodes(exclude_subgraphs):
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self, exclude_subgraphs: bool = False) -> Makers:
        """Return the node that makes each value."""
        return {n: node for node in self._nodes(exclude_subgraphs) for n in node.output if n}

    def _nodes(self, is_main_only: bool) -> Iterable[NodeProto]:
        return self.model.graph.node if is_main_only else self.nodes()

    def get_nodes_by_op_type(self, op_type: str) -> list[NodeProto]:
        """Return the nodes of an op."""
        return [node for node in self.nodes() if node.op_type == op_type]

    def get_children(
        self,
        node: NodeProto,
        input_name_to_nodes: Readers | None = None,
        output_index: int | None = None,
    ) -> list[NodeProto]:
        """Return the readers of a node's outputs, or of one of them."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        names = node.output if output_index is None else node.output[output_index:][:1]
        return [reader for name in names for reader in readers.get(name, [])]

    def get_parents(
        self, node: NodeProto, output_name_to_node: Makers | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make a node's inputs."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [makers[name] for name in node.input if name in makers]

    def get_parent(
        self, node: NodeProto, i: int, output_name_to_node: Makers | None = None
    ) -> NodeProto | None:
        """Return the node that makes an input."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return makers.get(node.input[i]) if i < len(node.input) else None

    def match_first_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        output_name_to_node: Makers,
        exclude: Sequence[NodeProto] = (),
    ) -> tuple[NodeProto, int] | tuple[None, None]:
        """Return the first parent of an op, and the position of the input that it makes."""
        for position, name in enumerate(node.input):
            parent = output_name_to_node.get(name)
            if parent is not None and parent.op_type == parent_op_type and parent not in exclude:
                return parent, position
        return None, None

    def match_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Makers | None = None,
        exclude: Sequence[NodeProto] = (),
        return_indice: list[Any] | None = None,
    ) -> NodeProto | None:
        """Return the parent of an op at an input, or at any; its position is then appended."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        if input_index is None:
            first, position = self.match_first_parent(node, parent_op_type, makers, exclude)
            if return_indice is not None:
                return_indice.append(position)
            return first
        parent = self.get_parent(node, input_index, makers)
        is_match = parent is not None and parent.op_type == parent_op_type
        return parent if is_match and parent not in exclude else None

    def match_parent_path(
        self,
        node: NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None] | None = None,
        output_name_to_node: Makers | None = None,
        return_indice: list[Any] | None = None,
    ) -> Path | None:
        """Return the nodes of these ops that lead to a node, the nearest first."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        positions = parent_input_index or [None] * len(parent_op_types)
        path: Path = []
        for op_type, position in zip(parent_op_types, positions, strict=True):
            found = self.match_parent(node, op_type, position, makers, (), return_indice)
            if found is None:
                return None
            path.append(found)
            node = found
        return path

    def match_parent_paths(
        self, node: NodeProto, paths: Sequence[tuple[Any, Any]], output_name_to_node: Makers
    ) -> tuple[int, Path, list[Any]] | tuple[int, None, None]:
        """Return the number of the first path that matches, its nodes and positions; else -1."""
        for i, (ops, positions) in enumerate(paths):
            indices: list[Any] = []
            path = self.match_parent_path(node, ops, positions, output_name_to_node, indices)
            if path:
                return i, path, indices
        return -1, None, None

    def match_parent_paths_all(
        self, node: NodeProto, paths: Sequence[tuple[Any, Any]], output_name_to_node: Makers
    ) -> tuple[list[int], list[Path], list[list[Any]]]:
        """Return the numbers of all paths that match, their nodes and positions."""
        numbers: list[int] = []
        found: list[Path] = []
        positions: list[list[Any]] = []
        for i, (ops, at) in enumerate(paths):
            indices: list[Any] = []
            path = self.match_parent_path(node, ops, at, output_name_to_node, indices)
            if path:
                numbers.append(i)
                found.append(path)
                positions.append(indices)
        return numbers, found, positions

    def match_child_path(
        self,
        node: NodeProto,
        child_op_types: Sequence[str],
        edges: Sequence[tuple[int, int]] | None = None,
        input_name_to_nodes: Readers | None = None,
        exclude: Sequence[NodeProto] = (),
    ) -> Path | None:
        """Return nodes of these ops that follow each other; each is the first reader of its op.

        An edge is the output of one node and the input of the next.
        """
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        path: Path = []
        for i, op_type in enumerate(child_op_types):
            edge = None if edges is None else edges[i]
            output = None if edge is None else edge[0]
            for child in self.get_children(node, readers, output):
                fits = edge is None or child.input[edge[1]] == node.output[edge[0]]
                if child.op_type == op_type and child not in exclude and fits:
                    path.append(child)
                    node = child
                    break
            else:
                return None
        return path

    def find_first_child_by_type(
        self,
        node: NodeProto,
        child_type: str,
        input_name_to_nodes: Readers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """Return the nearest reader of an op, of a node's outputs or of what follows from them."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        near = _reached(node, lambda n: self.get_children(n, readers), recursive)
        return next((n for n in near if n.op_type == child_type), None)

    def find_first_parent_by_type(
        self,
        node: NodeProto,
        parent_type: str,
        output_name_to_node: Makers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """Return the nearest node of an op among those that a node depends on."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        near = _reached(node, lambda n: self.get_parents(n, makers), recursive)
        return next((n for n in near if n.op_type == parent_type), None)

    def get_parent_subgraph_nodes(
        self,
        node: NodeProto,
        stop_nodes: Collection[NodeProto],
        output_name_to_node: Makers | None = None,
    ) -> list[NodeProto]:
        """Return the nodes that a node depends on, up to some nodes."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return list(_reached(node, lambda n: self.get_parents(n, makers), stop=stop_nodes))

    def get_children_subgraph_nodes(
        self,
        root_node: NodeProto,
        stop_nodes: Collection[NodeProto],
        input_name_to_nodes: Readers | None = None,
    ) -> list[NodeProto]:
        """Return the nodes that depend on a node, up to some nodes."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return list(_reached(root_node, lambda n: self.get_children(n, readers), stop=stop_nodes))

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return an initializer by name."""
        tensors = (tensor for graph in self.graphs() for tensor in graph.initializer)
        return next((tensor for tensor in tensors if tensor.name == name), None)

    def get_constant_value(self, output_name: str) -> Any:
        """Return the array of an initializer or Constant node; None for other values."""
        for node in self.get_nodes_by_op_type("Constant"):
            if node.output[0] == output_name:
                value = self.get_node_attribute(node, "value")
                return None if value is None else numpy_helper.to_array(value)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def get_constant_input(self, node: NodeProto) -> tuple[int | None, Any]:
        """Return the position and array of the first constant input."""
        for i, name in enumerate(node.input):
            value = self.get_constant_value(name)
            if value is not None:
                return i, value
        return None, None

    def find_constant_input(
        self, node: NodeProto, expected_value: float, delta: float = 0.000001
    ) -> int:
        """Return the position of a constant input that is this number; -1 without one."""
        i, value = self.get_constant_input(node)
        if i is None or value.size != 1 or not abs(value.item() - expected_value) < delta:
            return -1
        return i

    def has_constant_input(
        self, node: NodeProto, expected_value: float, delta: float = 0.000001
    ) -> bool:
        """Return whether an input is this number."""
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_dimension(
        self, output_name: str, dimensions: int, description: str
    ) -> bool:
        """Return whether a value is a constant of a rank."""
        value = self.get_constant_value(output_name)
        return value is not None and value.ndim == dimensions

    @staticmethod
    def get_node_attribute(node: NodeProto, attribute_name: str) -> Any:
        """Return an attribute of a node; None without it."""
        found = (a for a in node.attribute if a.name == attribute_name)
        return next(map(helper.get_attribute_value, found), None)

    @staticmethod
    def input_index(node_output: str, child_node: NodeProto) -> int:
        """Return the position at which a node reads a value; -1 if it does not."""
        names = list(child_node.input)
        return names.index(node_output) if node_output in names else -1

    @staticmethod
    def tensor_shape_to_list(tensor_type: Any) -> list[int | str]:
        """Return the dims of a tensor type; ? for unknown ones."""
        dims = tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]


def _reached(
    node: NodeProto,
    neighbours: Callable[[NodeProto], list[NodeProto]],
    recursive: bool = True,
    stop: Collection[NodeProto] = (),
) -> Iterator[NodeProto]:
    """Yield nodes around a node, breadth first, each once."""
    waiting, seen = deque(neighbours(node)), set[int]()
    while waiting:
        found = waiting.popleft()
        if id(found) in seen or found in stop:
            continue
        seen.add(id(found))
        yield found
        if recursive:
            waiting.extend(neighbours(found))
