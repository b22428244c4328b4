"""Checks that a graph is sound, as tests do after every pass: obvious, and apart from the edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

from sardonyx.errors import InternalError, InvalidGraph, SardonyxError
from sardonyx.graph.dim import lone_name, product
from sardonyx.graph.fact import AnyFact, Fact, names_in, refines
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer_node


def verify(graph: Graph, *, deep: bool = False) -> None:
    """Raises InternalError for the first broken invariant; `deep` also infers every node anew."""
    while graph.owner is not None:
        graph = graph.owner.graph
    _check_ownership(graph)
    homes = _homes(graph)
    _check_reads(graph, homes, frozenset())
    _check_uses(graph)
    _check_exits(graph)
    _check_order(graph)
    _check_names(graph, {})
    for value in _values(graph):
        _check_fact(value)
    _check_bound(graph)
    if deep:
        _check_inference(graph)


def _broken(what: str, node: Node | None = None, value: Value | None = None) -> NoReturn:
    where: dict[str, object] = {"node": node, "value": value}
    raise InternalError(what, **{k: v for k, v in where.items() if v is not None})


def _values(graph: Graph) -> Iterator[Value]:
    """Every value that the graph or a body below it has, reads or returns, once."""
    seen: set[Value] = set()
    for part in graph.family():
        for group in ((part.inputs, part.outputs), *((n.inputs, n.outputs) for n in part.nodes)):
            for value in (v for values in group for v in values):
                if value is not None and value not in seen:
                    seen.add(value)
                    yield value


def _check_ownership(graph: Graph) -> None:
    """Nodes know their graph and bodies their node; no graph is a body twice."""
    seen: set[Graph] = {graph}
    open_ = [graph]
    while open_:
        part = open_.pop()
        for node in part.nodes:
            if node.graph is not part:
                _broken("the node takes itself for part of another graph", node)
            for key, body in node.subgraphs:
                if body.owner is not node:
                    _broken(f"the body {key} belongs to {body.owner}", node)
                if body in seen:
                    _broken(f"the body {key} hangs in the graph twice", node)
                seen.add(body)
                open_.append(body)


def _homes(graph: Graph) -> dict[Value, Graph]:
    """The graph of every value that is made or fed; each comes from one place, and says so."""
    homes: dict[Value, Graph] = {}
    for part in graph.family():
        for value in part.inputs:
            if value in homes or value.node is not None:
                _broken("the input of a graph comes from somewhere else too", value.node, value)
            if value.is_const:
                _broken("the input of a graph is a constant", None, value)
            homes[value] = part
        for value in part.defaults:
            if homes.get(value) is not part:
                _broken("what has a default is no input of the graph", None, value)
        for node in part.nodes:
            for index, value in enumerate(node.outputs):
                if value in homes:
                    _broken("the value comes from two places", node, value)
                if value.node is not node or value.index != index:
                    found = f"output {value.index} of {value.node}"
                    _broken(f"output {index} takes itself for {found}", node, value)
                if value.is_const:
                    _broken("a constant has a node", node, value)
                homes[value] = part
    return homes


def _check_reads(graph: Graph, homes: dict[Value, Graph], outer: frozenset[Graph]) -> None:
    """Nodes and outputs see constants, and values of their own graph and of those around it."""
    visible = outer | {graph}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                _check_visible(value, node, homes, visible)
        for _, body in node.subgraphs:
            _check_reads(body, homes, visible)
    for value in graph.outputs:
        _check_visible(value, graph.owner, homes, visible)


def _check_visible(
    value: Value, node: Node | None, homes: dict[Value, Graph], visible: frozenset[Graph]
) -> None:
    home = homes.get(value)
    if home is None:
        if value.node is not None:
            _broken(f"the value is read, and its node {value.node} is gone", node, value)
        if not value.is_const:
            _broken("the value comes from nowhere", node, value)
    elif home not in visible:
        _broken("the value is in a graph that its reader cannot see", node, value)


def _check_uses(graph: Graph) -> None:
    """The use lists say what the inputs say."""
    reads: dict[Value, Counter[tuple[Node, int]]] = {}
    for node in graph.all_nodes():
        for slot, value in enumerate(node.inputs):
            if value is not None:
                reads.setdefault(value, Counter())[node, slot] += 1
    for value in _values(graph):
        expected, found = reads.get(value, Counter()), Counter(value.uses)
        for node, slot in expected - found:
            _broken(f"slot {slot} reads a value that does not know it", node, value)
        for node, slot in found - expected:
            _broken(f"the value counts slot {slot} as a reader, and it is none", node, value)


def _check_exits(graph: Graph) -> None:
    exits = Counter(value for part in graph.family() for value in part.outputs)
    for value in _values(graph):
        if value.n_exits != exits[value]:
            what = f"the value counts {value.n_exits} graphs that return it, and {exits[value]} do"
            _broken(what, value.node, value)
    for part in graph.family():
        if len(part.declared) != len(part.outputs):
            counts = f"{len(part.outputs)} outputs and {len(part.declared)} declared shapes"
            raise InternalError(f"a graph has {counts}", graph=part.name)


def _check_order(graph: Graph) -> None:
    for part in graph.family():
        try:
            part.sorted_nodes()
        except InvalidGraph as error:
            raise InternalError(error.what, **error.where) from error


def _check_names(graph: Graph, outer: dict[str, Value]) -> None:
    """No two values that are read share a name where both can be seen."""
    read = set(graph.captures()) if outer else set()
    hidden = {v.name for v in graph.inputs if outer.get(v.name) not in read}
    names = {name: value for name, value in outer.items() if name not in hidden}
    local = [*graph.inputs, *(v for n in graph.nodes for v in n.outputs if v.is_used)]
    local += [v for n in graph.nodes for v in n.inputs if v is not None and v.is_const]
    local += [v for v in graph.outputs if v.is_const]
    for value in local:
        if value.name and names.setdefault(value.name, value) is not value:
            _broken(f"two values are called {value.name}", value.node, value)
    for node in graph.nodes:
        for _, body in node.subgraphs:
            _check_names(body, names)


def _check_fact(value: Value) -> None:
    fact = value.fact
    if fact is None:
        _broken("the value has no fact", value.node, value)
    if not isinstance(fact, Fact):
        return
    const = fact.const
    if const is not None and (const.dtype is not fact.dtype or const.shape != fact.shape):
        held = Fact(const.dtype, const.shape)
        _broken(f"the constant of the value is {held}", value.node, value)
    if fact.sym is not None and fact.static is not None and len(fact.sym) != product(fact.static):
        _broken(f"{len(fact.sym)} elements are known of the value", value.node, value)


def _check_bound(graph: Graph) -> None:
    """Every name in a fact is given by an input or by the output that first has it."""
    bound = {n for part in graph.family() for v in part.inputs for n in names_in(v.fact)}
    for node in graph.all_nodes():
        read = {n for v in node.reads() for n in names_in(v.fact)}
        dims = (d for v in node.outputs if isinstance(v.fact, Fact) for d in v.fact.shape or ())
        bound.update(n for n in map(lone_name, dims) if n is not None and n not in read)
    for value in _values(graph):
        for name in names_in(value.fact):
            if name not in bound and isinstance(value.fact, Fact):
                _broken(f"nothing binds the size {name} of the value", value.node, value)


def _check_inference(graph: Graph) -> None:
    """Every node, inferred anew from its inputs' facts, gives what stands at its outputs."""
    facts = {value: value.fact for value in _values(graph)}
    scopes = [(part, part.scope) for part in graph.family()]
    scope = Scope(assumes=graph.scope.assumes)
    try:
        for node in graph.nodes:
            _infer_again(scope, node)
            for value in node.outputs:
                _check_refined(node, value, facts[value])
                value.fact = facts[value]
        for value, old in facts.items():
            _check_refined(value.node, value, old)
    finally:
        for value, old in facts.items():
            value.fact = old
        for part, old_scope in scopes:
            part.scope = old_scope


def _infer_again(scope: Scope, node: Node) -> None:
    try:
        infer_node(scope, node)
    except SardonyxError as error:
        raise InternalError(f"the node no longer infers: {error.what}", **error.where) from error


def _check_refined(node: Node | None, value: Value, old: AnyFact | None) -> None:
    if old is None or value.fact is None or not refines(value.fact, old):
        _broken(f"inferred anew, the value is {value.fact} and was {old}", node, value)
