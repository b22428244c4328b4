"""What op rules mark for quantization in QDQ format, and the scales that it gets."""

from __future__ import annotations

from sardonyx.base.records import frozen, mutable
from sardonyx.quantization.base_quantizer import ActivationParams
from sardonyx.quantization.document import NodeDoc


@mutable
class PlannedTensor:
    """A tensor that op rules have marked for quantization."""

    is_weight: bool = False
    axis: int | None = None  # of the channels of a weight
    provider: tuple[str, str] | None = None  # tensor whose scale is shared, and the node reading it


@frozen
class PlannedBias:
    """A bias that is quantized, times beta, to int32 with the scale of input times weight."""

    node: NodeDoc
    input_name: str
    weight_name: str
    beta: float


@frozen
class TensorParams:
    """The scale of an activation, and that of a second type that some readers want."""

    original: ActivationParams
    converted: ActivationParams | None
    receivers: set[str] | None  # names of the readers of the second type; None: all


@frozen
class ScaleNames:
    """Names of scale and zero point of a tensor, and of those that some readers see."""

    original: tuple[str, str]
    converted: tuple[str, str] | None = None
    receivers: set[str] | None = None

    def seen_by(self, node_name: str) -> tuple[str, str]:
        """Return the names for a reader."""
        if self.converted is None or (
            self.receivers is not None and node_name not in self.receivers
        ):
            return self.original
        return self.converted
