"""Names in training models, which are onnxruntime's."""

from __future__ import annotations

from typing import Final

RESET: Final = "lazy_reset_grad"  # the input that says whether old gradients are overwritten
BUFFER: Final = "_grad.accumulation.buffer"  # after a parameter's name: the input of a gradient
ACCUMULATED: Final = "_grad.accumulation.out"  # the output that says whether it was updated
ACCUMULATE: Final = "InPlaceAccumulatorV2"  # the op that adds a gradient to its buffer
