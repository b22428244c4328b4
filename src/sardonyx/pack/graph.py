"""The lowered graph of a pack as JSON, written, and read with full validation.

Values are numbered in topological order. A node is [op, name, inputs, names of outputs,
attributes], with a last element [priority, is_backward] if it has those. An input is the number of
a value, -1 if it is absent, and -2 - n for the n-th constant.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from sardonyx.errors import UNEXPECTED_ERRORS, SardonyxError
from sardonyx.graph.const import Const, Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import Shape, lone_name, symbols
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import MAX_PRIORITY, Graph, Node, Value
from sardonyx.graph.guard import KINDS, Guard
from sardonyx.graph.infer import infer
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.load.attributes import fits
from sardonyx.load.model import Declared, Model
from sardonyx.ops import lookup
from sardonyx.pack.check import check_graph, check_name
from sardonyx.pack.codec import (
    AttrReader,
    AttrWriter,
    read_fact,
    read_int,
    read_list,
    read_shape,
    read_size,
    read_str,
    require,
    write_fact,
    write_size,
)
from sardonyx.pack.errors import InvalidPack

MAX_DEPTH: Final = 64  # depth of nested bodies: below Python's recursion limit
_ABSENT: Final = -1
_TEXT_FIELDS: Final = (  # of a model
    "producer_name", "producer_version", "domain", "description", "graph_name",
    "graph_description",
)  # fmt: skip


class ConstantTable:
    """The constants of a model, numbered; the inputs of a recipe come before it."""

    def __init__(self) -> None:
        self.consts: list[Const] = []
        self.used: dict[int, bool] = {}  # constants of the graph -> whether it needs them unpacked
        self._numbers: dict[Hashable, int] = {}

    def add_plain(self, const: Const) -> int:
        """Return the number of a constant in an attribute or a default: it is needed unpacked."""
        number = self.index(const)
        self.used[number] = True
        return number

    def add_operand(self, const: Const) -> int:
        """Return the number of a constant that nodes read, in the layouts of their kernels."""
        number = self.index(const)
        self.used.setdefault(number, False)
        return number

    def index(self, const: Const) -> int:
        """Return the number of a constant; constants with equal identities share one."""
        waiting = [const]  # a stack: depth-first over the inputs of recipes
        while waiting:
            top = waiting[-1]
            inputs = top.inputs if isinstance(top, Recipe) else ()
            missing = [c for c in inputs if c is not None and _key(c) not in self._numbers]
            if missing and _key(top) not in self._numbers:
                waiting.extend(missing)
                continue
            waiting.pop()
            if _key(top) not in self._numbers:
                self._numbers[_key(top)] = len(self.consts)
                self.consts.append(top)
        return self._numbers[_key(const)]


def _key(const: Const) -> Hashable:
    identity = const.identity
    if identity is None:
        return (type(const), id(const))
    return (identity, const.dtype, const.shape)


class PackGraphWriter:
    """Writes one lowered model."""

    def __init__(self) -> None:
        self.table = ConstantTable()
        self._ops: dict[tuple[str, str], int] = {}
        self._values: dict[Value, int] = {}
        self._constants: dict[Value, int] = {}
        self._entry: frozenset[str] = frozenset()
        self.attrs = AttrWriter(self.table.add_plain, self._graph)

    def model(self, model: Model) -> dict[str, Any]:
        """Return the document of a model; constants are referred to by their numbers."""
        facts = [v.fact for v in model.graph.inputs]
        self._entry = frozenset(_names(facts))  # named dims that the inputs resolve
        graph = self._graph(model.graph)
        return {
            "ir_version": model.ir_version,
            "version": model.version,
            "opsets": model.opsets,
            "metadata": model.metadata,
            **{key: getattr(model, key) for key in _TEXT_FIELDS},
            "inputs": _declared(model.inputs),
            "outputs": _declared(model.outputs),
            "overridable": _declared(model.overridable),
            "assumes": model.graph.scope.assumes,
            "ops": [list(key) for key in self._ops],
            "constants": [[self.table.add_operand(_const(v)), v.name] for v in self._constants],
            "graph": graph,
        }

    def _graph(self, graph: Graph) -> dict[str, Any]:
        is_main = graph.owner is None
        inputs = []
        for value in graph.inputs:
            self._values[value] = len(self._values)
            default = graph.defaults.get(value)
            index = None if default is None else self.table.add_plain(default)
            # The facts of a body's inputs are inferred from its node.
            inputs.append([value.name, write_fact(value.fact) if is_main else None, index])
        nodes = [self._node(n) for n in graph.sorted_nodes()]
        return {
            "name": graph.name,
            "inputs": inputs,
            "nodes": nodes,
            "outputs": [self._read(v) for v in graph.outputs],
            **_declared_shapes(graph),
            "guards": [
                [g.kind, write_size(g.left), write_size(g.right), g.what, str(g.node or "")]
                for g in dict.fromkeys(graph.scope.guards)
                if g.symbols <= self._entry  # inference creates those on other sizes again
            ],
        }

    def _node(self, node: Node) -> list[Any]:
        op = node.op
        defaults = op.defaults
        attrs = {
            key: self.attrs.write(value)
            for key, value in node.attrs.items()
            if key not in defaults or not _is_same(defaults[key], value)
        }
        # Bodies in `attrs` are written first, then the outputs numbered: as a reader does.
        inputs = [_ABSENT if v is None else self._read(v) for v in node.inputs]
        for value in node.outputs:
            self._values[value] = len(self._values)
        index = self._ops.setdefault(op.key, len(self._ops))
        annotations = [[node.priority, node.is_backward]] if node.annotations != (0, False) else []
        return [index, node.name, inputs, [v.name for v in node.outputs], attrs, *annotations]

    def _read(self, value: Value) -> int:
        if value.const is not None and value.node is None and value not in self._values:
            return -2 - self._constants.setdefault(value, len(self._constants))
        return self._values[value]


def _const(value: Value) -> Const:
    assert value.const is not None
    return value.const


def _is_same(default: Any, value: Any) -> bool:
    return default is value or (type(default) is type(value) and bool(default == value))


def _names(facts: Iterable[AnyFact | None]) -> Iterable[str]:
    for fact in facts:
        for size in (fact.shape or ()) if isinstance(fact, Fact) else ():
            name = lone_name(size)
            if name is not None:
                yield name


def _declared(declared: Sequence[Declared]) -> list[Any]:
    return [
        [d.name, write_fact(d.fact), None if d.dims is None else list(d.dims)] for d in declared
    ]


def _declared_shapes(graph: Graph) -> dict[str, Any]:
    """Return the shapes that the model file declares for a body's outputs, if there are any."""
    if all(shape is None for shape in graph.declared):
        return {}
    return {"declared": [None if d is None else list(map(write_size, d)) for d in graph.declared]}


