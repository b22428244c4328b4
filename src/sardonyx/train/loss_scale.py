"""The factor of the loss in float16: as large as the gradients allow, so that few underflow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import RuntimeException

# As torch.amp.GradScaler has them.
_INITIAL: Final = 2.0**16
_GROWTH_INTERVAL: Final = 2000  # updates in a row after which the factor is doubled
# As fairseq has it: with smaller factors most gradients underflow.
_MIN_SCALE: Final = 1e-4


class LossScale:
    """Halved when a gradient overflows, doubled after many updates without."""

    def __init__(self) -> None:
        self._factor = np.full((), _INITIAL, np.float32)
        self._updates = np.zeros((), np.int64)

    @property
    def state(self) -> dict[str, Any]:
        """The live arrays by name."""
        return {"loss_scale": self._factor, "loss_scale.updates": self._updates}

    @property
    def value(self) -> float:
        """The loss scale of the next run."""
        return float(self._factor)

    def update(self, is_finite: bool) -> None:
        """Note whether a step was finite; raise, unchanged, if the factor would be too small."""
        if not is_finite and self.value * 0.5 < _MIN_SCALE:
            raise RuntimeException(
                f"the gradients overflow float16 even if the loss is scaled by {self.value:.3g}",
                hint="lower the learning rate, scale the loss in the model, or use "
                'mixed_precision="bfloat16"',
            )
        self._updates[...] = self._updates + 1 if is_finite else 0
        if not is_finite:
            self._factor *= 0.5
        elif self._updates == _GROWTH_INTERVAL:
            self._factor *= 2
            self._updates[...] = 0
