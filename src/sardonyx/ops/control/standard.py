"""If, Loop, Scan and SequenceMap: ops that run subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, SardonyxError, ShapeError
from sardonyx.graph.constant_eval import constant_number
from sardonyx.graph.dim import Dim, Size, lone_name, maximum, symbols
from sardonyx.graph.dtype import BOOL, I64
from sardonyx.graph.fact import AnyFact, Fact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional, required
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.control.scan_outputs import collected, facts_for_empty, stacked
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sequence.standard import as_sequence, element_fact, is_empty_typed, join_facts
from sardonyx.ops.sizes import SIZES, STORED, copy_value, same_value

_BOOL: Final = frozenset((BOOL,))
_MAX_INFERENCES: Final = 3  # of a loop's body, until a changing shape is dropped (unknown rank)


class Body(Protocol):
    """A subgraph as a function: values in, list of values out."""

    @property
    def zero_trip_facts(self) -> list[AnyFact]:
        """Facts of the outputs if the body never runs, for empty results only."""
        ...

    def __call__(self, *values: Any) -> list[Any]: ...


def _names(facts: Iterable[AnyFact | None]) -> set[str]:
    """Return the names of symbolic sizes in the facts of tensors."""
    names: set[str] = set()
    for fact in facts:
        if isinstance(fact, Fact):
            for d in (*(fact.shape or ()), *(fact.sym or ())):
                names |= symbols(d)
    return names


def _as_seen_outside(
    g: Scope, body: Graph, inputs: Iterable[AnyFact], facts: Iterable[AnyFact]
) -> list[AnyFact]:
    """Return a body's output facts for the outer graph: sizes named inside become new dims."""
    visible = _names(inputs) | _names(v.fact for v in body.captures())

    def outer(d: Size) -> Size:
        return d if symbols(d) <= visible else g.new_dim("inner")

    out: list[AnyFact] = []
    for fact in facts:
        if isinstance(fact, Fact):
            shape = None if fact.shape is None else tuple(map(outer, fact.shape))
            is_visible = fact.sym and all(symbols(d) <= visible for d in fact.sym)
            out.append(Fact(fact.dtype, shape, None, fact.sym if is_visible else None))
        else:
            out.append(_without_constants(fact))
    return out


if_ = Op(
    "If",
    25,
    "cond:B",
    "outputs*",
    attrs={"then_branch": required("graph"), "else_branch": required("graph")},
    types={"B": _BOOL},
    unranked=True,
)


@if_.infer
def _(g: Scope, cond: Fact, *, then_branch: Graph, else_branch: Graph) -> list[AnyFact]:
    if len(then_branch.outputs) != len(else_branch.outputs):
        counts = f"{len(then_branch.outputs)} and {len(else_branch.outputs)}"
        raise InvalidGraph(f"the branches of If have {counts} outputs")
    if cond.ints is not None and len(cond.ints) == 1:
        # A constant condition: only the facts of the branch that runs count.
        chosen, other = (then_branch, else_branch) if cond.ints[0] else (else_branch, then_branch)
        facts = _as_seen_outside(g, chosen, (), g.body(chosen, ()))
        try:
            g.body(other, ())
        except SardonyxError:
            # Exporters guard ops that are invalid for a shape by a condition on that shape. Such a
            # branch never runs; its outputs get the facts of the other branch.
            for value, fact in zip(other.outputs, facts, strict=True):
                value.fact = value.fact or fact
        return facts
    facts = _as_seen_outside(g, then_branch, (), g.body(then_branch, ()))
    others = _as_seen_outside(g, else_branch, (), g.body(else_branch, ()))
    if cond.sym is not None and len(cond.sym) == 1 and not all(map(_same_rank, facts, others)):
        # The condition depends on sizes: assume, under a guard, the branch that these sizes select,
        # since everything after an unknown rank would be inferred only at run time.
        is_then = g.choose(cond.sym[0])
        if is_then is not None:
            return facts if is_then else others
    pairs = enumerate(zip(facts, others, strict=True))
    outputs = [_join_branches(g, i, a, b) for i, (a, b) in pairs]
    if g.node is not None and any(isinstance(f, Fact) and f.shape is None for f in outputs):
        g.undecided_ifs[g.node] = None
    return outputs


