"""Converts a graph from float32 to float16 or bfloat16, with as few Casts as its types need.

Nodes are visited in topological order. A node reads each float32 input in the type that the plan
chose for it; a Cast is added, once per value and type, where the value has another one. Inference
then says what the node makes, so an op that returns float32 whatever it reads needs no exception.
"""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import mutable, replace
from sardonyx.convert.half_plan import HalfOptions, HalfPlan, is_float
from sardonyx.convert.inference import infer_again
from sardonyx.convert.rounded import ClampedCounts, RoundedConst
from sardonyx.errors import ShapeError
from sardonyx.graph.const import Const
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32, DType
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.load.model import Model
from sardonyx.ops.builder import Builder

_TYPES: Final = ("to", "dtype", "output_datatype", "output_dtype")  # attributes that name a type


@mutable
class HalfReport:
    """The result of the conversion."""

    rounding: ClampedCounts
    n_converted: int = 0  # nodes
    n_kept: int = 0  # nodes that compute in float32
    n_casts: int = 0  # that were added


def to_half(model: Model, options: HalfOptions) -> tuple[Model, HalfReport]:
    """Return the model with its graph, which is inferred, converted in place."""
    graph = model.graph
    kept = {v for v, d in zip(graph.outputs, model.outputs, strict=True) if options.keeps(d.name)}
    plan = HalfPlan(graph, options, kept.__contains__)
    converter = _Converter(plan, options)
    converter.inputs(graph)
    converter.nodes(graph)
    outputs = []
    for value, declared in zip(graph.outputs, model.outputs, strict=True):
        if isinstance(declared.fact, Fact) and declared.fact.dtype is F32:
            dtype = F32 if options.keeps(declared.name) else options.dtype
            outputs.append(converter.read(value, dtype))
        else:
            outputs.append(value)
    graph.set_outputs(outputs)
    graph.sort()
    infer_again(graph)
    facts = [_declared(d.fact, v) for d, v in zip(model.outputs, graph.outputs, strict=True)]
    declared_outputs = [replace(d, fact=f) for d, f in zip(model.outputs, facts, strict=True)]
    return replace(model, outputs=declared_outputs), converter.report


def _declared(fact: AnyFact | None, value: Value) -> AnyFact | None:
    """Return a declared fact with the element type that the value has now."""
    if isinstance(fact, Fact) and isinstance(value.fact, Fact):
        return fact.with_dtype(value.fact.dtype)
    return fact


class _Converter:
    """Converts one model's graph and its bodies."""

    def __init__(self, plan: HalfPlan, options: HalfOptions) -> None:
        self._plan = plan
        self._options = options
        self.report = HalfReport(ClampedCounts())
        self._casts: dict[tuple[Value, DType], Value] = {}
        self._rounded: dict[tuple[int, DType], Value] = {}
        self._inputs: dict[Value, Graph] = {}  # the graph of an input

    def inputs(self, graph: Graph) -> None:
        """Give the model's inputs their types."""
        self._inputs.update(dict.fromkeys(graph.inputs, graph))
        for value in graph.inputs:
            if is_float(value) and not self._options.keeps(value.name):
                value.fact = value.tensor.with_dtype(self._options.dtype)
                if (default := graph.defaults.get(value)) is not None:
                    graph.set_default(value, self._round(default, self._options.dtype))

    def nodes(self, graph: Graph) -> None:
        """Convert the nodes of a graph whose inputs have their types."""
        for node in graph.sorted_nodes():
            self._node(graph, node)

    def _node(self, graph: Graph, node: Node) -> None:
        touches = any(map(is_float, node.outputs)) or any(self._plan.slots[node])
        is_kept = self._plan.is_kept(node)
        if touches:
            self.report.n_kept += is_kept
            self.report.n_converted += not is_kept
        for slot, value in enumerate(node.inputs):
            wanted = self._plan.wanted(node, slot)
            if value is not None and wanted is not None:
                graph.set_input(node, slot, self.read(value, wanted, node))
        for _, body in node.subgraphs:
            self._body(body, is_kept)
        if not is_kept and any(map(is_float, node.outputs)):
            self._set_types(node)
        try:
            infer_node(graph.scope, node)
        except ShapeError:
            if graph.owner is None:
                raise
            return  # sizes may not fit in the branch of an If that never runs
        self._drop_cast(graph, node)

    def _body(self, body: Graph, is_kept: bool) -> None:
        """Convert a body; that of a node in float32 reads and returns float32."""
        self._inputs.update(dict.fromkeys(body.inputs, body))
        returned = [is_float(value) for value in body.outputs]
        for value in body.inputs:
            if is_float(value) and not is_kept:
                value.fact = value.tensor.with_dtype(self._options.dtype)
        self.nodes(body)
        dtype = F32 if is_kept else self._options.dtype
        pairs = zip(body.outputs, returned, strict=True)
        body.set_outputs([self.read(v, dtype) if was_float else v for v, was_float in pairs])
        body.sort()

    def _set_types(self, node: Node) -> None:
        """Change attributes that name float32 as the type of an output."""
        half = self._options.dtype
        for name in _TYPES:
            if node.op.attr_kinds.get(name) == "int" and node.attrs.get(name) == F32.onnx:
                node.attrs[name] = half.onnx
        filler = node.attrs.get("value")
        if isinstance(filler, Const) and filler.dtype is F32:
            node.attrs["value"] = self._round(filler, half)

    def _drop_cast(self, graph: Graph, node: Node) -> None:
        """Remove a Cast of the model's that has become one of a type to itself."""
        source = node.inputs[0] if node.op.key == ("", "Cast") else None
        if source is None or source.tensor.dtype is not node.outputs[0].tensor.dtype:
            return
        graph.replace(node.outputs[0], source)
        graph.remove(node)

    def read(self, value: Value, dtype: DType, reader: Node | None = None) -> Value:
        """Return a value in a type: itself, or the result of a Cast, which readers share."""
        forces = self._options.forces_weights and reader is not None
        const = value.const
        if const is not None and const.dtype is F32 and dtype is not self._options.dtype and forces:
            value = self._constant(value, const, self._options.dtype)
        elif value.tensor.dtype is dtype:
            return value
        elif const is not None:
            return self._constant(value, const, dtype)
        cast = self._casts.get((value, dtype))
        if cast is None:
            home = value.node.graph if value.node is not None else self._inputs.get(value)
            assert home is not None or value.is_const
            graph = home if home is not None else self._home(reader)
            cast = Builder(graph, graph.scope).Cast(value, to=dtype.onnx)
            cast.name = f"{value.name}_{dtype.name}" if value.name else ""
            self._casts[value, dtype] = cast
            self.report.n_casts += 1
        return cast

    @staticmethod
    def _home(reader: Node | None) -> Graph:
        """Return the main graph around a node, where the Cast of a constant goes."""
        assert reader is not None
        graph = reader.graph
        while graph.owner is not None:
            graph = graph.owner.graph
        return graph

    def _constant(self, value: Value, const: Const, dtype: DType) -> Value:
        key = id(const), dtype
        if key not in self._rounded:
            self._rounded[key] = constant(self._round(const, dtype), value.name)
        return self._rounded[key]

    def _round(self, const: Const, dtype: DType) -> Const:
        return RoundedConst(const, dtype, self._options.within, self.report.rounding)
