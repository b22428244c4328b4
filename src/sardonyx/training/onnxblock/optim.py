"""Optimizers: blocks that build the optimizer model, with onnxruntime's ops of com.microsoft.

The model's inputs are the learning rate, the step, and sequences of parameters, gradients and
moments, which the ops update in place; its output says whether they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from sardonyx.errors import InvalidArgument
from sardonyx.graph.op import MICROSOFT
from sardonyx.training.onnxblock import blocks
from sardonyx.training.onnxblock.training_block import ForwardBlock, Tensors


class ClipGradNorm(blocks.Block):
    """Scales a sequence of gradients whose norm over all elements exceeds a maximum."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = float(max_norm)

    def build(self, gradients_name: str) -> str:
        inputs = [gradients_name]
        output = self._append("InplaceClipGradNorm", inputs, MICROSOFT, max_norm=self._max_norm)
        # Shape inference of the package onnx does not know the op.
        info = helper.make_tensor_sequence_value_info(output, TensorProto.FLOAT, None)
        self.base.graph.value_info.append(info)
        return output


class SGDOptimizer(blocks.Block):
    """The node of SGD."""

    def build(self, *input_names: str) -> str:
        """Take rate, parameters and gradients."""
        return self._append("SGDOptimizerV2", list(input_names), MICROSOFT)


class AdamWOptimizer(blocks.Block):
    """The node of AdamW, in the form of Hugging Face's: weights decay after the update."""

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
    ) -> None:
        self._attributes = {
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "epsilon": float(1e-6 if eps is None else eps),
            "weight_decay": float(weight_decay or 0.0),
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": 1,
        }

    def build(self, *input_names: str) -> str:
        """Take rate, step, parameters, gradients, first and second moments."""
        return self._append("AdamWOptimizer", list(input_names), MICROSOFT, **self._attributes)


class _Optimizer(ForwardBlock):
    """Builds an optimizer model for the trainable parameters of a training block."""

    moments: Sequence[str]  # inputs with the moments, in the order of the op

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: tuple[Tensors, Tensors]) -> str:
        """Return the name of the output, which is true if the parameters were updated."""
        trainable, _ = parameters
        if not trainable:
            raise InvalidArgument(
                "the optimizer has no parameters to train",
                hint="name them in requires_grad",
            )
        inputs = self.base.graph.input
        inputs.append(helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]))
        inputs.append(helper.make_tensor_value_info("step", TensorProto.INT64, [1]))
        for name in ("params", "gradients", *self.moments):
            info = helper.make_tensor_sequence_value_info(name, trainable[0].data_type, None)
            inputs.append(info)
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        updated: str = self._update(gradients)
        info = helper.make_tensor_value_info(updated, TensorProto.BOOL, [1])
        self.base.graph.output.append(info)
        return updated

    def _update(self, gradients: str) -> Any:
        """Append the node that updates the parameters, and return the name of its output."""
        raise NotImplementedError


class AdamW(_Optimizer):
    """The optimizer model of AdamW."""

    moments = ("first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        clip_grad: blocks.Block | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def _update(self, gradients: str) -> Any:
        return self._adamw("learning_rate", "step", "params", gradients, *self.moments)


class SGD(_Optimizer):
    """The optimizer model of SGD, without momentum."""

    moments = ("first_order_moments",)  # onnxruntime requires this input, which no node reads

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def _update(self, gradients: str) -> Any:
        return self._sgd("learning_rate", "params", gradients)
