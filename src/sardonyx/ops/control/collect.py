"""The internal Loop, which concatenates its outputs directly instead of through a sequence."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.control.scan_outputs import collected, facts_for_empty, stacked
from sardonyx.ops.control.standard import (
    BODY,
    LOOP_SLOTS,
    LOOP_TYPES,
    Body,
    loop_facts,
    min_iterations,
    run_loop,
)
from sardonyx.ops.inference import axis_of

STACKED: Final = 0  # along a new axis, like the scan outputs of a Loop
STACKED_ELEMENTS: Final = 1  # the same for former sequence elements: zero iterations are an error
JOINED_ELEMENTS: Final = 2  # concatenated along an existing axis

_JOINS: Final = dict.fromkeys(("axes", "join_kinds"), required("ints"))
loop = Op(
    "Loop", 1, *LOOP_SLOTS, attrs=BODY | _JOINS, types=LOOP_TYPES, domain=INTERNAL, unranked=True
)


@loop.infer
def _(
    g: Scope,
    trips: Fact | None = None,
    cond: Fact | None = None,
    *values: AnyFact,
    body: Graph,
    axes: tuple[int, ...],
    join_kinds: tuple[int, ...],
) -> list[AnyFact]:
    finals, iteration_facts, count = loop_facts(g, trips, cond, values, body)
    if not len(iteration_facts) == len(axes) == len(join_kinds) or not set(join_kinds) <= {0, 1, 2}:
        raise InvalidGraph(f"{axes=} and {join_kinds=} do not fit {len(iteration_facts)} outputs")
    rows = facts_for_empty(g, iteration_facts, min_iterations(g, trips, cond))
    results: list[AnyFact] = []
    for fact, row, axis, kind in zip(iteration_facts, rows, axes, join_kinds, strict=True):
        if kind != JOINED_ELEMENTS:
            results.append(stacked(row if kind == STACKED else fact, count, axis))
        elif not isinstance(fact, Fact) or fact.shape is None:
            raise InvalidGraph(f"only tensors can be concatenated, got {fact}")
        else:
            at = axis_of(axis, fact.rank)
            results.append(
                fact.shaped((*fact.dims[:at], g.new_dim("joined"), *fact.dims[at + 1 :]))
            )
    return [*finals, *results]


@loop.reference
def _(
    trips: Array | None = None,
    cond: Array | None = None,
    *initial: Any,
    body: Body,
    axes: tuple[int, ...],
    join_kinds: tuple[int, ...],
) -> tuple[Any, ...]:
    values, rows, facts = run_loop(trips, cond, initial, body)
    results = []
    for row, fact, axis, join_kind in zip(rows, facts, axes, join_kinds, strict=True):
        if join_kind != STACKED and not row:
            raise InvalidArgument("the Loop ran no iterations: nothing to concatenate")
        if join_kind == JOINED_ELEMENTS:
            results.append(np.concatenate(row, axis))
        else:
            results.append(collected(row, fact, axis))
    return (*values, *results)


OPS: Final = (loop,)
