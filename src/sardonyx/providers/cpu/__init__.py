"""The CPU provider: nodes as native kernels."""

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
from sardonyx.place.provider import CompiledNode, No, Region, Yes
from sardonyx.program.program import Program
from sardonyx.providers.cpu.index import lowering, text_lowering
from sardonyx.providers.reference import Reference

CONTROL: Final = frozenset((("", "If"), ("", "Loop"), ("", "Scan"), (INTERNAL, "Loop")))
ZIP_MAP: Final = (ML, "ZipMap")  # whose result is no tensor
MAX_RANK: Final = 10  # of a tensor that kernels take


class Cpu:
    """Runs nodes by native kernels."""

    name = "cpu"

    def __init__(self) -> None:
        if not native.isa:
            wanted = os.environ.get("SARDONYX_ISA")
            raise InvalidArgument(
                f"SARDONYX_ISA is {wanted!r}, which this build or this CPU lacks; "
                f"there are {', '.join(native.isas)}: set one of these, or unset the variable"
            )
        self._found: dict[Node, Lowered] = {}
        self._reference = Reference()

    def claims(self, node: Node) -> Yes | No:
        """Yes to nodes that have a kernel for their types."""
        found = lowered(node)
        if isinstance(found, No):
            return found
        self._found[node] = found
        return Yes("native kernel")

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> list[CompiledNode]:
        """What each node becomes, with its reference to fall back on."""
        steps = []
        for step in self._reference.compile(region, bodies):
            found = self._found.pop(step.node)
            row = found.kernel if isinstance(found, Call) else type(found).__name__.lower()
            steps.append(CompiledNode(step.node, step.call, row, found))
        return steps


def lowered(node: Node) -> Lowered | No:
    """What a node becomes, or why it has no kernel."""
    lower = lowering(node.op.key) or node.op.lowering_rule
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if any(isinstance(v.fact, Fact) and v.fact.dtype is STRING for v in values):
        lower = text_lowering(node.op.key)
    if lower is None and node.op.key not in CONTROL:
        return No(f"{node.op} has no kernel" + (" for strings" if lowering(node.op.key) else ""))
    for value in node.inputs if node.op.key == ZIP_MAP else values:
        if value is not None and (why := _unfit(value)):  # else lowering may take it for granted
            if node.op.name == "If" and value.node is node and _is_unranked(value):
                continue  # its bodies know better
            return No(why)
    return Bodies() if lower is None else lower(node)


def _is_unranked(value: Value) -> bool:
    fact = value.fact
    return isinstance(fact, Fact) and fact.shape is None and fact.dtype is not STRING


def _unfit(value: Value) -> str:
    """Why kernels cannot take a value; empty if they can."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return f"{value} is no tensor"
    if fact.shape is None:
        return f"the rank of {value} is not known"
    if len(fact.shape) > MAX_RANK:
        return f"{value} has more than {MAX_RANK} dims"
    return ""
