"""Shape and type inference: checks arity and types, then calls the inference rule of each op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, SardonyxError, ShapeError, as_sardonyx_error
from sardonyx.graph.constant_eval import constant_elements
from sardonyx.graph.dim import Dim, FormulaTooLong, Shape, Size, least, lone_name, product, symbols
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, allowed, as_facts

MAX_SYMBOLIC: Final = 64  # elements of an integer tensor that inference computes with
SYMBOLIC_KINDS: Final = ("int", "uint", "bool")  # of the dtypes of these tensors
MAX_ELEMENTS: Final = 2**62  # of a tensor; more cannot be addressed

Shapes = Mapping[str, tuple[int, ...]]  # shapes of inputs, by name


def infer(
    graph: Graph, assumes: bool = True, shapes: Shapes | None = None, unify_ranks: bool = True
) -> None:
    """Infer the facts of all values of a graph, and the guards that they depend on.

    With `shapes`, of one run or empty, ranks may depend on the branches that these shapes select.
    Empty shapes mean a guess: if inference fails, it is repeated with the other branches. With
    `unify_ranks`, ranks may depend on the later pass of that name.
    """
    sizes = None if shapes is None else _sizes_in(graph, shapes)
    for guess in (True, False) if sizes is not None else ():
        scope = Scope(assumes=assumes, sizes=sizes, guess=guess)
        scope.ambiguous_ranks = {} if unify_ranks else None
        try:
            return infer_into(scope, graph)
        except SardonyxError:
            if shapes or not (scope.choices or scope.ambiguous_ranks):
                raise
    return infer_into(Scope(assumes=assumes), graph)


def _sizes_in(graph: Graph, shapes: Shapes) -> dict[str, int | None]:
    """Return the sizes in shapes by the names of the inputs' symbolic dims."""
    found: dict[str, int | None] = {}
    for value in graph.inputs:
        dims = value.fact.shape if isinstance(value.fact, Fact) else None
        sizes = shapes.get(value.name, ())
        for axis, d in enumerate(dims or ()):
            if (name := lone_name(d)) is not None:
                found[name] = sizes[axis] if axis < len(sizes) else found.get(name)
    return found


def infer_into(scope: Scope, graph: Graph) -> None:
    """Infer one graph with a scope, which becomes the graph's."""
    graph.scope = scope
    for value in graph.inputs:
        if isinstance(value.fact, Fact):
            scope.entry.update(name for d in value.fact.shape or () for name in symbols(d))
    for node in graph.nodes:
        infer_node(scope, node)


def infer_body(parent: Scope, graph: Graph, inputs: Sequence[AnyFact]) -> list[AnyFact]:
    """Return the facts of a body's outputs from those of its inputs."""
    if len(inputs) != len(graph.inputs):
        raise InvalidGraph(
            f"the body {graph.name or 'of ' + str(parent.node)} has {len(graph.inputs)} inputs, "
            f"got {len(inputs)}"
        )
    for value, fact in zip(graph.inputs, inputs, strict=True):
        value.fact = fact.without_contents() if isinstance(fact, Fact) else fact
    infer_into(Scope(parent), graph)
    return [v.fact for v in graph.outputs if v.fact is not None]


def infer_node(scope: Scope, node: Node) -> None:
    """Infer the facts of one node's outputs from those of its inputs."""
    scope.node = node
    try:
        results = _inferred(scope, node)
    except SardonyxError as error:
        _locate(error, node)
        raise
    except Exception as error:
        ours = as_sardonyx_error(error, f"inferring {node.op}")
        _locate(ours, node)
        raise ours from error
    for value, fact in zip(node.outputs, results, strict=False):
        value.fact = fact


