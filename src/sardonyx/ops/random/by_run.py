"""Random ops of training steps: as the standard ones, by a seed and the number of the run.

They have the name of the standard op, and the settings of the step as an input before its own. A
run that is repeated or resumed draws the same numbers.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import F64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.random import standard
from sardonyx.ops.random.mask import RUN

_KEYS: Final = 2**64


def _by_run(op: Op) -> Op:
    """Declare the op of training steps for a random op."""
    slots = ("settings:D", *(f"{s.name}:{s.type}" for s in op.inputs))
    drawn = Op(
        op.name,
        1,
        " ".join(slots),
        "y:" + op.outputs[0].type,
        attrs={**op.attrs, "seed": 0},
        types={**op.types, "D": frozenset((F64,))},
        unranked=op.takes_unranked or not op.inputs,  # the settings say nothing about the result
        domain=GRADIENT,
    )

    @drawn.infer
    def _(g: Scope, settings: Fact, *facts: Fact, **attrs: Any) -> Any:
        assert op.infer_rule is not None
        return op.infer_rule(g, *facts, **attrs)

    @drawn.reference
    def _(settings: Array, *arrays: Array, seed: int, **attrs: Any) -> Any:
        return op.run(arrays, {**attrs, "seed": (seed % _KEYS, int(settings[RUN]))})[0]

    return drawn


OPS: Final = tuple(_by_run(op) for op in standard.OPS if op is not standard.dropout)
