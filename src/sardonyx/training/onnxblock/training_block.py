"""Blocks that build whole models: the forward model, or the training and evaluation models."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx

from sardonyx.base.log import logger
from sardonyx.errors import InvalidArgument
from sardonyx.training.onnxblock.base_model import edited_model
from sardonyx.training.onnxblock.blocks import Block
from sardonyx.training.onnxblock.gradient_model import (
    accumulate_gradients,
    evaluation_model,
    gradient_model,
    parameters_as_inputs,
)
from sardonyx.training.onnxblock.graph_edit import register_graph_outputs

Tensors = list[onnx.TensorProto]


class ForwardBlock(Block):
    """A block whose outputs become those of the model."""

    _model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append nodes, and return the name of the model's output, or several."""

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model; an error before the block is called."""
        if self._model is None:
            raise RuntimeError("the model is not built: call the block first")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block, infer shapes and set the model's outputs."""
        self.base = edited_model()
        output = self.build(*args, **kwargs)
        self._model = self.infer_shapes_on_base()
        register_graph_outputs(self._model, output)
        self.base.CopyFrom(self._model)
        return output


class TrainingBlock(Block):
    """A block whose first output is differentiated: it makes the training model and its parts."""

    def __init__(self) -> None:
        self._requires_grad: dict[str, None] = {}
        self._frozen_params: dict[str, None] = {}
        self._parameters: tuple[Tensors, Tensors] | None = None
        self._models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append nodes, and return the name of the loss, or the loss and further outputs."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Train a parameter, or compute the gradient of an input; `value=False` freezes it."""
        into, other = self._requires_grad, self._frozen_params
        if not value:
            into, other = other, into
        into[argument_name] = None
        other.pop(argument_name, None)

    def parameters(self) -> tuple[Tensors, Tensors]:
        """Return the trainable and the frozen parameters; an error before the block is called."""
        if self._parameters is None:
            raise RuntimeError("the parameters are not known: call the block first")
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return training and evaluation model; an error before the block is called."""
        if self._models is None:
            raise RuntimeError("the models are not built: call the block first")
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block, and the gradient graph of its first output."""
        self.base = edited_model()
        output = self.build(*args, **kwargs)
        names = [output] if isinstance(output, str) else list(output)
        model = self.infer_shapes_on_base()
        register_graph_outputs(model, names)
        self._parameters = self._named_parameters(model)
        forward = parameters_as_inputs(model, [*self._requires_grad, *self._frozen_params])
        training, trained = gradient_model(forward, names[0], list(self._requires_grad))
        accumulate_gradients(training, trained)
        self._models = training, evaluation_model(forward)
        self.base.CopyFrom(training)
        return output

    def _named_parameters(self, model: onnx.ModelProto) -> tuple[Tensors, Tensors]:
        """Return the trainable and the frozen initializers, in the order of the model."""
        _check_names(model, list(self._requires_grad))
        tensors = model.graph.initializer
        missing = self._frozen_params.keys() - {t.name for t in tensors}
        if missing:  # exporters leave out parameters that no node reads
            logger.warning("frozen_params names %s, not in the model", ", ".join(sorted(missing)))
        chosen = (self._requires_grad, self._frozen_params)
        trainable, frozen = (
            [copy.deepcopy(t) for t in tensors if t.name in names] for names in chosen
        )
        return trainable, frozen


def _check_names(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Check that names are initializers or inputs."""
    known = {t.name for t in model.graph.initializer} | {i.name for i in model.graph.input}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidArgument(
            f"requires_grad names {', '.join(unknown)}, and the model has no such parameter",
            hint=f"its initializers are {', '.join(t.name for t in model.graph.initializer)}",
        )
