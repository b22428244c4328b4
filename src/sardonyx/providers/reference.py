"""The reference provider: runs nodes by the numpy references of their ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, detached
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import MAX_SYMBOLIC, infer_node
from sardonyx.graph.op import INTERNAL, as_outputs
from sardonyx.ops.arrays import Array
from sardonyx.place.provider import CompiledNode, No, Region, StepCall, Yes
from sardonyx.program.program import Program, Run
from sardonyx.program.run import PythonBody


class Reference:
    """Runs nodes by their ops' numpy references."""

    name = "reference"

    def claims(self, node: Node) -> Yes | No:
        """Yes to every op that has a reference."""
        if node.op.reference_rule is None:
            return No(f"{node.op} has no numpy reference")
        return Yes("numpy reference")

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> list[CompiledNode]:
        """One call of the op's reference per node."""
        return [CompiledNode(n, _call(n, bodies.get(n)), "numpy") for n in region.nodes]


def _call(node: Node, bodies: dict[str, Program] | None) -> StepCall:
    op, attrs = node.op, node.attrs
    absent = [None] * op.n_absent(len(node.inputs))
    rule = op.reference_rule
    assert rule is not None
    if op.key == (INTERNAL, "Sizes"):  # computed from the sizes of named dims, not from arrays
        return lambda arrays, run: (rule(run.dims, **attrs),)
    # Ops on tensors of unknown rank were not checked by inference.
    if bodies is None and any(v is not None and _is_unranked(v) for v in node.inputs):

        def checked(arrays: Sequence[Any], run: Run) -> Sequence[Any]:
            _check_shapes(node, arrays)
            return as_outputs(rule(*arrays, *absent, **attrs))

        return checked
    if bodies is None:
        return lambda arrays, run: as_outputs(rule(*arrays, *absent, **attrs))

    def with_bodies(arrays: Sequence[Any], run: Run) -> Sequence[Any]:
        # Bodies capture outer values from the frame of this run.
        bound = {name: PythonBody(program, run) for name, program in bodies.items()}
        return as_outputs(rule(*arrays, *absent, **{**attrs, **bound}))

    return with_bodies


def _is_unranked(value: Value) -> bool:
    return isinstance(value.fact, Fact) and value.fact.shape is None


def _check_shapes(node: Node, arrays: Sequence[Any]) -> None:
    """Run the op's shape inference on concrete shapes, which were unknown at compile time."""
    if not all(a is None or isinstance(a, np.ndarray) for a in arrays):
        return
    inputs = [
        None if v is None else Value("", _fact(v.tensor, array))
        for v, array in zip(node.inputs, arrays, strict=True)
    ]
    copy = detached(Graph(), node.op, inputs, node.attrs, len(node.outputs), node.name)
    try:
        infer_node(Scope(), copy)
    except (InvalidGraph, ShapeError) as error:
        raise InvalidArgument(error.what) from None


def _fact(fact: Fact, array: Array) -> Fact:
    """Return the fact of a concrete array; small integers are known by value."""
    if array.size <= MAX_SYMBOLIC and fact.dtype.kind in ("int", "uint", "bool"):
        return const_fact(ArrayConst(array))
    return Fact(fact.dtype, array.shape)
