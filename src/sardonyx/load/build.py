"""Builds the graph from protobuf records: resolves names, upgrades ops, inlines functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from sardonyx._native import AttributeRecord, FunctionRecord, GraphRecord, NodeRecord, TensorRecord
from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.errors import (
    InvalidGraph,
    NotImplemented,
    SardonyxError,
    UnknownOp,
    as_sardonyx_error,
)
from sardonyx.graph.const import Const
from sardonyx.graph.constant_values import constant
from sardonyx.graph.fact import AnyFact, Fact, refines
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING, Op
from sardonyx.load.attributes import Attributes, annotations_of, constant_node, fits
from sardonyx.load.order import in_order
from sardonyx.load.tensor import Tensors
from sardonyx.load.tolerated import give_latest, read_inputs
from sardonyx.load.types import Dims, fact_of, shape_of
from sardonyx.load.upgrade import OldNode, Rule, find
from sardonyx.ops import lookup, names
from sardonyx.ops.builder import Builder

MAX_DEPTH: Final = 64  # of nested function calls and of nested bodies
NEWEST: Final = {ONNX: 28, ML: 5}  # newer opsets may change the meaning of ops
# Domains that a model may use without importing them, with the version that is meant then.
_ASSUMED: Final = {**NEWEST, MICROSOFT: 1, PREVIEW: 1, TRAINING: 1}

_GRADIENT_REQUEST: Final = (GRADIENT, "GradientRequest")


class NameScope:
    """The values that nodes of a graph or function can name; bodies also see the scopes outside."""

    __slots__ = ("parent", "prefix", "values")

    def __init__(self, parent: NameScope | None = None, prefix: str = "") -> None:
        self.values: dict[str, Value] = {}
        self.parent = parent
        self.prefix = prefix  # of the values' names: a function is expanded many times

    def find(self, name: str) -> Value | None:
        """Return the value with a name, from the innermost scope that has one."""
        scope: NameScope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None

    def define(self, name: str, value: Value) -> None:
        """Name a value; two values of one name are an error."""
        if name in self.values:
            raise InvalidGraph(
                f"the name {name!r} is given twice", hint="every value needs a name of its own"
            )
        self.values[name] = value
        value.name = value.name or self.prefix + name


@frozen
class Context:
    """The surroundings of a node: visible values, opsets, and the function call it is part of."""

    names: NameScope
    opsets: dict[str, int]
    attributes: dict[str, AttributeRecord] | None = None  # of the function call, if in one
    depth: int = 0
    prefix: str = ""
    annotations: tuple[int, bool] = (0, False)


@frozen
class ExpansionLimits:
    """Limits on function expansion: nodes, and bytes of their names and tensors."""

    nodes: int
    bytes: int = 0  # 0: unlimited


class GraphBuilder:
    """Builds the graph of one model."""

    def __init__(
        self,
        tensors: Tensors,
        functions: Iterable[FunctionRecord],
        dims: Dims,
        constant_inputs: bool,
        limits: ExpansionLimits,
    ) -> None:
        self._tensors = tensors
        self._functions = {(_domain(f.domain), f.name, f.overload): f for f in functions}
        self._dims = dims
        self._constant_inputs = constant_inputs
        self._attributes = Attributes(tensors, _no_body)  # reads attributes of nodes without bodies
        self._limits = limits
        self._expanded = 0  # nodes from function expansion so far
        self._expanded_bytes = 0
        self._n_calls = 0
        self._assumed: set[str] = set()  # domains whose opset the model does not import
        self.has_gradient_nodes = False

    def graph(self, record: GraphRecord, context: Context) -> Graph:
        """Build one graph or body: initializers, inputs, nodes, outputs."""
        if context.depth > MAX_DEPTH:
            raise InvalidGraph(f"bodies are nested more than {MAX_DEPTH} deep")
        graph, names = Graph(record.name), context.names
        is_body = names.parent is not None
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
            elif value.fact is None and not is_body:
                raise InvalidGraph(f"the input {info.name!r} has no type")
            graph.add_input(value, default)
            names.define(info.name, value)
        for name, const in constants.items():
            names.define(name, constant(const, name))
        self._nodes(graph, in_order(record), context)
        outputs = record.outputs
        declared = [shape_of(o.type, self._dims) for o in outputs] if is_body else None
        graph.set_outputs([_defined(names, o.name, record.name) for o in outputs], declared)
        return graph

    def _nodes(self, graph: Graph, nodes: Sequence[NodeRecord], context: Context) -> None:
        if context.attributes is not None:
            self._count_expanded(nodes)
        has_constants = (ONNX, "Constant", "") not in self._functions
        for record in nodes:
            # Fast path: exporters write hundreds of Constant nodes.
            plain = record.constant if has_constants else None
            if plain is not None:
                self._constant(graph, record, *plain, context.names)
                continue
            inputs: list[Value | None] = []
            for name in record.inputs:
                value = context.names.find(name) if name else None
                if name and value is None:
                    raise InvalidGraph(
                        f"nothing makes the value {name!r}", node=_shown(record), graph=graph.name
                    )
                inputs.append(value)
            try:
                self._node(graph, record, inputs, context)
            except SardonyxError as error:
                raise error.add_context(node=_shown(record)) from None

    def _constant(
        self, graph: Graph, record: NodeRecord, name: str, tensor: TensorRecord, names: NameScope
    ) -> None:
        try:
            value = constant(self._tensors.const(tensor))
            give_latest(graph, names.values, name, value)
            names.define(name, value)
        except SardonyxError as error:
            raise error.add_context(node=_shown(record)) from None

    def _node(
        self, graph: Graph, record: NodeRecord, inputs: list[Value | None], context: Context
    ) -> None:
        domain, outputs = _domain(record.domain), record.outputs
        # Trailing absent inputs and outputs are as good as none.
        while outputs and not outputs[-1]:
            outputs.pop()
        while inputs and inputs[-1] is None:
            inputs.pop()
        if not inputs and not outputs:
            logger.warning("%s has neither inputs nor outputs: it is ignored", _shown(record))
            return
        attributes = _resolved(record.attributes, context)
        function = self._functions.get((domain, record.op_type, record.overload))
        if function is not None:
            values = self._expand(graph, function, record, attributes, inputs, context)
        elif record.op_type == "Constant" and domain == ONNX:
            values = [constant(constant_node(self._attributes, attributes))]
            give_latest(graph, context.names.values, outputs[0], values[0])
        else:
            values = self._primitive(graph, record, attributes, inputs, context)
        names = context.names
        for name, value in zip(outputs, values, strict=False):
            if name:
                if function is not None and value.node is not None:
                    value.name = names.prefix + name
                names.define(name, value)

    def _primitive(
        self,
        graph: Graph,
        record: NodeRecord,
        records: dict[str, AttributeRecord],
        inputs: list[Value | None],
        context: Context,
    ) -> Sequence[Value]:
        """Add a node of a declared op, upgraded to the newest opset."""
        domain, op_type, n_outputs = _domain(record.domain), record.op_type, len(record.outputs)
        version = self._imported_version(domain, context)
        inputs = read_inputs(domain, op_type, inputs, records)
        attributes = self._attributes_in(record, context)
        # Models cannot have ops of the internal domain, which only passes introduce.
        op = lookup(domain, op_type) if domain != INTERNAL else None
        rule = find(domain, op_type, version) if op is None or version < op.since else None
        if rule is not None:
            attrs = attributes.before(op, op_type, version, records)
            old = OldNode(op_type, version, tuple(inputs), attrs, n_outputs)
            values, nodes = _upgraded(rule, graph, old)
            self.has_gradient_nodes |= any(n.op.key == _GRADIENT_REQUEST for n in nodes)
        elif op is not None:
            attrs = attributes.of(op, records)
            _check_outputs(op, n_outputs)
            nodes = [graph.add(op, inputs, attrs, max(n_outputs, op.n_required_outputs))]
            values = nodes[0].outputs
        elif (domain, op_type) == (TRAINING, "Gradient"):
            nodes = [self._gradient(graph, records, inputs, n_outputs, context.names)]
            values = nodes[0].outputs
        else:
            raise _unknown(domain, op_type, version)
        if (domain, op_type) == (ONNX, "Loop"):
            from sardonyx.load.upgrade.control import with_declared_counter  # few models loop

            with_declared_counter(nodes[0].attrs["body"])
        annotations = annotations_of(record, context.annotations)
        for node in nodes:
            node.name, node.annotations = context.prefix + record.name, annotations
        return values

    def _attributes_in(self, record: NodeRecord, context: Context) -> Attributes:
        """Return a reader of a node's attributes."""
        if not record.has_bodies:
            return self._attributes
        return Attributes(self._tensors, lambda body: self._body(body, context))

    def _imported_version(self, domain: str, context: Context) -> int:
        """Return the opset version that the model, or the function, imports of a domain.

        A known domain that is missing is imported in its newest version, as in onnxruntime.
        """
        version = context.opsets.get(domain)
        if version is not None:
            return version
        name = domain or "ai.onnx"
        if not context.opsets or domain not in _ASSUMED:
            raise InvalidGraph(
                f"the model uses {name} and does not import its opset",
                hint="add it to opset_import",
            )
        version = context.opsets[domain] = _ASSUMED[domain]
        if domain not in self._assumed:
            self._assumed.add(domain)
            logger.warning(
                "the model uses %s and does not import its opset: version %d is assumed",
                name,
                version,
            )
        return version

    def _gradient(
        self,
        graph: Graph,
        records: dict[str, AttributeRecord],
        inputs: list[Value | None],
        n_outputs: int,
        names: NameScope,
    ) -> Node:
        from sardonyx.load.gradient_nodes import add_gradient_request  # rarely needed

        self.has_gradient_nodes = True
        attrs = {k: self._attributes.raw(v) for k, v in records.items()}
        return add_gradient_request(graph, names.find, attrs, inputs, n_outputs)

    def _body(self, record: GraphRecord, outer: Context) -> Graph:
        names = NameScope(outer.names)
        inner = Context(names, outer.opsets, outer.attributes, outer.depth + 1, outer.prefix)
        return self.graph(record, inner)

    def _count_expanded(self, nodes: Sequence[NodeRecord]) -> None:
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
        record: NodeRecord,
        arguments: dict[str, AttributeRecord],
        inputs: list[Value | None],
        context: Context,
    ) -> Sequence[Value]:
        """Inline the nodes of a model-local function in place of a call."""
        if context.depth > MAX_DEPTH:
            raise InvalidGraph(
                f"the function {function.domain}.{function.name} expands without end: more than "
                f"{MAX_DEPTH} calls deep"
            )
        self._n_calls += 1
        if len(inputs) > len(function.inputs):
            count = len(function.inputs)
            raise InvalidGraph(
                f"the function {function.name} takes {count} inputs, not {len(inputs)}"
            )
        prefix = f"{context.prefix}{record.name or function.name}.{self._n_calls}/"
        names = NameScope(prefix=prefix)
        for name, value in zip(function.inputs, inputs, strict=False):
            if value is not None:
                names.values[name] = value
        absent = set(function.inputs) - names.values.keys()
        opsets = {_domain(d): v for d, v in function.opset_imports} or context.opsets
        attributes = {a.name: a for a in function.attribute_protos} | arguments
        annotations = annotations_of(record, context.annotations)
        inner = Context(names, opsets, attributes, context.depth + 1, prefix, annotations)
        nodes = in_order(function)
        if absent:
            nodes = [cast(Any, _WithAbsentInputs(node, absent)) for node in nodes]
        self._nodes(graph, nodes, inner)
        return [_defined(names, o, function.name) for o in function.outputs]


