"""Loops that join what their passes make, where ONNX fills a sequence and joins that."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import BOOL
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.control.scan_outputs import collected, perhaps_none, stacked
from sardonyx.ops.control.standard import Body, least_turns, loop_facts, passes
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sizes import SIZES

STACKED: Final = 0  # along a new axis, as the outputs of a Loop are
STACKED_ELEMENTS: Final = 1  # the same of what was in a sequence: there must be some
JOINED_ELEMENTS: Final = 2  # along an axis that they have

loop = Op(
    "Loop",
    1,
    "M:I? cond:B? v_initial*",
    "v_final_and_scan_outputs*",
    attrs={"body": required("graph"), "axes": required("ints"), "joins": required("ints")},
    types={"I": SIZES, "B": frozenset((BOOL,))},
    domain=INTERNAL,
    unranked=True,
)


@loop.infer
def _(
    g: Scope,
    trips: Fact | None = None,
    cond: Fact | None = None,
    *values: AnyFact,
    body: Graph,
    axes: tuple[int, ...],
    joins: tuple[int, ...],
) -> list[AnyFact]:
    finals, parts, count = loop_facts(g, trips, cond, values, body)
    if not len(parts) == len(axes) == len(joins) or not set(joins) <= {0, 1, 2}:
        raise InvalidGraph(f"axes {axes} and joins {joins} are for {len(parts)} outputs")
    rows = perhaps_none(g, parts, least_turns(g, trips, cond))
    wholes: list[AnyFact] = []
    for part, row, axis, how in zip(parts, rows, axes, joins, strict=True):
        if how != JOINED_ELEMENTS:
            wholes.append(stacked(row if how == STACKED else part, count, axis))
        elif not isinstance(part, Fact) or part.shape is None:
            raise InvalidGraph(f"tensors are joined, not {part}")
        else:
            at = axis_of(axis, part.rank)
            wholes.append(part.shaped((*part.dims[:at], g.fresh("joined"), *part.dims[at + 1 :])))
    return [*finals, *wholes]


@loop.reference
def _(
    trips: Array | None = None,
    cond: Array | None = None,
    *initial: Any,
    body: Body,
    axes: tuple[int, ...],
    joins: tuple[int, ...],
) -> tuple[Any, ...]:
    values, rows, facts = passes(trips, cond, initial, body)
    wholes = []
    for row, fact, axis, how in zip(rows, facts, axes, joins, strict=True):
        if how != STACKED and not row:
            raise InvalidArgument("there are no elements to join")
        if how == JOINED_ELEMENTS:
            wholes.append(np.concatenate(row, axis))
        else:
            wholes.append(collected(row, fact, axis))
    return (*values, *wholes)


OPS: Final = (loop,)
