"""The state of a training run: parameters, gradients, optimizer state and properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.base.records import field, mutable
from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument

GROUP: Final = "group0"  # the only optimizer group that onnxruntime writes
DEFAULT_RATE: Final = float(np.float32(1e-3))
NOMINAL: Final = "the checkpoint is nominal: it has the names of the parameters, not their values"
Property = int | float | str


@mutable
class ParameterState:
    """A parameter; a nominal one has no data, and only a module allocates gradients."""

    name: str
    requires_grad: bool
    data: Array | None = None
    grad: Array | None = None


@mutable
class OptimizerState:
    """Steps, learning rates and the moments of each parameter, by name (momentum0, momentum1)."""

    step: int = 0
    initial_rate: float = DEFAULT_RATE
    rate: float = DEFAULT_RATE
    moments: dict[str, dict[str, Array]] = field(default_factory=dict)


@mutable
class TrainingState:
    """All that a checkpoint stores, by name."""

    parameters: dict[str, ParameterState] = field(default_factory=dict)
    groups: dict[str, OptimizerState] = field(default_factory=dict)
    properties: dict[str, Property] = field(default_factory=dict)
    is_nominal: bool = field(default_factory=bool)

    def add(self, parameter: ParameterState) -> None:
        """Add a parameter, whose name must be new."""
        if parameter.name in self.parameters:
            raise InvalidArgument(f"there are two parameters {parameter.name}")
        self.parameters[parameter.name] = parameter

    def need_values(self, please: str = "Please load the model parameters first.") -> None:
        """Fail if the state is nominal."""
        if self.is_nominal:
            raise Fail(
                f"{NOMINAL}. {please}",
                hint="Module.copy_buffer_to_parameters(values, trainable_only=False)",
            )

    def set_data(self, name: str, value: Any) -> None:
        """Copy values into a parameter; type and shape must be those that it has."""
        self.need_values("Please load all the parameter states first.")
        data = self.parameters[name].data
        assert data is not None
        array = np.asarray(value)
        if array.dtype != data.dtype or array.shape != data.shape:
            raise InvalidArgument(
                f"the parameter {name} is {data.dtype}{list(data.shape)}, "
                f"and the new value {array.dtype}{list(array.shape)}"
            )
        np.copyto(data, array)

    def set_property(self, name: str, value: Property) -> None:
        """Set a property; integers are stored in 64 bits and floats in 32, as in onnxruntime."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a property must be a str, got {type(name).__name__}")
        for kind, stored in _PROPERTIES:
            if isinstance(value, kind):
                self.properties[name] = stored(value)
                return
        raise TypeError(
            f"the property {name} must be an int, float or str, got {type(value).__name__}"
        )


def _int64(value: Any) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"the property {number} does not fit into 64 bits")
    return number


_PROPERTIES: Final[tuple[tuple[Any, Callable[[Any], Property]], ...]] = (
    ((int, np.integer), _int64),
    ((float, np.floating), lambda value: float(np.float32(value))),
    (str, str),
)
