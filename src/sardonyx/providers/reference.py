"""The reference provider: every op in plain numpy, wherever an op's own reference can do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.graph.graph import Node
from sardonyx.ops.declare import INTERNAL, as_outputs
from sardonyx.place.provider import No, Region, Step, StepCall, Yes
from sardonyx.program.program import Program, Run
from sardonyx.program.run import Body


class Reference:
    """Runs nodes by their ops' numpy references."""

    name = "reference"

    def claims(self, node: Node) -> Yes | No:
        """Yes to every op that has a reference."""
        if node.op.reference_rule is None:
            return No(f"{node.op} has no numpy reference")
        return Yes("numpy reference")

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> Sequence[Step]:
        """One call of the op's reference per node."""
        return [Step(n, _call(n, bodies.get(n)), "numpy") for n in region.nodes]


def _call(node: Node, bodies: dict[str, Program] | None) -> StepCall:
    op, attrs = node.op, node.attrs
    absent = [None] * op.n_absent(len(node.inputs))
    rule = op.reference_rule
    assert rule is not None
    if op.key == (INTERNAL, "Sizes"):  # made of the sizes bound so far, not of arrays
        return lambda arrays, run: (rule(run.dims, **attrs),)
    if bodies is None:
        return lambda arrays, run: as_outputs(rule(*arrays, *absent, **attrs))

    def with_bodies(arrays: Sequence[Any], run: Run) -> Sequence[Any]:
        bound = {name: Body(program, run) for name, program in bodies.items()}
        return as_outputs(rule(*arrays, *absent, **{**attrs, **bound}))

    return with_bodies
