"""Builds the training and the evaluation model from a forward model."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable, Sequence

import onnx
from onnx import TensorProto, helper

from sardonyx.autodiff.gradient import gradient
from sardonyx.base.log import logger
from sardonyx.graph.op import MICROSOFT
from sardonyx.save import serialized
from sardonyx.training.names import ACCUMULATE, ACCUMULATED, BUFFER, RESET


def parameters_as_inputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy in which some initializers are inputs; without names, in which all are.

    Several sessions can then share the parameters, which are fed.
    """
    chosen = set(names) or {tensor.name for tensor in model.graph.initializer}
    result = copy.deepcopy(model)
    tensors = list(result.graph.initializer)
    inputs = {info.name for info in result.graph.input}
    del result.graph.initializer[:]
    for tensor in tensors:
        if tensor.name not in chosen:
            result.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            result.graph.input.append(info)
    return result


def gradient_model(
    forward: onnx.ModelProto, loss: str, requires_grad: Sequence[str]
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with gradients of the loss as further outputs, and what they are by.

    Both are in the order of the inputs.
    """
    order = {info.name: i for i, info in enumerate(forward.graph.input)}
    names = sorted(requires_grad, key=lambda name: order[name])
    if not names:
        return copy.deepcopy(forward), names
    _warn_of_statistics(forward)
    model = gradient(forward.SerializeToString(), of=loss, by=names)
    file = io.BytesIO()
    serialized(model, None).write(file)
    return onnx.load_model_from_string(file.getvalue()), names


def _warn_of_statistics(forward: onnx.ModelProto) -> None:
    """Log the batch norms in training mode: no node writes their running statistics back."""
    trained = [
        node.name or node.output[0]
        for node in forward.graph.node
        if node.op_type == "BatchNormalization"
        and any(a.name == "training_mode" and a.i for a in node.attribute)
    ]
    if trained:
        logger.warning(
            "the running statistics of %s are not updated by the training model, and the "
            "evaluation model reads them; sardonyx.train.TrainingStep updates them",
            ", ".join(trained),
        )


def accumulate_gradients(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Add each of the last outputs, gradients with respect to `names`, to its accumulator.

    The op updates its first input in place; with the input lazy_reset_grad it overwrites it.
    """
    graph = model.graph
    n_outputs = len(graph.output) - len(names)
    gradients = list(graph.output)[n_outputs:]
    del graph.output[n_outputs:]
    for i, (name, gradient_output) in enumerate(zip(names, gradients, strict=True)):
        buffer = copy.deepcopy(gradient_output)
        buffer.name = name + BUFFER
        inputs = [buffer.name, gradient_output.name, RESET]
        node = helper.make_node(
            ACCUMULATE, inputs, [name + ACCUMULATED], f"GradientAccumulator{i}",
            domain=MICROSOFT,
        )  # fmt: skip
        graph.node.append(node)
        graph.input.append(buffer)
        updated = helper.make_tensor_value_info(name + ACCUMULATED, TensorProto.BOOL, [1])
        graph.output.append(updated)
    graph.input.append(helper.make_tensor_value_info(RESET, TensorProto.BOOL, [1]))
    if all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def evaluation_model(forward: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which Dropout and BatchNormalization are not in training mode."""
    model = copy.deepcopy(forward)
    read = {name for node in model.graph.node for name in node.input}
    read |= {output.name for output in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2:
            node.input[2] = ""
        if node.op_type == "BatchNormalization":
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
            if read.isdisjoint(node.output[1:]):
                del node.output[1:]  # new statistics, which exist in training mode only
    return model
