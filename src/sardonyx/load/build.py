"""Builds the graph from records: names become values, old nodes upgraded, functions expanded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sardonyx._native import (
    AttributeRecord,
    FunctionRecord,
    GraphRecord,
    NodeRecord,
    TensorRecord,
)
from sardonyx.base.records import frozen, mutable
from sardonyx.errors import InvalidGraph, NotImplemented, SardonyxError, as_sardonyx_error
from sardonyx.graph.const import Const
from sardonyx.graph.constant import constant
from sardonyx.graph.dim import same
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, ONNX, TRAINING, Op
from sardonyx.load.annotations import annotations_of
from sardonyx.load.attributes import Attributes, fits
from sardonyx.load.constants import constant_node
from sardonyx.load.order import in_order
from sardonyx.load.tensor import Tensors
from sardonyx.load.types import Dims, fact_of, shape_of
from sardonyx.load.upgrade import OldNode, Rule, find
from sardonyx.ops import lookup, names
from sardonyx.ops.builder import Builder

MAX_DEPTH: Final = 64  # of functions that call functions, and of bodies in bodies


class Names:
    """The values that a scope can name: its own, then those of the scopes around it."""

    __slots__ = ("own", "parent", "prefix")

    def __init__(self, parent: Names | None = None, prefix: str = "") -> None:
        self.own: dict[str, Value] = {}
        self.parent = parent
        self.prefix = prefix  # of the names that values keep: a function is expanded many times

    def find(self, name: str) -> Value | None:
        """The value with a name, here or further out."""
        scope: Names | None = self
        while scope is not None:
            value = scope.own.get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None

    def define(self, name: str, value: Value) -> None:
        """Gives a value its name; a second one of that name is an error."""
        if name in self.own:
            raise InvalidGraph(
                f"the name {name!r} is given twice", hint="every value needs a name of its own"
            )
        self.own[name] = value
        value.name = value.name or self.prefix + name


@mutable
class Call:
    """What nodes may refer to: opsets, and the attributes of the function around them."""

    opsets: dict[str, int]
    attributes: dict[str, AttributeRecord] | None = None
    depth: int = 0
    prefix: str = ""
    annotations: tuple[int, bool] = (0, False)


@frozen
class Limits:
    """How much the expansion of functions may make: nodes, and bytes of their names and tensors."""

    nodes: int
    bytes: int = 0  # 0: any number


class GraphBuilder:
    """Builds one model's graphs."""

    def __init__(
        self,
        tensors: Tensors,
        functions: Iterable[FunctionRecord],
        dims: Dims,
        constant_inputs: bool,
        limits: Limits,
    ) -> None:
        self._tensors = tensors
        self._functions = {(_domain(f.domain), f.name, f.overload): f for f in functions}
        self._dims = dims
        self._constant_inputs = constant_inputs
        self._attributes = Attributes(tensors, _no_body)  # of nodes without bodies
        self._limits = limits
        self._expanded = 0  # nodes that functions have become
        self._expanded_bytes = 0
        self._n_calls = 0
        self.asks_for_gradients = False

    def graph(self, record: GraphRecord, call: Call, outer: Names | None = None) -> Graph:
        """One graph: initializers, inputs, nodes, outputs."""
        if call.depth > MAX_DEPTH:
            raise InvalidGraph(f"bodies are nested more than {MAX_DEPTH} deep")
        graph, scope = Graph(record.name), Names(outer)
        initializers = record.initializers
        constants = {t.name: self._tensors.initializer(t) for t in initializers}
        if len(constants) != len(initializers):
            raise InvalidGraph("two initializers have the same name", graph=record.name)
        for sparse in record.sparse_initializers:
            constants[sparse.values.name] = self._tensors.dense(sparse)
        for info in record.inputs:
            default = constants.get(info.name)
            if default is not None and self._constant_inputs:
                continue
            value = Value(info.name, fact_of(info.type, self._dims))
            constants.pop(info.name, None)
            if default is not None:
                value.fact = _overridable(value.fact, default)
            elif value.fact is None and outer is None:
                raise InvalidGraph(f"the input {info.name!r} has no type")
            graph.add_input(value, default)
            scope.define(info.name, value)
        for name, held in constants.items():
            scope.define(name, constant(held, name))
        self._nodes(graph, in_order(record), scope, call)
        outputs = record.outputs
        declared = None if outer is None else [shape_of(o.type, self._dims) for o in outputs]
        graph.set_outputs([_defined(scope, o.name, record.name) for o in outputs], declared)
        return graph

    def _nodes(self, graph: Graph, nodes: Sequence[NodeRecord], scope: Names, call: Call) -> None:
        if call.attributes is not None:
            self._count(nodes)
        for record in nodes:
            inputs: list[Value | None] = []
            for name in record.inputs:
                value = scope.find(name) if name else None
                if name and value is None:
                    raise InvalidGraph(
                        f"nothing makes the value {name!r}", node=_shown(record), graph=graph.name
                    )
                inputs.append(value)
            try:
                self._node(graph, record, inputs, scope, call)
            except SardonyxError as error:
                raise error.at(node=_shown(record)) from None

    def _node(
        self, graph: Graph, record: NodeRecord, inputs: list[Value | None], scope: Names, call: Call
    ) -> None:
        domain, outputs = _domain(record.domain), record.outputs
        while outputs and not outputs[-1]:
            outputs.pop()
        while inputs and inputs[-1] is None:
            inputs.pop()
        records = _bind(record.attributes, call)
        function = self._functions.get((domain, record.op_type, record.overload))
        if function is not None:
            made = self._expand(graph, function, (record, records), inputs, call)
        elif record.op_type == "Constant" and domain == ONNX:
            made = [constant(constant_node(self._attributes, records))]
        else:
            made = self._primitive(graph, record, records, inputs, (scope, call))
        for name, value in zip(outputs, made, strict=False):
            if name:
                if function is not None and value.node is not None:
                    value.name = scope.prefix + name
                scope.define(name, value)

    def _primitive(
        self,
        graph: Graph,
        record: NodeRecord,
        records: dict[str, AttributeRecord],
        inputs: list[Value | None],
        where: tuple[Names, Call],
    ) -> Sequence[Value]:
        """A node of a declared op, in today's form."""
        scope, call = where
        domain, op_type, n_outputs = _domain(record.domain), record.op_type, len(record.outputs)
        version = call.opsets.get(domain)
        if version is None:
            raise InvalidGraph(
                f"the model uses {domain or 'ai.onnx'} and does not import its opset",
                hint="add it to opset_import",
            )
        attributes = self._attributes
        if record.has_bodies:
            inner = Call(call.opsets, call.attributes, call.depth + 1, call.prefix)
            attributes = Attributes(self._tensors, lambda body: self.graph(body, inner, scope))
        op = lookup(domain, op_type) if domain != INTERNAL else None  # those that passes make
        rule = find(domain, op_type, version) if op is None or version < op.since else None
        name, annotations = call.prefix + record.name, annotations_of(record, call.annotations)
        if rule is not None:
            old = attributes.before(op, op_type, version, records)
            builder = Builder(graph)
            made = _upgraded(
                rule, builder, OldNode(op_type, version, tuple(inputs), old, n_outputs)
            )
            for node in builder.made:
                node.name, node.annotations = name, annotations
            return made
        if op is None and (domain, op_type) == (INTERNAL, "Packed"):
            raise InvalidGraph(
                "the model's graph and weights are in its pack, the file beside it that has its "
                "name and .pack: it is missing, not looked for, or a warning says what is wrong",
                hint="bring the pack, or use the model that it was made of",
            )
        if op is None and (domain, op_type) == (TRAINING, "Gradient"):
            from sardonyx.load.gradient_nodes import add_asked  # few models ask for gradients

            self.asks_for_gradients = True
            given = {k: attributes.raw(v) for k, v in records.items()}
            node = add_asked(graph, scope.find, given, inputs, n_outputs)
            node.name, node.annotations = name, annotations
            return node.outputs
        if op is None:
            raise _unknown(domain, op_type, version)
        attrs = attributes.of(op, records)
        node = self._add(graph, op, inputs, attrs, n_outputs, name)
        node.annotations = annotations
        return node.outputs

    def _add(
        self,
        graph: Graph,
        op: Op,
        inputs: list[Value | None],
        attrs: Any,
        n_outputs: int,
        name: str,
    ) -> Node:
        if n_outputs > len(op.outputs) and not (op.outputs and op.outputs[-1].variadic):
            raise InvalidGraph(
                f"{op} has {len(op.outputs)} outputs, and the node names {n_outputs}"
            )
        return graph.add(op, inputs, attrs, max(n_outputs, op.n_made), name)

    def _count(self, nodes: Sequence[NodeRecord]) -> None:
        limits = self._limits
        self._expanded += len(nodes)
        if self._expanded > limits.nodes:
            raise InvalidGraph(
                f"functions expand without end: to more than {limits.nodes} nodes",
                hint="session.function_expansion_node_limit sets the limit",
            )
        if not limits.bytes:
            return
        self._expanded_bytes += sum(map(_bytes_of, nodes))
        if self._expanded_bytes > limits.bytes:
            raise InvalidGraph(
                f"functions expand to more than {limits.bytes} bytes",
                hint="session.function_expansion_byte_limit sets the limit",
            )

    def _expand(
        self,
        graph: Graph,
        function: FunctionRecord,
        called: tuple[NodeRecord, dict[str, AttributeRecord]],
        inputs: list[Value | None],
        call: Call,
    ) -> Sequence[Value]:
        """The nodes of a model-local function in place of a call of it."""
        record, given = called
        if call.depth > MAX_DEPTH:
            raise InvalidGraph(
                f"the function {function.domain}.{function.name} expands without end: more than "
                f"{MAX_DEPTH} calls deep"
            )
        self._n_calls += 1
        if len(inputs) > len(function.inputs):
            raise InvalidGraph(
                f"the function {function.name} takes {len(function.inputs)} inputs, "
                f"not {len(inputs)}"
            )
        attributes = {a.name: a for a in function.attribute_protos} | given
        prefix = f"{call.prefix}{record.name or function.name}.{self._n_calls}/"
        scope = Names(prefix=prefix)
        for name, value in zip(function.inputs, inputs, strict=False):
            if value is not None:
                scope.own[name] = value
        absent = set(function.inputs) - scope.own.keys()
        opsets = {_domain(d): v for d, v in function.opset_imports} or call.opsets
        annotations = annotations_of(record, call.annotations)
        inner = Call(opsets, attributes, call.depth + 1, prefix, annotations)
        self._nodes(graph, _without(in_order(function), absent), scope, inner)
        return [_defined(scope, o, function.name) for o in function.outputs]


