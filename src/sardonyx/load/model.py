"""A loaded model: its graph, declared inputs and outputs, and metadata."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.base.records import field, mutable, replace
from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph


@mutable
class Declared:
    """A declared input or output; dims are numbers, names or None."""

    name: str
    fact: AnyFact | None
    dims: tuple[int | str | None, ...] | None


@mutable
class Model:
    """A loaded model."""

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
    # Parameters of the module that it was exported from, where training has looked for them.
    exported_parameters: frozenset[str] = field(default_factory=frozenset)
    # Returns the model without a loss that training added to it.
    before_loss: Callable[[], Model] | None = None
    has_gradient_nodes: bool = field(default_factory=bool)  # see autodiff.nodes.with_gradients

    def with_outputs(self, names: tuple[str, ...]) -> Model:
        """Return the model with a subset of its outputs; the graph is changed in place."""
        kept = [[o.name for o in self.outputs].index(name) for name in names]
        self.graph.set_outputs([self.graph.outputs[i] for i in kept])
        return replace(self, outputs=[self.outputs[i] for i in kept])

    def check_outputs(self, is_strict: bool = False) -> None:
        """Check the inferred types of the outputs, and if strict their sizes, against the model."""
        for declared, value in zip(self.outputs, self.graph.outputs, strict=True):
            expected, inferred = declared.fact, value.fact
            if not isinstance(expected, Fact) or not isinstance(inferred, Fact):
                continue
            output, node = f"the output {declared.name} is declared as", value.node or "(none)"
            if expected.dtype is not inferred.dtype:
                what = f"{output} {expected.dtype}, and is {inferred.dtype}"
                raise InvalidGraph(what, node=node)
            if is_strict and not _agree(expected.shape, inferred.shape):
                raise ShapeError(f"{output} {expected}, and is {inferred}", node=node)


def _agree(declared: Shape | None, inferred: Shape | None) -> bool:
    """Return whether two shapes have one rank, and equal sizes where both are numbers."""
    if declared is None or inferred is None:
        return True
    pairs = zip(declared, inferred, strict=False)
    return len(declared) == len(inferred) and all(
        a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    )
