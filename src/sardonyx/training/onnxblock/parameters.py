"""Checkpoints of a training block's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import numpy_helper

from sardonyx.errors import InvalidArgument
from sardonyx.training.checkpoint import Path, load_state, save_ort_checkpoint, save_state
from sardonyx.training.ort_checkpoint_writer import MAX_TENSOR_BYTES
from sardonyx.training.state import NOMINAL, ParameterState, TrainingState


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]] | None,
    path_to_checkpoint: Path,
    nominal_checkpoint: bool = False,
) -> None:
    """Save the trainable and the frozen parameters; a nominal checkpoint has names only.

    The file is one of onnxruntime-training, which reads the artifacts as well; parameters of more
    than 2 GB, which such a file cannot hold, are saved as safetensors.
    """
    if parameters is None:
        raise RuntimeError("there are no parameters to save")
    state = TrainingState(is_nominal=nominal_checkpoint)
    for requires_grad, tensors in zip((True, False), parameters, strict=True):
        for tensor in tensors:
            data = None if nominal_checkpoint else numpy_helper.to_array(tensor)
            state.add(ParameterState(tensor.name, requires_grad, data))
    n_bytes = sum(p.data.nbytes for p in state.parameters.values() if p.data is not None)
    save = save_ort_checkpoint if n_bytes <= MAX_TENSOR_BYTES else save_state
    save(state, path_to_checkpoint)


def load_checkpoint_to_model(path_to_checkpoint: Path, model: onnx.ModelProto) -> None:
    """Set the initializers of a model, in place, to a checkpoint's parameters of the same names."""
    state = load_state(path_to_checkpoint)
    if state.is_nominal:
        raise InvalidArgument(f"{path_to_checkpoint}: {NOMINAL}", hint="load a complete checkpoint")
    for tensor in model.graph.initializer:
        parameter = state.parameters.get(tensor.name)
        if parameter is not None:
            tensor.CopyFrom(_fitting(tensor, parameter.data))


def _fitting(tensor: onnx.TensorProto, data: Any) -> onnx.TensorProto:
    """Return the parameter as a tensor, whose type and shape must be the initializer's."""
    new = numpy_helper.from_array(data, tensor.name)
    if new.data_type != tensor.data_type or list(new.dims) != list(tensor.dims):
        kinds = onnx.TensorProto.DataType
        raise InvalidArgument(
            f"the initializer {tensor.name} is {kinds.Name(tensor.data_type)}{list(tensor.dims)}, "
            f"and in the checkpoint {kinds.Name(new.data_type)}{list(new.dims)}"
        )
    return new
