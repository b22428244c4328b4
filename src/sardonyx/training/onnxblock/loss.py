"""Losses: blocks that add a loss, and the graph input that it compares with."""

from __future__ import annotations

import copy
from typing import Any, Final

from onnx import TensorProto, helper

from sardonyx.training.onnxblock import blocks
from sardonyx.training.onnxblock.graph_edit import (
    generate_graph_name,
    get_output_from_output_name,
    node_arg_exists,
)

_REDUCTIONS: Final = ("mean", "sum", "none")


def _checked(reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise RuntimeError(
            f"the reduction {reduction!r} is not supported; use one of {', '.join(_REDUCTIONS)}"
        )
    return reduction


class _ElementwiseLoss(blocks.Block):
    """A loss of each element of prediction and target, then a reduction."""

    def __init__(self, reduction: str = "mean") -> None:
        self._reduction = _checked(reduction)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Return the name of the loss; a target that the graph does not have becomes an input."""
        if not node_arg_exists(self.base, target_name):
            info = copy.deepcopy(get_output_from_output_name(self.base, loss_input_name))
            info.name = target_name
            self.base.graph.input.append(info)
        losses = self._losses(loss_input_name, target_name)
        if self._reduction == "none":
            return losses
        op = "ReduceMean" if self._reduction == "mean" else "ReduceSum"
        return self._append(op, [losses], keepdims=0)

    def _losses(self, prediction: str, target: str) -> str:
        raise NotImplementedError


class MSELoss(_ElementwiseLoss):
    """The squared difference from the target."""

    def _losses(self, prediction: str, target: str) -> str:
        difference = self._append("Sub", [prediction, target])
        two = self._initializer("pow_exponent", [2])
        return self._append("Pow", [difference, two])


class L1Loss(_ElementwiseLoss):
    """The absolute difference from the target."""

    def _losses(self, prediction: str, target: str) -> str:
        return self._append("Abs", [self._append("Sub", [prediction, target])])


class BCEWithLogitsLoss(_ElementwiseLoss):
    """Binary cross entropy of the sigmoid of the prediction.

    `weight` scales each element of the loss, `pos_weight` the part of positive examples. Sigmoid
    and logarithm are separate nodes, as in onnxruntime: logits beyond about 17 give infinity.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight = weight
        self._pos_weight = pos_weight

    def _losses(self, prediction: str, target: str) -> str:
        one = self._initializer("bceloss.one", [1])
        probability = self._append("Sigmoid", [prediction])
        positive = self._append("Mul", [self._append("Log", [probability]), target])
        if self._pos_weight is not None:
            weight = self._initializer("bceloss.pos_weight", self._pos_weight)
            positive = self._append("Mul", [positive, weight])
        log_other = self._append("Log", [self._append("Sub", [one, probability])])
        negative = self._append("Mul", [log_other, self._append("Sub", [one, target])])
        losses = self._append("Neg", [self._append("Add", [positive, negative])])
        if self._weight is not None:
            weight = self._initializer("bceloss.weight", self._weight)
            losses = self._append("Mul", [weight, losses])
        return losses


class CrossEntropyLoss(blocks.Block):
    """Cross entropy of scores and class labels, with optional weights of the classes."""

    def __init__(
        self, weight: Any = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        self._reduction = _checked(reduction)
        self._weight = weight
        self._ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Return the name of the loss; labels that the graph does not have become an input."""
        if not node_arg_exists(self.base, labels_name):
            info = copy.deepcopy(get_output_from_output_name(self.base, scores_input_name))
            info.name = labels_name
            info.type.tensor_type.elem_type = TensorProto.INT64
            # The classes are the last axis of the scores, which labels do not have.
            del info.type.tensor_type.shape.dim[-1]
            self.base.graph.input.append(info)
        inputs = [scores_input_name, labels_name]
        if self._weight is not None:
            inputs.append(self._initializer("celoss.weight", self._weight))
        attributes: dict[str, Any] = {"reduction": self._reduction}
        if self._ignore_index is not None:
            attributes["ignore_index"] = self._ignore_index
        loss = generate_graph_name("loss")
        # onnxruntime's gradient reads the second output, the logarithms of the probabilities.
        outputs = [loss, generate_graph_name("log_prob")]
        name = generate_graph_name("SoftmaxCrossEntropyLoss")
        node = helper.make_node("SoftmaxCrossEntropyLoss", inputs, outputs, name, **attributes)
        self.base.graph.node.append(node)
        return loss
