"""`OnnxModel`: edits of a ModelProto, as fusions and packages on top of onnxruntime make them."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from sardonyx.tools.proto_files import save_proto
from sardonyx.transformers.float16 import convert_float_to_float16
from sardonyx.transformers.graph_edges import GraphEdges, Makers, Readers
from sardonyx.transformers.pruning import prune, remove_unused, sort_graph
from sardonyx.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

logger = logging.getLogger(__name__)

_MICROSOFT = "com.microsoft"
_FLOAT16_OPTIONS = (
    "keep_io_types",
    "min_positive_val",
    "max_finite_val",
    "op_block_list",
    "node_block_list",
    "force_fp16_initializers",
    "force_fp16_inputs",
    "use_bfloat16_as_blocked_nodes_dtype",
)


class OnnxModel(GraphEdges):
    """A model that is edited in place."""

    def __init__(self, model: ModelProto) -> None:
        self.initialize(model)

    def initialize(self, model: ModelProto) -> None:
        """Begin with a model."""
        self.model = model
        self.enable_shape_infer = True
        self.shape_infer_helper: SymbolicShapeInferenceHelper | None = None
        self._suffixes: dict[str, int] = {}  # the last number in names of nodes, by prefix

    def disable_shape_inference(self) -> None:
        """Let `infer_runtime_shape` return None."""
        self.enable_shape_infer = False

    def infer_runtime_shape(
        self, dynamic_axis_mapping: dict[str, int] | None = None, update: bool = False
    ) -> SymbolicShapeInferenceHelper | None:
        """Return the shapes of all values; None if they cannot be inferred."""
        if not self.enable_shape_infer:
            return None
        if self.shape_infer_helper is None or update:
            self.shape_infer_helper = SymbolicShapeInferenceHelper(self.model)
        try:
            if self.shape_infer_helper.infer(dynamic_axis_mapping or {}):
                return self.shape_infer_helper
        except ValueError as error:
            self.enable_shape_infer = False
            logger.warning("%s", error)
        return None

    def get_graphs_input_names(self) -> list[str]:
        """Return the names of the inputs of all graphs."""
        return [value.name for graph in self.graphs() for value in graph.input]

    def get_graphs_output_names(self) -> list[str]:
        """Return the names of the outputs of all graphs."""
        return [value.name for graph in self.graphs() for value in graph.output]

    def get_graph_by_node(self, node: NodeProto) -> GraphProto | None:
        """Return the graph that a node is in."""
        return next((graph for graph in self.graphs() if node in graph.node), None)

    def get_graph_by_name(self, graph_name: str) -> GraphProto | None:
        """Return a graph by name."""
        return next((graph for graph in self.graphs() if graph.name == graph_name), None)

    def _graph(self, name: str | None) -> GraphProto:
        """Return a graph by name, by default the main one."""
        graph = self.model.graph if name is None else self.get_graph_by_name(name)
        if graph is None:
            raise ValueError(f"the model has no graph {name}")
        return graph

    def get_topological_insert_id(self, graph: GraphProto, outputs: Collection[str]) -> int:
        """Return the position before the first reader of some values."""
        for position, node in enumerate(graph.node):
            if any(name in outputs for name in node.input):
                return position
        return len(graph.node)

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node from the graph that it is in."""
        graph = self.get_graph_by_node(node)
        if graph is None:
            logger.warning("the node %s is in no graph", node.name)
        else:
            graph.node.remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        """Remove nodes."""
        for node in nodes_to_remove:
            self.remove_node(node)

    def add_node(self, node: NodeProto, graph_name: str | None = None) -> None:
        """Add a node: at the end of the main graph, or before its readers in another one."""
        graph = self._graph(graph_name)
        if graph is self.model.graph or graph_name == self.model.graph.name:
            graph.node.append(node)
        else:
            graph.node.insert(self.get_topological_insert_id(graph, node.output), node)

    def add_nodes(
        self,
        nodes_to_add: Iterable[NodeProto],
        node_name_to_graph_name: dict[str, str] | None = None,
    ) -> None:
        """Add nodes, by default to the main graph."""
        for node in nodes_to_add:
            name = None if node_name_to_graph_name is None else node_name_to_graph_name[node.name]
            self.add_node(node, name)

    def add_initializer(self, tensor: TensorProto, graph_name: str | None = None) -> None:
        """Add an initializer."""
        self._graph(graph_name).initializer.append(tensor)

    def add_input(self, input: ValueInfoProto, graph_name: str | None = None) -> None:
        """Add an input."""
        self._graph(graph_name).input.append(input)

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer from the graph that it is in."""
        for graph in self.graphs():
            if tensor in graph.initializer:
                graph.initializer.remove(tensor)
                return
        logger.warning("the initializer %s is in no graph", tensor.name)

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read another value."""
        for i, name in enumerate(node.input):
            if name == old_input_name:
                node.input[i] = new_input_name

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let all readers of a value read another one."""
        for node in self.nodes():
            self.replace_node_input(node, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Rename an output of a node."""
        for i, name in enumerate(node.output):
            if name == old_output_name:
                node.output[i] = new_output_name

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Rename an output of the node of the main graph that makes it; readers stay."""
        for node in self.model.graph.node:
            self.replace_node_output(node, old_output_name, new_output_name)

    def rename_graph_output(self, old_name: str, new_name: str) -> None:
        """Rename an output of the model."""
        if new_name in self.output_name_to_node():
            raise RuntimeError(f"{new_name} exists in graph")
        output = self.find_graph_output(old_name)
        if output is not None:
            self.replace_input_of_all_nodes(old_name, new_name)
            self.replace_output_of_all_nodes(old_name, new_name)
            output.name = new_name

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """Return an input of the model by name."""
        return next((v for v in self.model.graph.input if v.name == input_name), None)

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """Return an output of the model by name."""
        return next((v for v in self.model.graph.output if v.name == output_name), None)

    def get_graph_inputs(self, current_node: NodeProto, recursive: bool = False) -> list[str]:
        """Return the names of model inputs that a node reads, or depends on."""
        nodes = [current_node]
        if recursive:
            nodes += self.get_parent_subgraph_nodes(current_node, [])
        names = dict.fromkeys(name for node in nodes for name in node.input)
        return [name for name in names if self.find_graph_input(name) is not None]

    def get_graph_inputs_excluding_initializers(self) -> list[ValueInfoProto]:
        """Return the inputs that have no default value."""
        return [v for v in self.model.graph.input if self.get_initializer(v.name) is None]

    def _declared(self, name: str) -> ValueInfoProto | TensorProto | None:
        graph = self.model.graph
        values = (*graph.value_info, *graph.input, *graph.output, *graph.initializer)
        return next((value for value in values if value.name == name), None)

    def get_dtype(
        self, name: str, symbolic_shape_helper: SymbolicShapeInferenceHelper | None = None
    ) -> int | None:
        """Return the element type of a value, as declared or inferred."""
        found = self._declared(name)
        if isinstance(found, TensorProto):
            return found.data_type
        if found is None and symbolic_shape_helper is not None:
            found = symbolic_shape_helper.known_vi_.get(name)
        return found.type.tensor_type.elem_type if isinstance(found, ValueInfoProto) else None

    def get_shape(
        self, name: str, symbolic_shape_helper: SymbolicShapeInferenceHelper | None = None
    ) -> list[int | str] | None:
        """Return the dims of a value, as declared or inferred."""
        found = self._declared(name)
        if isinstance(found, TensorProto):
            return list(found.dims)
        if found is None and symbolic_shape_helper is not None:
            found = symbolic_shape_helper.known_vi_.get(name)
        if not isinstance(found, ValueInfoProto) or not found.type.tensor_type.HasField("shape"):
            return None
        return [d.dim_param or d.dim_value for d in found.type.tensor_type.shape.dim]

    def create_node_name(self, op_type: str, name_prefix: str | None = None) -> str:
        """Return a name that no node has: a prefix, by default the op, and a number."""
        prefix = (name_prefix or op_type).removesuffix("_") + "_"
        if prefix not in self._suffixes:
            ends = [n.name[len(prefix) :] for n in self.nodes() if n.name.startswith(prefix)]
            self._suffixes[prefix] = max((int(e) for e in ends if e.isdecimal()), default=-1)
        self._suffixes[prefix] += 1
        return f"{prefix}{self._suffixes[prefix]}"

    def remove_cascaded_cast_nodes(self) -> None:
        """Let a Cast of a Cast read what the first one reads, which may round differently."""
        makers = self.output_name_to_node()
        for node in self.get_nodes_by_op_type("Cast"):
            parent = self.get_parent(node, 0, makers)
            if parent is not None and parent.op_type == "Cast":
                node.input[0] = parent.input[0]
        self.prune_graph()

    def remove_useless_cast_nodes(self) -> None:
        """Remove Casts of a type to itself."""
        shapes = self.infer_runtime_shape(update=True)
        nodes = self.get_nodes_by_op_type("Cast")
        self.remove_pass_through(
            node
            for node in nodes
            if (dtype := self.get_dtype(node.input[0], shapes))
            and dtype == self.get_dtype(node.output[0], shapes)
        )

    def remove_pass_through(self, nodes: Iterable[NodeProto]) -> None:
        """Remove nodes whose output is their first input, as far as the graphs' outputs allow."""
        outputs = self.get_graphs_output_names()
        kept = {*outputs, *self.get_graphs_input_names()}
        for node in list(nodes):
            source, target = node.input[0], node.output[0]
            if target not in outputs:
                self.replace_input_of_all_nodes(target, source)
            elif source in kept or len(self.input_name_to_nodes()[source]) > 1:
                continue
            else:
                self.replace_output_of_all_nodes(source, target)
            self.remove_node(node)

    def convert_model_float32_to_float16(self, cast_input_output: bool = True) -> None:
        """Convert the model to float16; an older name of `convert_float_to_float16`."""
        self.convert_float_to_float16(keep_io_types=cast_input_output)

    def convert_float_to_float16(
        self, use_symbolic_shape_infer: bool = True, **kwargs: Any
    ) -> None:
        """Convert the model to float16, by default with inputs and outputs in float32.

        Takes the options of `float16.convert_float_to_float16`; types are always inferred.
        """
        options = {name: kwargs[name] for name in _FLOAT16_OPTIONS if name in kwargs}
        options.setdefault("keep_io_types", True)
        self.initialize(convert_float_to_float16(self.model, **options))

    def change_graph_input_type(
        self, graph_input: ValueInfoProto, new_type: int
    ) -> tuple[NodeProto | None, list[NodeProto]]:
        """Give an input another type; return a Cast that is added, and those that are removed."""
        old_type = graph_input.type.tensor_type.elem_type
        if old_type == new_type:
            return None, []
        name = graph_input.name
        readers = self.input_name_to_nodes().get(name, [])
        others = [node for node in readers if node.op_type != "Cast"]
        added = None
        if others:
            node_name = self.create_node_name("Cast")
            added = self._cast(name, f"{node_name}_{name}", old_type, node_name, graph_input)
            for node in others:
                self.replace_node_input(node, name, added.output[0])
        removed = []
        for node in readers:
            is_same = node.op_type == "Cast" and self.get_node_attribute(node, "to") == new_type
            if is_same and self.find_graph_output(node.output[0]) is None:
                self.replace_input_of_all_nodes(node.output[0], name)
                removed.append(node)
        self.remove_nodes(removed)
        graph_input.type.tensor_type.elem_type = new_type
        return added, removed

    def change_graph_output_type(
        self, graph_output: ValueInfoProto, new_type: int
    ) -> NodeProto | None:
        """Give an output another type; return the Cast that is added."""
        if graph_output.type.tensor_type.elem_type == new_type:
            return None
        node_name = self.create_node_name("Cast")
        inner = f"{node_name}_{graph_output.name}"
        self.replace_input_of_all_nodes(graph_output.name, inner)
        self.replace_output_of_all_nodes(graph_output.name, inner)
        info = self.model.graph.value_info.add()
        info.CopyFrom(graph_output)
        info.name = inner
        cast = helper.make_node("Cast", [inner], [graph_output.name], name=node_name, to=new_type)
        self.model.graph.node.append(cast)
        graph_output.type.tensor_type.elem_type = new_type
        return cast

    def _cast(
        self, source: str, target: str, dtype: int, name: str, like: ValueInfoProto
    ) -> NodeProto:
        """Add a Cast whose result is declared like a value."""
        info = self.model.graph.value_info.add()
        info.CopyFrom(like)
        info.name = target
        node = helper.make_node("Cast", [source], [target], name=name, to=dtype)
        self.model.graph.node.append(node)
        return node

    def remove_unused_constant(self) -> None:
        """Remove Constant nodes that nothing reads."""
        used = {*self.input_name_to_nodes(), *self.get_graphs_output_names()}
        nodes = self.get_nodes_by_op_type("Constant")
        self.remove_nodes(node for node in nodes if used.isdisjoint(node.output))

    def prune_graph(
        self, outputs: Sequence[str] | None = None, allow_remove_graph_inputs: bool = True
    ) -> None:
        """Remove the nodes that no output depends on, and what only they read.

        With `outputs`, the model has only these from now on.
        """
        prune(self.model.graph, outputs)
        self.update_graph(allow_remove_graph_inputs=allow_remove_graph_inputs)

    def update_graph(self, verbose: bool = False, allow_remove_graph_inputs: bool = False) -> None:
        """Remove initializers, Constant nodes and, if allowed, inputs that nothing reads."""
        self.remove_unused_constant()
        remove_unused(self.model.graph, allow_remove_graph_inputs)

    def is_safe_to_fuse_nodes(
        self,
        nodes_to_remove: Collection[NodeProto],
        keep_outputs: Collection[str],
        input_name_to_nodes: Readers,
        output_name_to_node: Makers,
    ) -> bool:
        """Return whether only nodes that are removed read what they make, but some outputs."""
        names = (name for node in nodes_to_remove for name in node.output)
        return all(
            reader in nodes_to_remove
            for name in names
            if name not in keep_outputs
            for reader in input_name_to_nodes.get(name, [])
        )

    @staticmethod
    def graph_topological_sort(graph: GraphProto, is_deterministic: bool = False) -> None:
        """Sort the nodes of a graph; those that could be in any order by name, if asked for."""
        sort_graph(graph, is_deterministic)

    def topological_sort(
        self, is_deterministic: bool = False, dump_model_on_failure: bool = False
    ) -> None:
        """Sort the nodes of the main graph."""
        sort_graph(self.model.graph, is_deterministic)

    @staticmethod
    def save(
        model: ModelProto,
        output_path: str,
        save_as_external_data: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Write a model, with its weights in a file of their own if asked for, or each in one."""
        path = os.fspath(output_path)
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        imported = {entry.domain for entry in model.opset_import}
        if _MICROSOFT not in imported and any(n.domain == _MICROSOFT for n in model.graph.node):
            model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
        if save_as_external_data and not all_tensors_to_one_file:
            onnx.save(
                model,
                path,
                save_as_external_data=True,
                all_tensors_to_one_file=False,
                size_threshold=size_threshold,
                convert_attribute=convert_attribute,
            )
            return
        data_file = f"{os.path.basename(path)}.data" if save_as_external_data else None
        save_proto(model, path, data_file, size_threshold)

    def save_model_to_file(
        self,
        output_path: str,
        use_external_data_format: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Sort the nodes, and write the model."""
        self.topological_sort()
        options = (all_tensors_to_one_file, size_threshold, convert_attribute)
        self.save(self.model, output_path, use_external_data_format, *options)

    def get_opset_version(self) -> int:
        """Return the opset of ai.onnx."""
        for entry in self.model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                return int(entry.version)
        raise RuntimeError("ONNX model has no opset for default domain")

    def get_operator_statistics(self, include_domain: bool = False) -> dict[str, int]:
        """Return the number of nodes by op."""
        counts: dict[str, int] = {}
        for node in self.nodes():
            prefix = f"{node.domain}:" if include_domain and node.domain else ""
            counts[prefix + node.op_type] = counts.get(prefix + node.op_type, 0) + 1
        return counts

    @staticmethod
    def has_same_value(tensor1: TensorProto, tensor2: TensorProto, *caches: object) -> bool:
        """Return whether two tensors have equal types, shapes and elements."""
        if (tensor1.data_type, list(tensor1.dims)) != (tensor2.data_type, list(tensor2.dims)):
            return False
        if tensor1.HasField("raw_data") and tensor2.HasField("raw_data"):
            return tensor1.raw_data == tensor2.raw_data
        first, second = map(onnx.numpy_helper.to_array, (tensor1, tensor2))
        return np.array_equal(first, second)

    def remove_duplicated_initializer(self, cache: object = None) -> None:
        """Let initializers of the main graph with equal values be one."""
        kept: dict[Any, list[TensorProto]] = {}
        for tensor in self.model.graph.initializer:
            equals = kept.setdefault((tensor.data_type, tuple(tensor.dims)), [])
            same = next((t for t in equals if self.has_same_value(t, tensor)), None)
            if same is None:
                equals.append(tensor)
            elif self.find_graph_output(tensor.name) is None:
                self.replace_input_of_all_nodes(tensor.name, same.name)
        self.update_graph()

    def add_prefix_to_names(self, prefix: str) -> None:
        """Prefix all names of the main graph but those of inputs and outputs."""
        graph = self.model.graph
        kept = {"", *(v.name for v in (*graph.input, *graph.output))}
        for named in (*graph.initializer, *graph.value_info):
            if named.name not in kept:
                named.name = prefix + named.name
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [name if name in kept else prefix + name for name in names]

    def clean_shape_infer(self) -> None:
        """Remove the declared types of intermediate values."""
        del self.model.graph.value_info[:]

    def use_float16(self) -> bool:
        """Return whether a tensor of the model is float16."""
        half = TensorProto.FLOAT16
        for graph in self.graphs():
            values = (*graph.input, *graph.output, *graph.value_info)
            if any(v.type.tensor_type.elem_type == half for v in values):
                return True
            if any(tensor.data_type == half for tensor in graph.initializer):
                return True
            casts = (n for n in graph.node if n.op_type == "Cast")
            if any(self.get_node_attribute(n, "to") == half for n in casts):
                return True
        return False
