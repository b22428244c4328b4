"""A loaded model: its graph, and what it says of itself."""

from __future__ import annotations

from sardonyx.base.records import field, mutable, replace
from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph


@mutable
class Declared:
    """An input or output as the model declares it; dims are numbers, names or None."""

    name: str
    fact: AnyFact | None
    dims: tuple[int | str | None, ...] | None


@mutable
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
    has_gradient_nodes: bool = field(default_factory=bool)  # see train.nodes.with_gradients

    def with_outputs(self, names: tuple[str, ...]) -> Model:
        """The same model with these of its outputs alone; its graph is changed."""
        kept = [[o.name for o in self.outputs].index(name) for name in names]
        self.graph.set_outputs([self.graph.outputs[i] for i in kept])
        return replace(self, outputs=[self.outputs[i] for i in kept])

    def check_outputs(self, is_strict: bool = False) -> None:
        """The outputs must be of the types that the model declares, once these are inferred.

        A strict check wants their sizes to be those declared, too.
        """
        for declared, value in zip(self.outputs, self.graph.outputs, strict=True):
            wanted, found = declared.fact, value.fact
            if not isinstance(wanted, Fact) or not isinstance(found, Fact):
                continue
            if wanted.dtype is not found.dtype:
                says = f"is declared as {wanted.dtype}, and is {found.dtype}"
                raise InvalidGraph(
                    f"the output {declared.name} {says}", node=value.node or "(none)"
                )
            if is_strict and not _agree(wanted.shape, found.shape):
                raise ShapeError(
                    f"the output {declared.name} is declared as {wanted}, and is {found}",
                    node=value.node or "(none)",
                )


def _agree(declared: Shape | None, found: Shape | None) -> bool:
    """Whether two shapes may be the same: of one rank, with equal numbers where both have one."""
    if declared is None or found is None:
        return True
    pairs = zip(declared, found, strict=False)
    return len(declared) == len(found) and all(
        a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    )