def _inferred(scope: Scope, node: Node) -> Sequence[AnyFact]:
    op = node.op
    facts = [None if v is None else v.fact for v in node.inputs]
    bound = _check_types(op, facts)
    for i in op.singles:
        _check_single(scope, op.inputs[i].name, facts[i] if i < len(facts) else None)
    missing = len(op.inputs) - len(facts)
    if missing > 0 and not op.inputs[-1].variadic:
        facts.extend([None] * missing)
    if not op.takes_unranked and _has_open_rank(facts):
        results: Sequence[AnyFact] = _unranked(op, node, bound)
    elif op.infer_rule is None:
        raise InvalidGraph(f"{op} has no inference rule")
    else:
        results = _by_rule(scope, node, facts, bound)
    if op.symbolic_rule is not None:
        results = _with_symbols(op, facts, node.attrs, results)
    if results and results[0].__class__ is Fact and _needs_elements(results[0]):
        results = _with_numbers(node, results[0], results)
    for fact in results:
        if fact.__class__ is Fact and fact.shape:
            _check_addressable(fact.shape)
    if len(results) < len(node.outputs):
        named = len(node.outputs)
        raise InvalidGraph(f"{op} has {len(results)} outputs here, but the node names {named}")
    return results


def _check_addressable(shape: Shape) -> None:
    """Reject a tensor beyond any memory; sizes that pass this check fit into 64 bits."""
    count = 1
    for d in shape:
        if d.__class__ is int:
            count = count * (d or 1) if d >= 0 else MAX_ELEMENTS + 1
    if count > MAX_ELEMENTS:
        shown = ", ".join(map(str, shape))
        raise ShapeError(
            f"a result would have the shape ({shown}): sizes are 0 or more, and give at most "
            "2**62 elements"
        )


def _check_single(scope: Scope, name: str, fact: AnyFact | None) -> None:
    """Require one element in an input of which kernels read the first element."""
    if isinstance(fact, Fact) and fact.shape:
        scope.equal(product(fact.shape), 1, f"{name} must have one element")


def _has_open_rank(facts: Sequence[AnyFact | None]) -> bool:
    for fact in facts:  # noqa: SIM110 - a generator is slower, and this is hot
        if fact.__class__ is Fact and fact.shape is None:
            return True
    return False


def _by_rule(
    scope: Scope, node: Node, facts: list[AnyFact | None], bound: dict[str, DType]
) -> Sequence[AnyFact]:
    """Apply the op's inference rule; the rank stays unknown if a symbolic size grows too long."""
    rule = node.op.infer_rule
    assert rule is not None
    try:
        return as_facts(rule(scope, *facts, **node.attrs))
    except FormulaTooLong:
        return _unranked(node.op, node, bound)


def _locate(error: SardonyxError, node: Node) -> None:
    shown = ", ".join("-" if v is None else repr(v) for v in node.inputs)
    error.add_context(node=node, inputs=shown, stage="infer")


def _check_types(op: Op, facts: Sequence[AnyFact | None]) -> dict[str, DType]:
    """Check arity and element types; return the element type of each type variable."""
    if len(facts) < op.min_inputs or (op.max_inputs is not None and len(facts) > op.max_inputs):
        raise InvalidGraph(f"{op} takes {_arity(op)} inputs, not {len(facts)}")
    bound: dict[str, DType] = {}
    last = len(op.inputs) - 1
    for i, fact in enumerate(facts):
        slot = op.inputs[min(i, last)]
        if fact is None:
            if not slot.optional:
                raise InvalidGraph(f"input {slot.name} of {op} is missing")
            continue
        if not slot.type:
            continue
        if fact.__class__ is not Fact:
            raise ShapeError(f"input {slot.name} of {op} must be a tensor, got {fact}")
        dtype = fact.dtype
        seen = bound.setdefault(slot.type, dtype)
        if seen is not dtype and not slot.variadic:
            raise ShapeError(
                f"inputs of type {slot.type} must agree: {slot.name} is {dtype}, another is {seen}"
            )
        if slot.type in op.types and dtype not in op.types[slot.type]:
            types = ", ".join(sorted(d.name for d in allowed(op, slot)))
            raise ShapeError(
                f"input {slot.name} of {op} is {dtype}; supported types: {types}",
                # Programs look for onnxruntime's words.
                type=f"Type Error: Type 'tensor({dtype.ort_name})' of operator ({op}) is invalid",
            )
    return bound


