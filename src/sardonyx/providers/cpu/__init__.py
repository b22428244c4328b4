"""The CPU provider: runs nodes by native kernels."""

from __future__ import annotations

import os
from typing import Final

import sardonyx._native as native
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, ML
from sardonyx.place.lowered import Bodies, Call, Lowered
from sardonyx.place.provider import CompiledNode, No, Region, Yes, why_not_ranked
from sardonyx.program.program import Program
from sardonyx.providers.cpu.index import lowering, text_lowering
from sardonyx.providers.reference import Reference

CONTROL: Final = frozenset((("", "If"), ("", "Loop"), ("", "Scan"), (INTERNAL, "Loop")))
ZIP_MAP: Final = (ML, "ZipMap")  # its result is not a tensor
MAX_RANK: Final = 10  # of a tensor that kernels support


class Cpu:
    """Runs nodes by native kernels."""

    name = "cpu"

    def __init__(self) -> None:
        if not native.isa:
            name = os.environ.get("SARDONYX_ISA")
            raise InvalidArgument(
                f"SARDONYX_ISA is {name!r}, which this build or this CPU lacks; "
                f"there are {', '.join(native.isas)}: set one of these, or unset the variable"
            )
        self._lowered: dict[Node, Lowered] = {}
        self._reference = Reference()

    def claims(self, node: Node) -> Yes | No:
        """Yes to nodes that have a kernel for their types."""
        result = lowered(node)
        if isinstance(result, No):
            return result
        self._lowered[node] = result
        return Yes("native kernel")

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> list[CompiledNode]:
        """Return each node as `claims` lowered it, with its reference as the fallback."""
        compiled = []
        for node, call in ((n.node, n.call) for n in self._reference.compile(region, bodies)):
            how = self._lowered.pop(node)
            kernel = how.kernel if isinstance(how, Call) else type(how).__name__.lower()
            compiled.append(CompiledNode(node, call, kernel, how))
        return compiled


def lowered(node: Node) -> Lowered | No:
    """Return the kernel call or view that a node becomes, or why it has none."""
    lower = lowering(node.op.key) or node.op.lowering_rule
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    for v in values:
        if isinstance(v.fact, Fact) and v.fact.dtype is STRING:
            lower = text_lowering(node.op.key)
            break
    if lower is None and node.op.key not in CONTROL:
        return No(f"{node.op} has no kernel" + (" for strings" if lowering(node.op.key) else ""))
    for value in node.inputs if node.op.key == ZIP_MAP else values:
        # Lowerings rely on tensors of known rank. The outputs of an If may have none: the rank is
        # that of the branch which runs.
        if value is not None and (why := why_not_ranked(value, MAX_RANK)):
            if node.op.name == "If" and value.node is node and _is_unranked(value):
                continue
            return No(why)
    return Bodies() if lower is None else lower(node)


def _is_unranked(value: Value) -> bool:
    fact = value.fact
    return isinstance(fact, Fact) and fact.shape is None and fact.dtype is not STRING
