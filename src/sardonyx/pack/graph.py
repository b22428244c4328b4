"""A lowered model as JSON and back: values are numbers, constants lie in a table of their own.

A node is [op, name, inputs, outputs' names, attributes], and [priority, is it backward] where it
has such marks. An input is the number of a value, -1 where it is absent, and -2 - n for the n-th
constant.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from sardonyx.errors import FAULTS, SardonyxError
from sardonyx.graph.const import Const, Recipe
from sardonyx.graph.constant import constant
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
    items,
    need,
    number,
    read_fact,
    read_shape,
    read_size,
    text,
    write_fact,
    write_size,
)
from sardonyx.pack.errors import Broken

MAX_DEPTH: Final = 64  # of bodies in bodies
_ABSENT: Final = -1
_SAID: Final = (
    "producer_name", "producer_version", "domain", "description", "graph_name",
    "graph_description",
)  # fmt: skip


class Table:
    """The constants of a model, numbered; what a recipe is made of comes before it."""

    def __init__(self) -> None:
        self.consts: list[Const] = []
        self.used: dict[int, bool] = {}  # those that the graph has, and whether it reads them plain
        self._numbers: dict[Hashable, int] = {}

    def use(self, const: Const) -> int:
        """The number of a constant that an attribute or an input has: it is read as it is."""
        number = self.number(const)
        self.used[number] = True
        return number

    def operand(self, const: Const) -> int:
        """The number of a constant that nodes read, in whichever form they want."""
        number = self.number(const)
        self.used.setdefault(number, False)
        return number

    def number(self, const: Const) -> int:
        """The number of a constant, the same for all that are equal by construction."""
        waiting = [const]
        while waiting:
            top = waiting[-1]
            below = top.inputs if isinstance(top, Recipe) else ()
            missing = [c for c in below if c is not None and _key(c) not in self._numbers]
            if missing and _key(top) not in self._numbers:
                waiting.extend(missing)
                continue
            waiting.pop()
            if _key(top) not in self._numbers:
                self._numbers[_key(top)] = len(self.consts)
                self.consts.append(top)
        return self._numbers[_key(const)]


def _key(const: Const) -> Hashable:
    known = const.identity
    return (type(const), id(const)) if known is None else (known, const.dtype, const.shape)


class GraphWriter:
    """Writes one model."""

    def __init__(self) -> None:
        self.table = Table()
        self._ops: dict[tuple[str, str], int] = {}
        self._values: dict[Value, int] = {}
        self._constants: dict[Value, int] = {}
        self._entry: frozenset[str] = frozenset()
        self.attrs = AttrWriter(self.table.use, self._graph)

    def model(self, model: Model) -> dict[str, Any]:
        """All of it but the constants themselves."""
        facts = [v.fact for v in model.graph.inputs]
        self._entry = frozenset(_names(facts))
        graph = self._graph(model.graph)
        return {
            "ir_version": model.ir_version,
            "version": model.version,
            "opsets": model.opsets,
            "metadata": model.metadata,
            **{key: getattr(model, key) for key in _SAID},
            "inputs": _declared(model.inputs),
            "outputs": _declared(model.outputs),
            "overridable": _declared(model.overridable),
            "assumes": model.graph.scope.assumes,
            "ops": [list(key) for key in self._ops],
            "constants": [[self.table.operand(_const(v)), v.name] for v in self._constants],
            "graph": graph,
        }

    def _graph(self, graph: Graph) -> dict[str, Any]:
        is_main = graph.owner is None
        inputs = []
        for value in graph.inputs:
            self._values[value] = len(self._values)
            default = graph.defaults.get(value)
            given = None if default is None else self.table.use(default)
            # A body's inputs are what its node gives them.
            inputs.append([value.name, write_fact(value.fact) if is_main else None, given])
        nodes = [self._node(n) for n in graph.sorted_nodes()]
        return {
            "name": graph.name,
            "inputs": inputs,
            "nodes": nodes,
            "outputs": [self._read(v) for v in graph.outputs],
            **_declared_shapes(graph),
            "guards": [
                [g.kind, write_size(g.left), write_size(g.right), g.what, str(g.node or "")]
                for g in dict.fromkeys(graph.scope.found)
                if g.symbols <= self._entry  # inference finds those on other sizes again
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
        inputs = [_ABSENT if v is None else self._read(v) for v in node.inputs]
        for value in node.outputs:
            self._values[value] = len(self._values)
        index = self._ops.setdefault(op.key, len(self._ops))
        marks = [[node.priority, node.is_backward]] if node.marks != (0, False) else []
        return [index, node.name, inputs, [v.name for v in node.outputs], attrs, *marks]

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
    """What the file that a body is from declares of its outputs, if that is anything."""
    if all(shape is None for shape in graph.declared):
        return {}
    return {"declared": [None if d is None else list(map(write_size, d)) for d in graph.declared]}


class GraphReader:
    """Reads one model: facts are inferred anew, and nothing in it is taken on trust."""

    def __init__(self, document: Any, consts: Sequence[Const]) -> None:
        need(type(document) is dict, "the graph is no table")
        self._document = document
        self._consts = consts
        self._values: list[Value | None] = []
        self._attrs = AttrReader(consts, self._body)
        self._depth = 0
        self._guards: list[tuple[Graph, Any]] = []

    def model(self, origin: str) -> Model:
        """The model, inferred."""
        try:
            return self._model(origin)
        except (*FAULTS, AttributeError, RecursionError, MemoryError) as error:
            raise Broken(f"the graph: {type(error).__name__}: {error}") from None
        except SardonyxError as error:
            raise Broken(f"the graph: {error.what}") from None

    def _model(self, origin: str) -> Model:
        document = self._document
        self._ops = [self._op(key) for key in items(document["ops"])]
        pairs = [items(pair, 2) for pair in items(document["constants"])]
        self._constants = [constant(self._const(n), text(name)) for n, name in pairs]
        graph = self._graph(document["graph"], is_main=True)
        need(type(document["assumes"]) is bool, "assumes is no truth value")
        infer(graph, assumes=document["assumes"])
        check_graph(graph)
        for owner, guards in self._guards:
            _add_guards(owner, graph, guards)
        model = Model(
            graph=graph,
            ir_version=number(document["ir_version"]),
            version=number(document["version"], -(1 << 63), 1 << 63),
            opsets={text(k): number(v) for k, v in document["opsets"].items()},
            metadata={text(k): text(v) for k, v in document["metadata"].items()},
            inputs=_read_declared(document["inputs"]),
            outputs=_read_declared(document["outputs"]),
            overridable=_read_declared(document["overridable"]),
            origin=origin,
            has_gradient_nodes=False,
            **{key: text(document[key]) for key in _SAID},
        )
        live = [d.name for d in (*model.inputs, *model.overridable)]
        need(sorted(live) == sorted(v.name for v in graph.inputs), "the inputs differ in names")
        need(len(model.outputs) == len(graph.outputs), "the outputs differ in number")
        model.check_outputs()
        return model

    def _const(self, index: Any) -> Const:
        return self._consts[number(index, 0, len(self._consts))]

    def _op(self, key: Any) -> Op:
        domain, name = map(text, items(key, 2))
        op = lookup(domain, name)
        if op is None:
            raise Broken(f"there is no op {domain}.{name:.40}")
        return op

    def _body(self, item: Any) -> Graph:
        need(self._depth < MAX_DEPTH, f"bodies are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        begin = len(self._values)
        body = self._graph(item, is_main=False)
        # Nothing outside may read what is made inside.
        self._values[begin:] = [None] * (len(self._values) - begin)
        self._depth -= 1
        return body

    def _graph(self, item: Any, is_main: bool) -> Graph:
        graph = Graph(text(item["name"]))
        for name, fact, default in items(item["inputs"]):
            value = Value(text(name), read_fact(fact) if is_main else None)
            if is_main:
                _check_input(value)
            graph.add_input(value, None if default is None else self._default(value, default))
            self._values.append(value)
        for node in items(item["nodes"]):
            self._node(graph, node)
        outputs = [self._value(v) for v in items(item["outputs"])]
        shapes = item.get("declared")
        declared = None if shapes is None else map(_read_shape, items(shapes, len(outputs)))
        graph.set_outputs(outputs, declared)
        self._guards.append((graph, item["guards"]))
        return graph

    def _default(self, value: Value, index: Any) -> Const:
        default, fact = self._const(index), value.fact
        need(isinstance(fact, Fact) and fact.dtype is default.dtype, f"the default of {value}")
        return default

    def _value(self, index: int) -> Value:
        if type(index) is int and index < _ABSENT:
            return self._constants[number(-2 - index, 0, len(self._constants))]
        value = self._values[number(index, 0, len(self._values))]
        if value is None:
            raise Broken(f"the value {index} is not in sight")
        return value

    def _node(self, graph: Graph, item: Any) -> None:
        index, name, inputs, outputs, given, *marks = item
        op = self._ops[number(index, 0, len(self._ops))]
        attrs = dict(op.defaults)
        for key, value in given.items():
            spec = op.attrs.get(key, self)
            need(spec is not self, f"{op} has no attribute {key!r:.40}")
            attrs[key] = self._attrs.read(value)
            need(fits(spec, attrs[key]), f"the attribute {key} of {op}")
        need(op.required_attrs <= attrs.keys(), f"{op} lacks an attribute")
        read = [None if v == _ABSENT else self._value(v) for v in items(inputs)]
        made = [Value(text(v)) for v in items(outputs)]
        most = len(op.outputs)
        least = 1 if op.domain == INTERNAL else max(1, op.n_made)  # kernels fill these unasked
        is_few = len(made) <= most or op.outputs[-1].variadic
        need(len(made) >= least and is_few, f"{op} makes {len(made)}")
        node = graph.add(op, read, attrs, made, text(name))
        self._values.extend(made)
        if marks:
            node.marks = _marks(*marks)


def _read_shape(item: Any) -> Shape | None:
    shape = read_shape(item)
    for size in shape or ():
        need(not isinstance(size, int) or size >= 0, f"an output is declared to have {size}")
    return shape


def _marks(item: Any) -> tuple[int, bool]:
    priority, is_backward = items(item, 2)
    need(type(is_backward) is bool, "whether a node is backward is no truth value")
    return number(priority, -MAX_PRIORITY, MAX_PRIORITY + 1), is_backward


def _check_input(value: Value) -> None:
    """The sizes of an input are numbers and names, which a run checks; formulas it would not."""
    need(value.fact is not None, f"the input {value.name} has no type")
    for size in (value.fact.shape or ()) if isinstance(value.fact, Fact) else ():
        name = lone_name(size)
        need(
            (isinstance(size, int) and size >= 0) or (name is not None and check_name(name)),
            f"the input {value.name} has the size {size}",
        )


def _add_guards(graph: Graph, main: Graph, saved: Any) -> None:
    """Guards of nodes that passes took away, before those that inference has found."""
    found = {(g.kind, g.left, g.right) for g in graph.scope.found}
    entry = set(_names(v.fact for v in main.inputs))
    more = []
    for item in items(saved):
        kind, left, right, what, node = items(item, 5)
        need(type(kind) is str and kind in KINDS, f"{kind!r:.40} is no kind of guard")
        guard = Guard(kind, read_size(left), read_size(right), text(what), text(node) or None)
        need(symbols(guard.left) | symbols(guard.right) <= entry, f"a guard on {guard.needs}")
        if (guard.kind, guard.left, guard.right) not in found:
            more.append(guard)
    graph.scope.found[:0] = more


def _read_declared(saved: Any) -> list[Declared]:
    declared = []
    for item in items(saved):
        name, fact, dims = items(item, 3)
        if dims is not None:
            need(all(d is None or type(d) in (int, str) for d in items(dims)), "declared dims")
        declared.append(
            Declared(text(name), read_fact(fact), None if dims is None else tuple(dims))
        )
    return declared
