"""`CheckpointState`: parameters and properties of a training run, with access by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.training.checkpoint import Path, load_state, save_ort_checkpoint, save_state
from sardonyx.training.state import ParameterState, Property, TrainingState

_FORMATS: Final = {"safetensors": save_state, "onnxruntime": save_ort_checkpoint}


class Parameter:
    """A parameter of a `CheckpointState`; arrays are copies."""

    def __init__(self, parameter: ParameterState, state: TrainingState) -> None:
        self._parameter = parameter
        self._state = state

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self._parameter.name

    @property
    def data(self) -> Array:
        """The value; assigning one of the same type and shape sets it."""
        return np.array(self._parameter.data)

    @data.setter
    def data(self, value: Any) -> None:
        self._state.set_data(self.name, value)

    @property
    def grad(self) -> Array | None:
        """The accumulated gradient; None if the parameter is frozen or no module uses it."""
        grad = self._parameter.grad
        return None if grad is None else np.array(grad)

    @property
    def requires_grad(self) -> bool:
        """Whether the parameter is trained."""
        return self._parameter.requires_grad

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters by name; iteration yields names and parameters."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        self._check(name)
        self._state.need_values("Please load the parameter states first.")
        return Parameter(self._state.parameters[name], self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(name)
        self._state.set_data(name, value)

    def _check(self, name: str) -> None:
        if name not in self:
            known = ", ".join(self._state.parameters)
            raise KeyError(f"there is no parameter {name}; there are {known or 'none'}")

    def __contains__(self, name: object) -> bool:
        return name in self._state.parameters

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        for name in self._state.parameters:
            yield name, self[name]

    def __len__(self) -> int:
        return len(self._state.parameters)

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._state.parameters)})"


class Properties:
    """The user's properties by name: integers, floats and strings; iteration yields both."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Property:
        if name not in self:
            known = ", ".join(self._state.properties)
            raise KeyError(f"there is no property {name}; there are {known or 'none'}")
        return self._state.properties[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self._state.set_property(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.properties

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        yield from self._state.properties.items()

    def __len__(self) -> int:
        return len(self._state.properties)

    def __repr__(self) -> str:
        return f"Properties({', '.join(self._state.properties)})"


class CheckpointState:
    """The state of a training run, as `load_checkpoint` reads it and a `Module` trains it."""

    def __init__(self, state: TrainingState) -> None:
        if not isinstance(state, TrainingState):
            raise TypeError(
                f"CheckpointState takes what load_checkpoint reads, not {type(state).__name__}"
            )
        self._state = state
        self._parameters = Parameters(state)
        self._properties = Properties(state)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: Path) -> CheckpointState:
        """Read a checkpoint of Sardonyx or onnxruntime-training, complete or nominal."""
        return cls(load_state(checkpoint_uri))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: Path,
        include_optimizer_state: bool = False,
        *,
        format: str = "safetensors",
    ) -> None:
        """Write a checkpoint, atomically; with the optimizer's state, training can be resumed.

        `format="onnxruntime"` writes one for onnxruntime-training, without the learning rate.
        """
        if format not in _FORMATS:
            raise InvalidArgument(f"the format must be {' or '.join(_FORMATS)}, got {format!r}")
        _FORMATS[format](state._state, checkpoint_uri, include_optimizer_state)

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return self._parameters

    @property
    def properties(self) -> Properties:
        """The user's properties by name."""
        return self._properties