def _arity(op: Op) -> str:
    fewest, most = op.min_inputs, op.max_inputs
    if most is None:
        return f"{fewest} or more"
    return str(most) if fewest == most else f"{fewest} to {most}"


def _unranked(op: Op, node: Node, bound: dict[str, DType]) -> list[AnyFact]:
    """Return facts of unknown rank, for a node with inputs of unknown rank."""
    results: list[AnyFact] = []
    if op.type_rule is not None:
        bound = {**bound, **op.type_rule(bound, node.attrs)}
    for i in range(len(node.outputs)):
        slot = op.outputs[min(i, len(op.outputs) - 1)]
        dtype = bound.get(slot.type)
        if dtype is None:
            kinds = op.types.get(slot.type, frozenset())
            if len(kinds) != 1:
                what = f"the type of {slot.name} of {op} depends on an input of unknown rank"
                raise ShapeError(what)
            (dtype,) = kinds
        results.append(Fact(dtype, None))
    return results


def _with_symbols(
    op: Op, facts: Sequence[AnyFact | None], attrs: dict[str, Any], results: Sequence[AnyFact]
) -> Sequence[AnyFact]:
    """Add the elements of small integer results, if those of all inputs are known."""
    first = results[0]
    if first.__class__ is not Fact or first.sym is not None:
        return results
    arrays: list[Any] = []
    for fact in facts:
        if fact is None:
            arrays.append(None)
            continue
        if fact.__class__ is not Fact or fact.sym is None or fact.static is None:
            return results
        arrays.append(_objects(fact.sym, fact.static))
    assert op.symbolic_rule is not None
    try:
        outputs = op.symbolic_rule(*arrays, **attrs)
    except FormulaTooLong:
        return results
    if outputs is None:
        return results
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [_with_elements(f, o) for f, o in zip(results, outputs, strict=False)]


def _needs_elements(fact: Fact) -> bool:
    """Return whether inference computes with the elements, and does not know them yet."""
    if fact.sym is not None or fact.dtype.kind not in SYMBOLIC_KINDS or fact.static is None:
        return False
    return math.prod(fact.static) <= MAX_SYMBOLIC


def _with_numbers(node: Node, first: Fact, results: Sequence[AnyFact]) -> Sequence[AnyFact]:
    """Add the elements of a small integer result that depends on constants alone."""
    elements = constant_elements(node, first)
    return results if elements is None else [first.with_elements(elements), *results[1:]]


def _objects(sym: Shape, shape: tuple[int, ...]) -> Any:
    cells = np.empty(len(sym), object)
    cells[:] = sym
    return cells.reshape(shape)


def _with_elements(fact: AnyFact, array: Any) -> AnyFact:
    array = np.asarray(array, object)
    if (
        not isinstance(fact, Fact)
        or array.size > MAX_SYMBOLIC
        or any(x is None for x in array.flat)
    ):
        return fact
    cells = tuple(int(x) if isinstance(x, (bool, np.bool_, np.integer)) else x for x in array.flat)
    return fact.with_elements(cells) if all(_fits(x, fact.dtype) for x in cells) else fact


def _fits(size: Size, dtype: DType) -> bool:
    """Return whether a type can represent a size: symbolic rules compute without overflow."""
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    if dtype.kind == "bool" and isinstance(size, Dim):
        return True  # symbolic rules return only 0 or 1 for bools
    if isinstance(size, int):
        return size - low < 2 ** (1 if dtype.kind == "bool" else dtype.bits) and size >= low
    return dtype.bits >= 32 and (low < 0 or least(size) >= 0)
