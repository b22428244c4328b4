"""The state of a training run as tensors and metadata of a checkpoint, and back."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np

import sardonyx._native as native
from sardonyx.base.records import as_dict, field, mutable
from sardonyx.base.shared_store import Array
from sardonyx.errors import UNEXPECTED_ERRORS, InvalidArgument
from sardonyx.load.model import Model
from sardonyx.ops.random.standard import set_seed
from sardonyx.train.checkpoint import Checkpoint
from sardonyx.train.optimizers import LearningRate

_PARAMETERS, _STATE, _BEST, _RANDOM = "parameters/", "state/", "best/", "random/"
_LOSSES: Final = "losses"  # stored as a tensor: a long run has millions
_STOPPED: Final = "stopped"  # the name of `early_stop_reason` in checkpoints


class Step(Protocol):
    """The interface of a training step that the loop uses (`TrainingStep`)."""

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The current parameters by name."""
        ...

    @property
    def state(self) -> Mapping[str, Array]:
        """The state of the optimizer and running statistics, by name."""
        ...

    @property
    def statistics(self) -> Mapping[str, Array]:
        """The running statistics alone, which are part of the model as parameters are."""
        ...

    def run(self, feeds: Any, lr: LearningRate | None = None) -> Mapping[str, Any]:
        """Run one batch, and return the model's outputs."""
        ...

    def load(self, parameters: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Continue with these parameters and this state."""
        ...

    def to_model(self) -> Model:
        """Return the model with its current parameters."""
        ...


@mutable
class State:
    """Training progress."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch
    losses: list[float] = field(default_factory=list)  # by step
    evaluations: list[dict[str, float]] = field(default_factory=list)  # with their "step"
    best: float = math.nan  # of the monitored value
    n_worse: int = 0  # evaluations since the best one
    early_stop_reason: str = ""


def seed_sessions(seed: int) -> None:
    """Seed the random ops of sessions that have no seed of their own."""
    set_seed(seed)


class Generators:
    """The global random generators of Python and numpy at the start of the current epoch."""

    def __init__(self) -> None:
        self._start: dict[str, Any] | None = None

    def enter_epoch(self) -> None:
        """Record the states; in a resumed epoch, restore those at its start."""
        if self._start is None:
            self._start = _states()
        else:
            _set_states(self._start)

    def leave_epoch(self) -> None:
        """Drop the recorded states: the epoch ended."""
        self._start = None

    def pack(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the states as tensors and metadata."""
        start = self._start or _states()
        tensors = {_RANDOM + name: start[name] for name in ("python", "numpy")}
        rest = {"gauss": start["gauss"], "numpy": start["rest"]}
        rest["session"] = list(native.random_stream())
        return tensors, rest

    def unpack(self, tensors: Mapping[str, Array], rest: Mapping[str, Any]) -> None:
        """Restore the states of a checkpoint."""
        self._start = {
            "python": tensors[_RANDOM + "python"],
            "numpy": tensors[_RANDOM + "numpy"],
            "gauss": rest["gauss"],
            "rest": rest["numpy"],
        }
        if not isinstance(rest["session"], dict):  # which older versions have: numpy's state
            native.set_random_stream(*rest["session"])


def _states() -> dict[str, Any]:
    _, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    assert kind == "MT19937"
    python = np.array(words, np.uint32)
    return {"python": python, "gauss": gauss, "numpy": np.array(keys), "rest": list(rest)}


def _set_states(states: Mapping[str, Any]) -> None:
    random.setstate((3, tuple(map(int, states["python"])), states["gauss"]))
    np.random.set_state(("MT19937", states["numpy"], *states["rest"]))


def pack(
    step: Step, state: State, best: Mapping[str, Array], generators: Generators
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return everything that is needed to resume a run."""
    tensors = {_PARAMETERS + name: array for name, array in step.parameters.items()}
    tensors |= {_STATE + name: array for name, array in step.state.items()}
    tensors |= {_BEST + name: array for name, array in best.items()}
    drawn, random_metadata = generators.pack()
    fields = as_dict(state)
    fields[_STOPPED] = fields.pop("early_stop_reason")
    tensors |= drawn | {_LOSSES: np.array(fields.pop(_LOSSES), np.float64)}
    return tensors, {"state": fields, "random": random_metadata}


def best_of(step: Step) -> dict[str, Array]:
    """Return copies of what makes the model of a step: parameters and running statistics."""
    return {n: np.array(a) for n, a in (*step.parameters.items(), *step.statistics.items())}


def load_best(step: Step, best: Mapping[str, Array]) -> None:
    """Return a step to the model of `best`."""
    statistics = {name: best[name] for name in step.statistics if name in best}
    step.load({name: best[name] for name in step.parameters}, {**step.state, **statistics})


def unpack(found: Checkpoint, step: Step, generators: Generators) -> tuple[State, dict[str, Array]]:
    """Load a checkpoint into a step and the generators; return the state and the best arrays."""
    try:
        losses = found.tensors[_LOSSES].tolist()
        fields = dict(found.metadata["state"])
        reason = fields.pop(_STOPPED, "")
        state = State(**fields, losses=losses, early_stop_reason=reason)
        generators.unpack(found.tensors, found.metadata["random"])
    except UNEXPECTED_ERRORS as error:
        raise InvalidArgument(
            f"{found.path} is not a checkpoint of a training run: {error!r}"
        ) from None
    step.load(_with_prefix(found, _PARAMETERS), _with_prefix(found, _STATE))
    return state, _with_prefix(found, _BEST)


def _with_prefix(found: Checkpoint, prefix: str) -> dict[str, Array]:
    named = ((name.removeprefix(prefix), name) for name in found.tensors)
    return {short: found.tensors[name] for short, name in named if short != name}
