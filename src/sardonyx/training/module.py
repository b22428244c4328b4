"""`Module`: runs a training model and an evaluation model on the parameters of a checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.ort.options import SessionOptions
from sardonyx.ort.ort_value import OrtValue, as_ort_value
from sardonyx.save import SaveOptions, save
from sardonyx.session import InferenceSession
from sardonyx.training.checkpoint import Path
from sardonyx.training.checkpoint_state import CheckpointState
from sardonyx.training.state import TrainingState
from sardonyx.training.training_model import TrainingModel, inference_model, read_model_of

_CUDA: Final = "CUDAExecutionProvider"


class Module:
    """A model with its parameters: a call runs a training step, or in `eval` mode a forward pass.

    A training step computes the outputs and adds the gradients to those of earlier steps, unless
    `lazy_reset_grad` was called in between.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: Path,
        state: CheckpointState,
        eval_model_uri: Path | None = None,
        device: str = "cpu",
        session_options: SessionOptions | None = None,
    ) -> None:
        """Load the models; `device` is cpu or cuda, with a number after a colon."""
        if not isinstance(state, CheckpointState):
            raise TypeError(f"state must be a CheckpointState, got {type(state).__name__}")
        self.training = True
        self._checkpoint = state
        self._state: TrainingState = state._state
        self._session_options = session_options or SessionOptions()
        providers = _providers(device)
        self._eval_path = None if eval_model_uri is None else os.fspath(eval_model_uri)
        self._train = _Runner(train_model_uri, self._state, self._session_options, providers)
        self._eval = None
        if eval_model_uri is not None:
            self._eval = _Runner(eval_model_uri, self._state, self._session_options, providers)
        self._accumulates = False
        self._check_gradients()
        if not self._state.is_nominal:
            self._allocate_gradients()

    def _check_gradients(self) -> None:
        """Check that the model computes the gradient of each parameter that is trained."""
        model = self._train.model
        for name in model.gradients:
            if name not in self._state.parameters:
                raise InvalidArgument(
                    f"{model.name} trains {name}, which the checkpoint does not have"
                )
        for name in model.parameters:
            if self._state.parameters[name].requires_grad and name not in model.gradients:
                raise InvalidArgument(
                    f"the checkpoint trains {name}, and {model.name} has no gradient of it",
                    hint="generate model and checkpoint together",
                )

    def _allocate_gradients(self) -> None:
        for name in self._train.model.gradients:
            parameter = self._state.parameters[name]
            assert parameter.data is not None
            parameter.grad = np.zeros_like(parameter.data)

    def __call__(self, *user_inputs: Any) -> Any:
        """Run the model on the inputs, in the order of `input_names`; return its outputs.

        They are arrays, or OrtValues if no input is an array; one output is returned as it is,
        several as a tuple.
        """
        self._state.need_values()
        runner = self._runner()
        with self._gradients_released() if self.training else contextlib.nullcontext():
            outputs = runner.run(user_inputs)
        n_outputs = len(runner.model.outputs)
        if self.training:
            self._add_gradients(runner.model.gradients, outputs[n_outputs:])
        results = outputs[:n_outputs]
        if not any(isinstance(value, np.ndarray) for value in user_inputs):
            results = [as_ort_value(value) for value in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _runner(self) -> _Runner:
        if self.training:
            return self._train
        if self._eval is None:
            raise Fail("the module has no evaluation model", hint="pass eval_model_uri to Module")
        return self._eval

    @contextlib.contextmanager
    def _gradients_released(self) -> Iterator[None]:
        """Free gradients that a run overwrites, so that they exist once; zeros if it fails."""
        if self._accumulates:
            yield
            return
        for name in self._train.model.gradients:
            self._state.parameters[name].grad = None
        try:
            yield
        except BaseException:
            self._allocate_gradients()
            raise

    def _add_gradients(self, names: Sequence[str], gradients: Sequence[Array]) -> None:
        for name, gradient in zip(names, gradients, strict=True):
            parameter = self._state.parameters[name]
            if self._accumulates:
                assert parameter.grad is not None
                np.add(parameter.grad, gradient, out=parameter.grad)
            else:
                # Outputs of a run belong to the caller; those of numpy may be views.
                parameter.grad = np.require(gradient, requirements=("C", "W"))
        self._accumulates = True

    def train(self, mode: bool = True) -> Module:
        """Make calls run training steps, or with `mode=False` the evaluation model."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Make calls run the evaluation model."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Make the next training step overwrite the gradients instead of adding to them."""
        self._accumulates = False

    def _names(self, trainable_only: bool) -> list[str]:
        """Return the parameters in the order of the training model's inputs."""
        parameters = self._state.parameters
        names = self._train.model.parameters
        return [n for n in names if parameters[n].requires_grad or not trainable_only]

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of all parameters, or of the trainable ones."""
        return self._train.model.size(self._names(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """Return the elements of all parameters, or of the trainable ones, as one vector."""
        self._state.need_values()
        arrays: list[Any] = []
        for name in self._names(trainable_only):
            data = self._state.parameters[name].data
            assert data is not None
            _check_float(name, data)
            arrays.append(data.reshape(-1))
        vector = np.concatenate(arrays) if arrays else np.empty(0, np.float32)
        return OrtValue.ortvalue_from_numpy(vector, *self._train.device())

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set parameters from a vector like that of `get_contiguous_parameters`.

        A nominal state becomes complete by this; then all parameters are needed.
        """
        if self._state.is_nominal and trainable_only:
            raise Fail(
                "a nominal checkpoint needs the values of all parameters, frozen ones included",
                hint="trainable_only=False",
            )
        vector = buffer.numpy() if isinstance(buffer, OrtValue) else np.asarray(buffer)
        size = self.get_parameters_size(trainable_only)
        if vector.dtype != np.float32 or vector.size != size:
            raise InvalidArgument(
                f"the buffer is {vector.dtype}{list(vector.shape)}, and the parameters are "
                f"{size} elements of float32"
            )
        vector, begin = vector.reshape(-1), 0
        for name in self._names(trainable_only):
            shape = self._train.model.shape(name)
            end = begin + int(np.prod(shape, dtype=np.int64))
            self._set(name, vector[begin:end].reshape(shape))
            begin = end
        if self._state.is_nominal:
            self._state.is_nominal = False
            self._allocate_gradients()

    def _set(self, name: str, value: Array) -> None:
        parameter = self._state.parameters[name]
        if parameter.data is None:
            parameter.data = np.array(value)
        else:
            _check_float(name, parameter.data)
            np.copyto(parameter.data, value)

    def export_model_for_inferencing(
        self, inference_model_uri: Path, graph_output_names: Sequence[str]
    ) -> None:
        """Save the evaluation model with these outputs and the current parameters."""
        self._state.need_values()
        if self._eval_path is None:
            raise Fail("the module has no evaluation model", hint="pass eval_model_uri to Module")
        model = inference_model(self._eval_path, self._state, graph_output_names)
        save(model, SaveOptions(os.fspath(inference_model_uri)))

    def input_names(self) -> list[str]:
        """Return the names of the inputs of a call, in training or evaluation mode."""
        return list(self._runner().model.user_inputs)

    def output_names(self) -> list[str]:
        """Return the names of the outputs of a call, in training or evaluation mode."""
        return list(self._runner().model.outputs)


class _Runner:
    """A session of a model, whose parameters are fed from a state."""

    def __init__(
        self, path: Path, state: TrainingState, options: SessionOptions, providers: list[Any]
    ) -> None:
        self.model: TrainingModel = read_model_of(path, state)
        self._state = state
        self._session = InferenceSession(self.model.model, options, providers=providers)

    def device(self) -> tuple[str, int]:
        """Return the kind and the number of the device that the session uses."""
        options = self._session.get_provider_options().get(_CUDA)
        return ("cpu", 0) if options is None else ("cuda", int(options.get("device_id", 0)))

    def run(self, user_inputs: Sequence[Any]) -> list[Any]:
        """Return all outputs, gradients included."""
        names = self.model.user_inputs
        if len(user_inputs) != len(names):
            raise InvalidArgument(
                f"{self.model.name} has {len(names)} inputs ({', '.join(names)}), "
                f"and {len(user_inputs)} were passed"
            )
        feeds = dict(zip(names, user_inputs, strict=True))
        feeds |= {name: self._state.parameters[name].data for name in self.model.parameters}
        outputs: list[Any] = self._session.run(None, feeds)
        return outputs


def _check_float(name: str, data: Array) -> None:
    if data.dtype != np.float32:
        raise InvalidArgument(f"the parameter {name} is {data.dtype}, and buffers are float32")


def _providers(device: str) -> list[Any]:
    """Return the providers for a device such as cuda:1."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise InvalidArgument(f"the device must be cpu, cuda or cuda:<number>, got {device!r}")
    host = "CPUExecutionProvider"
    return [host] if kind == "cpu" else [(_CUDA, {"device_id": number or "0"}), host]