class _Masked:
    """A node record with some of its inputs left out, as a function call left them out."""

    __slots__ = ("_record", "inputs")

    def __init__(self, record: NodeRecord, absent: set[str]) -> None:
        self._record = record
        self.inputs = ["" if name in absent else name for name in record.inputs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def _without(nodes: Sequence[NodeRecord], absent: set[str]) -> Sequence[Any]:
    return nodes if not absent else [_Masked(n, absent) for n in nodes]


def _bind(records: Iterable[AttributeRecord], call: Call) -> dict[str, AttributeRecord]:
    """A node's attributes by name; references to the function's own are looked up, or left out."""
    bound: dict[str, AttributeRecord] = {}
    for record in records:
        name, reference = record.name, record.ref_attr_name
        if name in bound:
            raise InvalidGraph(f"the attribute {name} is given twice")
        if not reference:
            bound[name] = record
        elif call.attributes is None:
            raise InvalidGraph(f"the attribute {name} refers to {reference} outside any function")
        elif reference in call.attributes:
            bound[name] = call.attributes[reference]
    return bound


def _upgraded(rule: Rule, builder: Builder, old: OldNode) -> Sequence[Value]:
    """What an upgrade rule makes of a node; attributes that the new op lacks are refused."""
    try:
        made = rule(builder, old)
    except SardonyxError:
        raise
    except Exception as error:
        doing = f"bringing {old.op_type} of opset {old.version} to the newest"
        raise as_sardonyx_error(error, doing) from error
    for node in builder.made:
        extra = node.attrs.keys() - node.op.attrs.keys()
        if extra:
            raise InvalidGraph(
                f"{old.op_type} of opset {old.version} has no attribute {min(extra)}"
            )
        if missing := node.op.required_attrs - node.attrs.keys():
            raise InvalidGraph(
                f"{old.op_type} of opset {old.version} needs the attribute {min(missing)}"
            )
        for name, value in node.attrs.items():
            if not fits(node.op.attrs[name], value):
                raise InvalidGraph(
                    f"attribute {name} of {node.op} is of type {node.op.attr_kinds[name]}, "
                    f"and the node gives {value!r:.80}"
                )
        node.attrs.update((n, int(node.attrs[n] != 0)) for n in node.op.flags & node.attrs.keys())
    return made if isinstance(made, (tuple, list)) else (made,)


def _overridable(declared: AnyFact | None, default: Const) -> Fact:
    """An input with a default: of the declared shape, which the default must fit."""
    if not isinstance(declared, Fact) or declared.shape is None:
        return Fact(default.dtype, default.shape)
    fits = len(declared.shape) == len(default.shape) and all(
        same(a, b) is not False for a, b in zip(declared.shape, default.shape, strict=True)
    )
    if declared.dtype is not default.dtype or not fits:
        given = f"{default.dtype}{list(default.shape)}"
        raise InvalidGraph(f"an input is declared as {declared}, and its default is {given}")
    return declared


def _defined(scope: Names, name: str, graph: str) -> Value:
    value = scope.find(name)
    if value is None:
        raise InvalidGraph(f"nothing makes the output {name!r}", graph=graph)
    return value


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _shown(record: NodeRecord) -> str:
    made = next(iter(record.outputs), "")
    return f"{record.name or 'making ' + repr(made)} ({record.op_type})"


def _no_body(record: GraphRecord) -> Graph:
    raise InvalidGraph(f"a constant has no body, and here is {record.name!r}")


# What onnxruntime makes for one machine, and saves as if it were a model for all.
_MADE_FOR_ONE: Final = {
    "com.microsoft.nchwc": "has a memory layout for the CPU that the model was saved on",
    "com.ms.internal.nhwc": "has a memory layout for the device that the model was saved for",
    "com.microsoft.EPContext": "holds a graph that was compiled for one device",
}


def _unknown(domain: str, op_type: str, version: int) -> NotImplemented:
    """The error for an op that is not here: what it is, and what to do."""
    name = f"{domain or 'ai.onnx'}.{op_type}"
    reason = _MADE_FOR_ONE.get(domain) or _MADE_FOR_ONE.get(name)
    if reason is not None:
        hint = "save it with ORT_ENABLE_EXTENDED at most, or use the model that it was made of"
        return NotImplemented(f"the op {name} {reason}", hint=hint)
    import difflib  # only a wrong name needs it

    near = difflib.get_close_matches(op_type, names(domain), 1)
    hint = "declare it with sardonyx.custom_op" if domain else "export without it"
    hint = f"is {near[0]} meant? Else {hint}" if near else hint
    if not names(domain):
        what = f"the op {name} is not supported: nothing here knows the domain {domain}"
        return NotImplemented(what, hint=hint)
    return NotImplemented(f"the op {name} of opset {version} is not implemented", hint=hint)


def _bytes_of(node: NodeRecord) -> int:
    """The names and tensors of a node, roughly as large as in its file."""
    values = (a.value for a in node.attributes)
    tensors = sum(v.length for v in values if isinstance(v, TensorRecord))
    texts = (node.name, node.op_type, node.domain, *node.inputs, *node.outputs)
    return tensors + sum(map(len, texts))