def _check_outputs(op: Op, n_outputs: int) -> None:
    if n_outputs > len(op.outputs) and not (op.outputs and op.outputs[-1].variadic):
        raise InvalidGraph(f"{op} has {len(op.outputs)} outputs, and the node names {n_outputs}")


class _WithAbsentInputs:
    """A node record of a function whose absent arguments are absent inputs here."""

    __slots__ = ("_record", "inputs")

    def __init__(self, record: NodeRecord, absent: set[str]) -> None:
        self._record = record
        self.inputs = ["" if name in absent else name for name in record.inputs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def _resolved(records: Iterable[AttributeRecord], context: Context) -> dict[str, AttributeRecord]:
    """Return a node's attributes by name, with references to attributes of the function resolved.

    A reference to an attribute that the call does not have is dropped.
    """
    bound: dict[str, AttributeRecord] = {}
    for record in records:
        name, reference = record.name, record.ref_attr_name
        if name in bound:
            raise InvalidGraph(f"the attribute {name} is given twice")
        if not reference:
            bound[name] = record
        elif context.attributes is None:
            raise InvalidGraph(f"the attribute {name} refers to {reference} outside any function")
        elif reference in context.attributes:
            bound[name] = context.attributes[reference]
    return bound


def _upgraded(rule: Rule, graph: Graph, old: OldNode) -> tuple[Sequence[Value], list[Node]]:
    """Apply an upgrade rule; return values and new nodes, whose attributes their ops must have."""
    builder = Builder(graph)
    try:
        outputs = rule(builder, old)
    except SardonyxError:
        raise
    except Exception as error:
        raise as_sardonyx_error(error, f"upgrading {old} to the newest opset") from error
    for node in builder.new_nodes:
        if extra := node.attrs.keys() - node.op.attrs.keys():
            raise InvalidGraph(f"{old} has no attribute {min(extra)}")
        if missing := node.op.required_attrs - node.attrs.keys():
            raise InvalidGraph(f"{old} needs the attribute {min(missing)}")
        for name, value in node.attrs.items():
            if not fits(node.op.attrs[name], value):
                raise InvalidGraph(
                    f"attribute {name} of {node.op} is of type {node.op.attr_kinds[name]}, "
                    f"and the node gives {value!r:.80}"
                )
        node.attrs.update((n, int(node.attrs[n] != 0)) for n in node.op.flags & node.attrs.keys())
    values = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return values, builder.new_nodes


def _overridable(declared: AnyFact | None, default: Const) -> Fact:
    """Return the fact of an input with a default: as declared, which the default must match."""
    fact = Fact(default.dtype, default.shape)
    if not isinstance(declared, Fact) or declared.shape is None:
        return fact
    if not refines(fact, declared):
        raise InvalidGraph(f"an input is declared as {declared}, and its default is {fact}")
    return declared


def _defined(names: NameScope, name: str, graph: str) -> Value:
    value = names.find(name)
    if value is None:
        raise InvalidGraph(f"nothing makes the output {name!r}", graph=graph)
    return value


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _shown(record: NodeRecord) -> str:
    output = next(iter(record.outputs), "")
    return f"{record.name or 'making ' + repr(output)} ({record.op_type})"


def _no_body(record: GraphRecord) -> Graph:
    raise InvalidGraph(f"a Constant must not have a graph as an attribute, got {record.name!r}")


# Domains and ops that onnxruntime introduces for one machine, and leaves in saved models.
_MACHINE_SPECIFIC: Final = {
    "com.microsoft.nchwc": "has a memory layout for the CPU that the model was saved on",
    "com.ms.internal.nhwc": "has a memory layout for the device that the model was saved for",
    "com.microsoft.EPContext": "holds a graph that was compiled for one device",
}


def _unknown(domain: str, op_type: str, version: int) -> SardonyxError:
    """Return the error for an op that is not supported."""
    if (domain, op_type) == (INTERNAL, "Packed"):
        return InvalidGraph(
            "the model's graph and weights are in its pack, the file beside it that has its "
            "name and .pack: it is missing, not looked for, or a warning says what is wrong",
            hint="add the pack, or use the original model",
        )
    name = f"{domain or 'ai.onnx'}.{op_type}"
    reason = _MACHINE_SPECIFIC.get(domain) or _MACHINE_SPECIFIC.get(name)
    if reason is not None:
        hint = "save it with ORT_ENABLE_EXTENDED at most, or use the original model"
        return NotImplemented(f"the op {name} {reason}", hint=hint)
    import difflib  # only for misspelt names

    near = difflib.get_close_matches(op_type, names(domain), 1)
    hint = "declare it with sardonyx.custom_op" if domain else "export without it"
    hint = f"is {near[0]} meant? Else {hint}" if near else hint
    if not names(domain):
        what = f"the op {name} is not supported: the domain {domain} is unknown"
        return UnknownOp(what, hint=hint)
    return UnknownOp(f"the op {name} of opset {version} is not implemented", hint=hint)


def _bytes_of(node: NodeRecord) -> int:
    """Return the bytes of a node's names and tensors, roughly those in its file."""
    values = (a.value for a in node.attributes)
    tensors = sum(v.length for v in values if isinstance(v, TensorRecord))
    texts = (node.name, node.op_type, node.domain, *node.inputs, *node.outputs)
    return tensors + sum(map(len, texts))
