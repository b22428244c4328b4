"""A loaded model: its graph, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from sardonyx.errors import InvalidGraph
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph


@dataclass(slots=True)
class Declared:
    """An input or output as the model declares it; dims are numbers, names or None."""

    name: str
    fact: AnyFact | None
    dims: tuple[int | str | None, ...] | None


@dataclass(slots=True)
class Model:
    """Everything that loading makes of a file."""

    graph: Graph
    ir_version: int
    opsets: dict[str, int]
    inputs: list[Declared]
    outputs: list[Declared]
    overridable: list[Declared]
    origin: str = "uri"
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    version: int = 0
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    def check_outputs(self) -> None:
        """The outputs must be of the types that the model declares, once these are inferred."""
        for declared, value in zip(self.outputs, self.graph.outputs, strict=True):
            wanted, found = declared.fact, value.fact
            if not isinstance(wanted, Fact) or not isinstance(found, Fact):
                continue
            if wanted.dtype is not found.dtype:
                says = f"is declared as {wanted.dtype}, and is {found.dtype}"
                raise InvalidGraph(
                    f"the output {declared.name} {says}", node=value.node or "(none)"
                )
