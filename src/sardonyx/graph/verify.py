"""Checks the invariants of a graph; tests run it after every pass.

It shares no code with the methods that edit graphs, so that it does not repeat their mistakes.
"""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from sardonyx.errors import InternalError, InvalidGraph, SardonyxError
from sardonyx.graph.dim import lone_name, product
from sardonyx.graph.fact import AnyFact, Fact, names_in, refines
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer_node


def verify(graph: Graph, *, deep: bool = False) -> None:
    """Raise InternalError for the first violated invariant; `deep` also infers every node again."""
    while graph.owner is not None:
        graph = graph.owner.graph
    _check_ownership(graph)
    homes = _homes(graph)
    _check_reads(graph, homes, frozenset())
    _check_uses(graph)
    _check_exits(graph)
    _check_order(graph)
    _check_names(graph, {})
    for value in graph.all_values():
        _check_fact(value)
    _check_bound(graph)
    if deep:
        _check_inference(graph)


def _broken(what: str, node: Node | None = None, value: Value | None = None) -> NoReturn:
    where: dict[str, object] = {"node": node, "value": value}
    raise InternalError(what, **{k: v for k, v in where.items() if v is not None})


def _check_ownership(graph: Graph) -> None:
    """Check that nodes refer to their graph and bodies to their node; no graph is a body twice."""
    seen: set[Graph] = {graph}
    stack = [graph]
    while stack:
        part = stack.pop()
        for node in part.nodes:
            if node.graph is not part:
                _broken("the node refers to another graph than the one it is in", node)
            for key, body in node.subgraphs:
                if body.owner is not node:
                    _broken(f"the body {key} belongs to {body.owner}", node)
                if body in seen:
                    _broken(f"the body {key} is in the graph twice", node)
                seen.add(body)
                stack.append(body)


def _homes(graph: Graph) -> dict[Value, Graph]:
    """Return the graph of every input and node output, after a check that it has one origin."""
    homes: dict[Value, Graph] = {}
    for part in graph.family():
        for value in part.inputs:
            if value in homes or value.node is not None:
                _broken("the input of a graph has another origin too", value.node, value)
            if value.is_const:
                _broken("the input of a graph is a constant", None, value)
            homes[value] = part
        for value in part.defaults:
            if homes.get(value) is not part:
                _broken("a value with a default is not an input of the graph", None, value)
        for node in part.nodes:
            for index, value in enumerate(node.outputs):
                if value in homes:
                    _broken("two nodes or inputs make the value", node, value)
                if value.node is not node or value.index != index:
                    claimed = f"output {value.index} of {value.node}"
                    _broken(f"output {index} refers to {claimed}", node, value)
                if value.is_const:
                    _broken("a constant has a node", node, value)
                homes[value] = part
    return homes


def _check_reads(graph: Graph, homes: dict[Value, Graph], outer: frozenset[Graph]) -> None:
    """Check that nodes and outputs read only constants and values of enclosing graphs."""
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
            _broken(f"the value is read, and its node {value.node} is removed", node, value)
        if not value.is_const:
            _broken("the value is read, and nothing makes it", node, value)
    elif home not in visible:
        _broken("the value is in a graph that does not enclose its reader", node, value)


def _check_uses(graph: Graph) -> None:
    """Check that use lists and inputs agree."""
    reads: dict[Value, Counter[tuple[Node, int]]] = {}
    for node in graph.all_nodes():
        for slot, value in enumerate(node.inputs):
            if value is not None:
                reads.setdefault(value, Counter())[node, slot] += 1
    for value in graph.all_values():
        expected, found = reads.get(value, Counter()), Counter(value.uses)
        for node, slot in expected - found:
            _broken(f"slot {slot} reads a value whose uses lack it", node, value)
        for node, slot in found - expected:
            _broken(f"the uses of the value have slot {slot}, which does not read it", node, value)


def _check_exits(graph: Graph) -> None:
    exits = Counter(value for part in graph.family() for value in part.outputs)
    for value in graph.all_values():
        if value.n_exits != exits[value]:
            what = f"n_exits of the value is {value.n_exits}, and {exits[value]} graphs return it"
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
    """Check that no two values that are read have one name in the same scope."""
    read = set(graph.captures()) if outer else set()
    hidden = {v.name for v in graph.inputs if outer.get(v.name) not in read}
    names = {name: value for name, value in outer.items() if name not in hidden}
    local = [*graph.inputs, *(v for n in graph.nodes for v in n.outputs if v.is_used)]
    local += [v for n in graph.nodes for v in n.inputs if v is not None and v.is_const]
    local += [v for v in graph.outputs if v.is_const]
    for value in local:
        if value.name and names.setdefault(value.name, value) is not value:
            _broken(f"two values have the name {value.name}", value.node, value)
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
    """Check that every name in a fact is bound by an input or by the output that introduces it."""
    bound = {n for part in graph.family() for v in part.inputs for n in names_in(v.fact)}
    for node in graph.all_nodes():
        read = {n for v in node.reads() for n in names_in(v.fact)}
        dims = (d for v in node.outputs if isinstance(v.fact, Fact) for d in v.fact.shape or ())
        bound.update(n for n in map(lone_name, dims) if n is not None and n not in read)
    for value in graph.all_values():
        for name in names_in(value.fact):
            if name not in bound and isinstance(value.fact, Fact):
                _broken(f"nothing binds the size {name} of the value", value.node, value)


def _check_inference(graph: Graph) -> None:
    """Check that inferring every node again from its inputs' facts refines its outputs' facts."""
    facts = {value: value.fact for value in graph.all_values()}
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
