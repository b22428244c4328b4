"""Execution providers: who can run a node, and as what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sardonyx.graph.graph import Node
    from sardonyx.program.call import Lowered
    from sardonyx.program.program import Program, Run

# A step on run-time values: arrays in, arrays out, with the run it belongs to.
StepCall = Callable[[Sequence[Any], "Run"], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Yes:
    """The provider takes the node."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class No:
    """The provider does not take the node, for a reason that tells the user what to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that a provider compiles together, in the order they run."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What a provider makes of one node, and the kernel's name for people.

    That is a call in Python, and for native code also what it does there. The call serves where
    native code cannot: beside sizes that are not known yet, and in bodies of Python's.
    """

    node: Node
    call: StepCall
    kernel: str
    lowered: Lowered | None = None


class Provider(Protocol):
    """Runs nodes. Providers never edit the graph."""

    name: str

    def claims(self, node: Node) -> Yes | No:
        """Whether the provider takes a node."""
        ...

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> Sequence[Step]:
        """The steps of a region, one per node; `bodies` are the programs of the nodes' bodies."""
        ...
