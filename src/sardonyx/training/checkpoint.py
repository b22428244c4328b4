"""Loads and saves the state of a training run: safetensors files, and those of onnxruntime.

In a safetensors file the tensor of a parameter has its name after `parameter/`, and a moment is
`moment/<group>/<moment>/<parameter>`; the rest is metadata.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.load.source import map_file
from sardonyx.train.checkpoint import Checkpoint, load_tensors, save_tensors
from sardonyx.training.ort_checkpoint import is_ort_checkpoint, read_ort_checkpoint
from sardonyx.training.ort_checkpoint_writer import ort_checkpoint
from sardonyx.training.state import OptimizerState, ParameterState, TrainingState

FORMAT: Final = "sardonyx.training"
_PARAMETER: Final = "parameter/"
_MOMENT: Final = "moment/"

Path = str | os.PathLike[str]


def load_state(path: Path) -> TrainingState:
    """Return the state that a checkpoint file of Sardonyx or onnxruntime-training stores."""
    target = os.path.abspath(os.fspath(path))
    data = map_file(target, target).data
    if is_ort_checkpoint(data):
        return read_ort_checkpoint(data, target)
    return _state_of(load_tensors(target))


def save_state(state: TrainingState, path: Path, include_optimizer_state: bool = False) -> None:
    """Write a state to a safetensors file, atomically."""
    tensors: dict[str, Any] = {
        _PARAMETER + name: parameter.data
        for name, parameter in state.parameters.items()
        if parameter.data is not None
    }
    groups = {}
    for label, group in state.groups.items() if include_optimizer_state else ():
        for parameter, moments in group.moments.items():
            tensors |= {f"{_MOMENT}{label}/{m}/{parameter}": data for m, data in moments.items()}
        groups[label] = [group.step, group.initial_rate, group.rate]
    metadata = {
        "format": FORMAT,
        "is_nominal": state.is_nominal,
        "parameters": [[p.name, p.requires_grad] for p in state.parameters.values()],
        "groups": groups,
        "properties": state.properties,
    }
    save_tensors(path, tensors, metadata)


def save_ort_checkpoint(
    state: TrainingState, path: Path, include_optimizer_state: bool = False
) -> None:
    """Write a state to a file that onnxruntime-training reads, atomically."""
    target = os.path.abspath(os.fspath(path))
    data = ort_checkpoint(state, include_optimizer_state)
    try:
        with writing(target) as file:
            file.write(data)
    except OSError as error:
        what = f"the checkpoint {target} cannot be written: {error.strerror or error}"
        raise Fail(what) from error


def _state_of(file: Checkpoint) -> TrainingState:
    try:
        if file.metadata["format"] != FORMAT:
            raise KeyError("format")
        return _read(file)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{file.path} is a safetensors file, and not a checkpoint of training ({error})",
            hint="CheckpointState.save_checkpoint and generate_artifacts write these",
        ) from None


def _read(file: Checkpoint) -> TrainingState:
    entries, tensors = file.metadata, {name: np.array(t) for name, t in file.tensors.items()}
    state = TrainingState(is_nominal=bool(entries["is_nominal"]))
    for name, requires_grad in entries["parameters"]:
        data = None if state.is_nominal else tensors.pop(_PARAMETER + name)
        state.add(ParameterState(name, bool(requires_grad), data))
    for label, (step, initial_rate, rate) in entries["groups"].items():
        state.groups[label] = OptimizerState(int(step), float(initial_rate), float(rate))
    for name, value in entries["properties"].items():
        state.set_property(name, value)
    for name, data in tensors.items():
        kind, label, moment, parameter = name.split("/", 3)
        if kind + "/" != _MOMENT:
            raise ValueError(f"{name} is not a parameter")
        state.groups[label].moments.setdefault(parameter, {})[moment] = data
    return state