class GraphReader:
    """Reads one model. Nothing is trusted: all is validated, and facts are inferred again."""

    def __init__(self, document: Any, consts: Sequence[Const]) -> None:
        require(type(document) is dict, "the graph is not an object")
        self._document = document
        self._consts = consts
        self._values: list[Value | None] = []  # None: a value of a body that was left
        self._attrs = AttrReader(consts, self._body)
        self._depth = 0  # of the body that is read
        self._guards: list[tuple[Graph, Any]] = []

    def model(self, origin: str) -> Model:
        """Return the model with inferred facts; raise InvalidPack if anything is wrong."""
        try:
            return self._model(origin)
        # Whatever a hostile document makes inference raise is an error of the pack.
        except (*UNEXPECTED_ERRORS, AttributeError, RecursionError, MemoryError) as error:
            raise InvalidPack(f"the graph: {type(error).__name__}: {error}") from None
        except SardonyxError as error:
            raise InvalidPack(f"the graph: {error.what}") from None

    def _model(self, origin: str) -> Model:
        document = self._document
        # Tables first: nodes refer to them.
        self._ops = [self._op(key) for key in read_list(document["ops"])]
        pairs = [read_list(pair, 2) for pair in read_list(document["constants"])]
        self._constants = [constant(self._const(n), read_str(name)) for n, name in pairs]
        graph = self._graph(document["graph"], is_main=True)
        require(type(document["assumes"]) is bool, "assumes is not a bool")
        infer(graph, assumes=document["assumes"])
        check_graph(graph)  # after inference: contracts are conditions on facts
        for owner, guards in self._guards:
            _add_guards(owner, graph, guards)
        model = Model(
            graph=graph,
            ir_version=read_int(document["ir_version"]),
            version=read_int(document["version"], -(1 << 63), 1 << 63),
            opsets={read_str(k): read_int(v) for k, v in document["opsets"].items()},
            metadata={read_str(k): read_str(v) for k, v in document["metadata"].items()},
            inputs=_read_declared(document["inputs"]),
            outputs=_read_declared(document["outputs"]),
            overridable=_read_declared(document["overridable"]),
            origin=origin,
            exported_parameters=frozenset(),
            before_loss=None,
            has_gradient_nodes=False,
            **{key: read_str(document[key]) for key in _TEXT_FIELDS},
        )
        # What the session shows to users must be what the graph has.
        live = [d.name for d in (*model.inputs, *model.overridable)]
        require(sorted(live) == sorted(v.name for v in graph.inputs), "the inputs differ in names")
        require(len(model.outputs) == len(graph.outputs), "the outputs differ in number")
        model.check_outputs()
        return model

    def _const(self, index: Any) -> Const:
        return self._consts[read_int(index, 0, len(self._consts))]

    def _op(self, key: Any) -> Op:
        domain, name = map(read_str, read_list(key, 2))
        op = lookup(domain, name)
        if op is None:
            raise InvalidPack(f"there is no op {domain}.{name:.40}")
        return op

    def _body(self, item: Any) -> Graph:
        require(self._depth < MAX_DEPTH, f"bodies are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        begin = len(self._values)
        body = self._graph(item, is_main=False)
        # Values of the body are not visible outside.
        self._values[begin:] = [None] * (len(self._values) - begin)
        self._depth -= 1
        return body

    def _graph(self, item: Any, is_main: bool) -> Graph:
        graph = Graph(read_str(item["name"]))
        for name, fact, default in read_list(item["inputs"]):
            value = Value(read_str(name), read_fact(fact) if is_main else None)
            if is_main:
                _check_input(value)
            # Overridable initializers are inputs with a default.
            graph.add_input(value, None if default is None else self._default(value, default))
            self._values.append(value)
        for node in read_list(item["nodes"]):
            self._node(graph, node)
        outputs = [self._value(v) for v in read_list(item["outputs"])]
        shapes = item.get("declared")
        declared = None if shapes is None else map(_read_shape, read_list(shapes, len(outputs)))
        graph.set_outputs(outputs, declared)
        self._guards.append((graph, item["guards"]))
        return graph

    def _default(self, value: Value, index: Any) -> Const:
        default, fact = self._const(index), value.fact
        require(isinstance(fact, Fact) and fact.dtype is default.dtype, f"the default of {value}")
        return default

    def _value(self, index: int) -> Value:
        # A value must be defined before it is read, so the graph has no cycle.
        if type(index) is int and index < _ABSENT:
            return self._constants[read_int(-2 - index, 0, len(self._constants))]
        value = self._values[read_int(index, 0, len(self._values))]
        if value is None:
            raise InvalidPack(f"the value {index} is read before it is defined")
        return value

    def _node(self, graph: Graph, item: Any) -> None:
        index, name, inputs, outputs, given_attrs, *annotations = item
        op = self._ops[read_int(index, 0, len(self._ops))]
        attrs = dict(op.defaults)  # those that are equal to a default are not written
        for key, value in given_attrs.items():
            spec = op.attrs.get(key, self)
            require(spec is not self, f"{op} has no attribute {key!r:.40}")
            attrs[key] = self._attrs.read(value)
            require(fits(spec, attrs[key]), f"the attribute {key} of {op}")
        require(op.required_attrs <= attrs.keys(), f"{op} lacks an attribute")
        read = [None if v == _ABSENT else self._value(v) for v in read_list(inputs)]
        values = [Value(read_str(v)) for v in read_list(outputs)]
        # Kernels write the required outputs without a check that they are present.
        least = 1 if op.domain == INTERNAL else max(1, op.n_required_outputs)
        is_few = len(values) <= len(op.outputs) or op.outputs[-1].variadic
        require(len(values) >= least and is_few, f"{op} has {len(values)} outputs")
        node = graph.add(op, read, attrs, values, read_str(name))
        self._values.extend(values)
        if annotations:
            node.annotations = _annotations(*annotations)


def _read_shape(item: Any) -> Shape | None:
    shape = read_shape(item)
    for size in shape or ():
        require(not isinstance(size, int) or size >= 0, f"an output is declared to have {size}")
    return shape


def _annotations(item: Any) -> tuple[int, bool]:
    priority, is_backward = read_list(item, 2)
    require(type(is_backward) is bool, "is_backward is not a bool")
    return read_int(priority, -MAX_PRIORITY, MAX_PRIORITY + 1), is_backward


def _check_input(value: Value) -> None:
    """Raise unless the dims of an input are numbers or names: runs do not check formulas."""
    require(value.fact is not None, f"the input {value.name} has no type")
    for size in (value.fact.shape or ()) if isinstance(value.fact, Fact) else ():
        name = lone_name(size)
        require(
            (isinstance(size, int) and size >= 0) or (name is not None and check_name(name)),
            f"the input {value.name} has the size {size}",
        )


def _add_guards(graph: Graph, main: Graph, saved: Any) -> None:
    """Add the guards of nodes that passes removed, before those of inference."""
    inferred = {(g.kind, g.left, g.right) for g in graph.scope.guards}
    entry = set(_names(v.fact for v in main.inputs))
    more = []
    for item in read_list(saved):
        kind, left, right, what, node = read_list(item, 5)
        require(type(kind) is str and kind in KINDS, f"{kind!r:.40} is not a kind of guard")
        guard = Guard(
            kind, read_size(left), read_size(right), read_str(what), read_str(node) or None
        )
        # On dims of inputs alone: others may have got other names from inference.
        require(symbols(guard.left) | symbols(guard.right) <= entry, f"a guard on {guard.needs}")
        if (guard.kind, guard.left, guard.right) not in inferred:
            more.append(guard)
    # First, as they are in a compiled graph: messages name the first guard that fails.
    graph.scope.guards[:0] = more


def _read_declared(saved: Any) -> list[Declared]:
    declared = []
    for item in read_list(saved):
        name, fact, dims = read_list(item, 3)
        if dims is not None:
            require(
                all(d is None or type(d) in (int, str) for d in read_list(dims)), "declared dims"
            )
        declared.append(
            Declared(read_str(name), read_fact(fact), None if dims is None else tuple(dims))
        )
    return declared
