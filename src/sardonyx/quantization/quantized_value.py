"""Values that are available as integers, while ops are replaced by ops on integers."""

from __future__ import annotations

from sardonyx.base.records import frozen, mutable
from sardonyx.quantization.document import NodeDoc


@frozen
class QuantizedValue:
    """A value that is available as integers: names of these, their scale and zero point."""

    original_name: str
    q_name: str
    scale_name: str
    zp_name: str
    axis: int | None = None


@mutable
class QuantizedInputs:
    """The inputs of a node as integers, and the nodes that make them so."""

    names: list[str]
    zero_points: list[str]
    scales: list[str]
    nodes: list[NodeDoc]

    def append(self, value: QuantizedValue) -> None:
        """Add an input."""
        self.names.append(value.q_name)
        self.zero_points.append(value.zp_name)
        self.scales.append(value.scale_name)

    def joined(self, other: QuantizedInputs | None) -> QuantizedInputs | None:
        """Return both groups of inputs; None if one of them is not quantized."""
        if other is None:
            return None
        return QuantizedInputs(
            self.names + other.names,
            self.zero_points + other.zero_points,
            self.scales + other.scales,
            self.nodes + other.nodes,
        )

    def triples(self) -> list[str]:
        """Return name, scale and zero point of each, as QLinear ops take them."""
        groups = zip(self.names, self.scales, self.zero_points, strict=True)
        return [name for group in groups for name in group]
