"""Other forms of the same graph: functions, sparse constants, constants that are inputs too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, SparseTensorProto, helper, numpy_helper

from tests.random_graphs.eager import reads
from tests.random_graphs.value import Array

DOMAIN = "own"


@dataclass(frozen=True)
class Forms:
    """The forms in which values are written, by name."""

    outlined: frozenset[str] = frozenset()  # first outputs of nodes that become a function
    sparse: frozenset[str] = frozenset()
    defaults: frozenset[str] = frozenset()  # constants that are inputs too, and not fed
    typed: bool = False  # whether outputs say what they are


def draw(rng: Random, nodes: Sequence[NodeProto], constants: dict[str, Array]) -> Forms:
    """Some other form, or none."""
    outlined: frozenset[str] = frozenset()
    if rng.random() < 0.15 and len(nodes) > 1:
        start = rng.randrange(len(nodes))
        span = nodes[start : start + rng.randint(1, 6)]
        if not any(a.type == AttributeProto.GRAPH for n in span for a in n.attribute):
            outlined = frozenset(n.output[0] for n in span)
    fits = [n for n, a in constants.items() if a.dtype == np.float32 and a.ndim and a.size]
    sparse = frozenset(n for n in fits if rng.random() < 0.05)
    rest = [n for n, a in constants.items() if n not in sparse and a.dtype.kind in "fib"]
    defaults = frozenset(n for n in rest if rng.random() < 0.03)
    return Forms(outlined, sparse, defaults, rng.random() < 0.3)


def outline(
    nodes: Sequence[NodeProto], outlined: frozenset[str], needed: set[str], opsets: dict[str, int]
) -> tuple[list[NodeProto], list[FunctionProto]]:
    """The nodes with some of them in a function, if they still follow each other."""
    places = [i for i, n in enumerate(nodes) if n.output[0] in outlined]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return list(nodes), []
    inner, others = (
        nodes[places[0] : places[-1] + 1],
        [n for i, n in enumerate(nodes) if i not in places],
    )
    made = [o for n in inner for o in n.output if o]
    inputs = [*dict.fromkeys(r for n in inner for r in reads(n) if r not in made)]
    wanted = needed | {r for n in others for r in reads(n)}
    outputs = [o for o in made if o in wanted]
    if not outputs:
        return list(nodes), []
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    function = helper.make_function(DOMAIN, "part", inputs, outputs, list(inner), imports)
    call = helper.make_node("part", inputs, outputs, domain=DOMAIN)
    return [*nodes[: places[0]], call, *nodes[places[-1] + 1 :]], [function]


def as_sparse(name: str, array: Array) -> SparseTensorProto:
    """A constant by the places and numbers of what is not zero."""
    flat = array.reshape(-1)
    places = np.flatnonzero((flat != 0) | np.signbit(flat))
    return helper.make_sparse_tensor(
        numpy_helper.from_array(flat[places], name),
        numpy_helper.from_array(places.astype(np.int64), f"{name}_places"),
        list(array.shape),
    )