def _same_rank(a: AnyFact, b: AnyFact) -> bool:
    if not isinstance(a, Fact) or not isinstance(b, Fact):
        return True
    return a.shape is None or b.shape is None or len(a.shape) == len(b.shape)


def _join_branches(g: Scope, position: int, a: AnyFact, b: AnyFact) -> AnyFact:
    if a == b:
        return a
    if isinstance(a, Fact) and _scalar_or_one_element(a, b) and g.assume_vector(position):
        return Fact(a.dtype, (1,))
    joined = join_facts(a, b, g.new_dim)
    assert joined is not None
    return joined


@if_.reference
def _(cond: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    branch = then_branch if one_int(cond, "the condition") else else_branch
    return tuple(branch())


def _scalar_or_one_element(a: AnyFact, b: AnyFact) -> bool:
    """Whether one is a scalar and the other a vector of one element."""
    return {(), (1,)} == {f.shape for f in (a, b) if isinstance(f, Fact)}


def _widen(
    g: Scope, a: AnyFact, b: AnyFact, widened: set[Dim], iteration: int, position: int | None = None
) -> AnyFact:
    """Return the fact of a carried value in any iteration: the join of input `a` and output `b`.

    Sizes that differ become new dims (`widened`), which then stay fixed.
    """
    if isinstance(a, OptionalFact):
        inner = b.elem if isinstance(b, OptionalFact) else b
        return OptionalFact(_widen_elem(g, a.elem, inner, widened, iteration))
    if isinstance(a, SequenceFact) and isinstance(b, SequenceFact):
        return SequenceFact(_widen_elem(g, a.elem, b.elem, widened, iteration))
    if type(a) is not type(b):
        raise ShapeError(f"a carried value goes in as {a} and comes back as {b}")
    if not isinstance(a, Fact) or not isinstance(b, Fact):
        return a
    if a.dtype is not b.dtype:
        raise ShapeError(f"a carried value goes in as {a.dtype} and comes back as {b.dtype}")
    if position is not None and _scalar_or_one_element(a, b) and g.assume_vector(position):
        return Fact(a.dtype, (1,))
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(a.dtype, None)
    dims = []
    for x, y in zip(a.shape, b.shape, strict=True):
        if x != y and x not in widened:
            # Widening is monotone: each dim becomes a new dim at most once, so this ends.
            if iteration >= _MAX_INFERENCES:
                return Fact(a.dtype, None)
            x = g.new_dim("carried")
            widened.add(x)
        dims.append(x)
    return Fact(a.dtype, tuple(dims))


def _with_earlier_widening(fact: AnyFact, known: AnyFact | None, widened: set[Dim]) -> AnyFact:
    """Return a carried value's initial fact with the sizes that an earlier inference widened."""
    if not isinstance(fact, Fact) or not isinstance(known, Fact) or known.dtype is not fact.dtype:
        return fact
    if known.shape is None or fact.shape is None or len(known.shape) != len(fact.shape):
        return Fact(fact.dtype, None) if known.shape is None else fact
    dims: list[Size] = []
    for now, then in zip(fact.shape, known.shape, strict=True):
        name = lone_name(then)
        if name is not None and name.startswith("carried#"):
            assert isinstance(then, Dim)
            widened.add(then)
            dims.append(then)
        else:
            dims.append(now)
    return Fact(fact.dtype, tuple(dims))


def _widen_elem(
    g: Scope, a: AnyFact | None, b: AnyFact | None, widened: set[Dim], iteration: int
) -> AnyFact | None:
    if a is None or b is None or is_empty_typed(a) or is_empty_typed(b):
        return b if is_empty_typed(a) else a
    return _widen(g, a, b, widened, iteration)


def _carry(
    g: Scope, body: Graph, facts: tuple[Sequence[AnyFact], ...], skip: int
) -> tuple[list[AnyFact], list[AnyFact]]:
    """Return facts of the carried values that hold in every iteration, and of the body's outputs.

    A fixed-point iteration: infer the body and widen until input and output facts agree. `facts`
    are those of the body's inputs: before the carried ones, carried, after them. Of the outputs,
    `skip` come before the carried ones.
    """
    before, carried, after = facts[0], list(facts[1]), facts[2]
    if len(body.outputs) < skip + len(carried):
        raise InvalidGraph(
            f"the body has {len(body.outputs)} outputs, and {skip + len(carried)} are the least",
            carried=len(carried),
        )
    widened: set[Dim] = set()
    if (known := g.carried.get(body)) is not None:
        # An outer loop infers this one again: start from the facts widened before.
        pairs = zip(carried, known, strict=True)
        carried = [_with_earlier_widening(a, b, widened) for a, b in pairs]
    for i, value in enumerate(body.inputs[len(before) : len(before) + len(carried)]):
        if not value.is_used and isinstance(fact := carried[i], Fact):
            carried[i] = Fact(fact.dtype, None)  # an unused value may have any shape
    for iteration in range(2 * _MAX_INFERENCES):
        outputs = g.body(body, [*before, *carried, *after])
        back = outputs[skip : skip + len(carried)]
        both = enumerate(zip(carried, back, strict=True))
        wider = [_widen(g, a, b, widened, iteration, position) for position, (a, b) in both]
        if wider == carried:
            g.carried[body] = carried
            return carried, outputs
        carried = wider
    raise ShapeError(f"the carried values {', '.join(map(str, carried))} never settle on a type")


def _finals(
    g: Scope, inputs: Sequence[AnyFact] | None, carried: Sequence[AnyFact], back: Sequence[AnyFact]
) -> list[AnyFact]:
    """Return the final facts of carried values: the body's, joined with the inputs' facts.

    `inputs` is None if the body runs at least once.
    """
    finals: list[AnyFact] = []
    for i, (a, b) in enumerate(zip(carried, back, strict=True)):
        if isinstance(a, OptionalFact) and not isinstance(b, OptionalFact):
            finals.append(b)  # the body always returns a filled optional
        elif isinstance(a, Fact) and a.shape is None:
            joined = b if inputs is None else join_facts(inputs[i], b, g.new_dim)
            finals.append(joined or a)
        else:
            finals.append(a)
    return finals


BODY: Final = {"body": required("graph")}
LOOP_SLOTS: Final = ("M:I? cond:B? v_initial*", "v_final_and_scan_outputs*")
LOOP_TYPES: Final = {"I": SIZES, "B": _BOOL}
loop = Op("Loop", 25, *LOOP_SLOTS, attrs=BODY, types=LOOP_TYPES, unranked=True)


@loop.infer
def _(
    g: Scope, trips: Fact | None = None, cond: Fact | None = None, *values: AnyFact, body: Graph
) -> list[AnyFact]:
    finals, iteration_facts, count = loop_facts(g, trips, cond, values, body)
    rows = facts_for_empty(g, iteration_facts, min_iterations(g, trips, cond))
    return [*finals, *(stacked(f, count) for f in rows)]


def loop_facts(
    g: Scope, trips: Fact | None, cond: Fact | None, values: Sequence[AnyFact], body: Graph
) -> tuple[list[AnyFact], list[AnyFact], Size]:
    """Return the facts of final values and of one iteration's scan outputs, and the trip count."""
    inputs = [_without_constants(v) for v in values]
    head = (Fact(I64, ()), Fact(BOOL, ()))
    carried, outputs = _carry(g, body, (head, inputs, ()), 1)
    n = len(inputs) + 1
    is_open = any(isinstance(f, Fact) and f.shape is None for f in carried)
    initial = None if is_open and g.node is not None and _runs_at_least_once(g.node) else inputs
    finals = _finals(g, initial, carried, outputs[1:n])
    outer = _as_seen_outside(g, body, inputs, [*finals, *outputs[n:]])
    count = _trips(g, trips, cond, body)
    return [*map(same_value, outer[: n - 1])], outer[n - 1 :], count


def _without_constants(fact: AnyFact) -> AnyFact:
    return fact.without_contents() if isinstance(fact, (Fact, SequenceFact)) else fact


def _trips(g: Scope, trips: Fact | None, cond: Fact | None, body: Graph) -> Size:
    """Return the number of iterations, a new dim if a condition can end the loop."""
    # Exact only if the condition is true at the start and stays true in the body.
    starts = cond is None or cond.ints == (1,)
    if starts and stays_true(body) and trips is not None and trips.sym is not None:
        return maximum(trips.sym[0], 0)
    return g.new_dim("trips")


def min_iterations(g: Scope, trips: Fact | None, cond: Fact | None) -> Size:
    """Return a lower bound of the number of iterations (capped at 1 where it is certain)."""
    if g.node is not None and _runs_at_least_once(g.node):
        return 1
    if cond is not None and cond.ints != (1,):
        return 0
    if trips is None:
        return 1
    return 0 if trips.sym is None else trips.sym[0]


def _runs_at_least_once(node: Node) -> bool:
    """Whether a loop surely runs its body: trip count and condition are known and not 0."""
    return all(v is None or (constant_number(v) or 0) > 0 for v in node.inputs[:2])


def stays_true(body: Graph) -> bool:
    """Return whether the body of a Loop never ends the loop."""
    value: Value = body.outputs[0]
    while value.op == "Identity" and value.node is not None and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    fact = value.fact
    return value is body.inputs[1] or (isinstance(fact, Fact) and fact.ints == (1,))


@loop.reference
def _(trips: Array | None = None, cond: Array | None = None, *initial: Any, body: Body) -> Any:
    values, rows, facts = run_loop(trips, cond, initial, body)
    return (*values, *(collected(r, f) for r, f in zip(rows, facts, strict=True)))


def run_loop(
    trips: Array | None, cond: Array | None, initial: Sequence[Any], body: Body
) -> tuple[list[Any], list[list[Array]], list[AnyFact]]:
    """Run a loop; return final values, scan outputs per iteration, and their facts."""
    max_trips = None if trips is None else one_int(trips, "the trip count")
    is_running = cond is None or bool(one_int(cond, "the condition"))
    n = len(initial)
    values = [copy_value(v) for v in initial]
    facts = body.zero_trip_facts[n + 1 :]
    rows: list[list[Array]] = [[] for _ in facts]
    iteration = 0
    while is_running and (max_trips is None or iteration < max_trips):
        condition, *results = body(np.array(iteration), np.array(is_running), *values)
        is_running = bool(one_int(condition, "the condition"))
        values = results[:n]
        for row, result in zip(rows, results[n:], strict=True):
            row.append(result)
        iteration += 1
    return values, rows, facts


scan = Op(
    "Scan",
    25,
    "initial_state_and_scan_inputs:V*",
    "final_state_and_scan_outputs:V*",
    attrs={
        **BODY,
        "num_scan_inputs": required("int"),
        **dict.fromkeys(("scan_input_axes", "scan_input_directions"), optional("ints")),
        **dict.fromkeys(("scan_output_axes", "scan_output_directions"), optional("ints")),
    },
    types={"V": STORED},
    unranked=True,
)


def axes_and_directions(attrs: dict[str, Any], name: str, count: int) -> list[tuple[int, int]]:
    """Return the axis and direction of each scanned value; zeros where an attribute is absent."""
    axes, directions = (attrs[f"{name}_axes"], attrs[f"{name}_directions"])
    for kind, numbers in (("axes", axes), ("directions", directions)):
        if numbers is not None and len(numbers) != count:
            raise InvalidGraph(f"{name}_{kind} has {len(numbers)} numbers for {count} values")
    if not set(directions or ()) <= {0, 1}:
        what = f"{name}_directions must be 0 (forward) or 1 (backward)"
        raise InvalidGraph(f"{what}, got {tuple(directions)}")
    return list(zip(axes or (0,) * count, directions or (0,) * count, strict=True))


@scan.infer
def _(g: Scope, *xs: Fact, body: Graph, num_scan_inputs: int, **lists: Any) -> list[AnyFact]:
    if not 1 <= num_scan_inputs <= len(xs):
        raise InvalidGraph(f"num_scan_inputs is {num_scan_inputs} of {len(xs)} inputs")
    n = len(xs) - num_scan_inputs
    length: Size | None = None
    slices = []
    scanned = axes_and_directions(lists, "scan_input", num_scan_inputs)
    for x, (a, _direction) in zip(xs[n:], scanned, strict=True):
        if x.shape is None:
            slices.append(Fact(x.dtype, None))
            continue
        axis = axis_of(a, x.rank, "scan_input_axes")
        d = x.dims[axis]
        length = d if length is None else g.equal(length, d, "scanned inputs differ in length")
        slices.append(x.shaped((*x.dims[:axis], *x.dims[axis + 1 :])))
    states = [x.without_contents() for x in xs[:n]]
    carried, outputs = _carry(g, body, ((), states, slices), 0)
    finals = _finals(g, states, carried, outputs[:n])
    outer = _as_seen_outside(g, body, (*states, *slices), [*finals, *outputs[n:]])
    collected_along = axes_and_directions(lists, "scan_output", len(outputs) - n)
    count = g.new_dim("scanned") if length is None else length
    facts = facts_for_empty(g, outer[n:], 0 if length is None else length)
    pairs = zip(facts, collected_along, strict=True)
    return [*outer[:n], *(stacked(fact, count, axis) for fact, (axis, _direction) in pairs)]


@scan.reference
def _(*xs: Array, body: Body, num_scan_inputs: int, **lists: Any) -> tuple[Any, ...]:
    n = len(xs) - num_scan_inputs
    facts = body.zero_trip_facts[n:]
    inputs = zip(xs[n:], axes_and_directions(lists, "scan_input", num_scan_inputs), strict=True)
    scanned = [np.moveaxis(x, axis, 0)[:: -1 if back else 1] for x, (axis, back) in inputs]
    if len({len(x) for x in scanned}) != 1:
        raise InvalidArgument(f"scanned inputs differ in length: {[len(x) for x in scanned]}")
    states = [copy_value(x) for x in xs[:n]]
    rows: list[list[Array]] = [[] for _ in facts]
    for step in range(len(scanned[0])):
        results = body(*states, *(np.array(x[step], order="C") for x in scanned))
        states = results[:n]
        for row, result in zip(rows, results[n:], strict=True):
            row.append(result)
    outputs = zip(rows, facts, axes_and_directions(lists, "scan_output", len(facts)), strict=True)
    outs = (collected(row[:: -1 if back else 1], fact, a) for row, fact, (a, back) in outputs)
    return (*states, *outs)


sequence_map = Op(
    "SequenceMap",
    17,
    "input_sequence additional_inputs*",
    "out_sequence*",
    attrs=BODY,
    unranked=True,
)


@sequence_map.infer
def _(g: Scope, x: AnyFact, *more: AnyFact, body: Graph) -> list[AnyFact]:
    as_sequence(x, "SequenceMap")
    if len(body.inputs) != len(more) + 1:
        raise InvalidGraph(f"the body has {len(body.inputs)} inputs for {len(more) + 1} values")
    inputs = []
    for value, fact in zip(body.inputs, (x, *more), strict=True):
        if isinstance(fact, SequenceFact):
            inputs.append(element_fact(g, value.fact if is_empty_typed(fact.elem) else fact.elem))
        else:
            inputs.append(_without_constants(fact))
    return [SequenceFact(_without_constants(f)) for f in g.body(body, inputs)]


@sequence_map.reference
def _(x: list[Any], *more: Any, body: Body) -> tuple[list[Any], ...]:
    for position, other in enumerate(more, 1):
        if isinstance(other, list) and len(other) != len(x):
            counts = f"{len(other)} elements, and input 0 has {len(x)}"
            raise InvalidArgument(f"input {position} has {counts}")
    outs: tuple[list[Any], ...] = tuple([] for _ in body.zero_trip_facts)
    for i, element in enumerate(x):
        results = body(element, *(v[i] if isinstance(v, list) else v for v in more))
        for out, result in zip(outs, results, strict=True):
            out.append(copy_value(result))
    return outs


OPS: Final = (if_, loop, scan, sequence_map)
