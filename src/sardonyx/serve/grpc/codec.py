"""Inference messages of gRPC to requests, and responses to messages."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from sardonyx.serve.grpc.messages import InferResponseMessage
from sardonyx.serve.protocol.datatypes import BY_DTYPE, BY_NAME, Array, Datatype
from sardonyx.serve.protocol.json_codec import schedule_of
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.messages import InferRequest, InferResponse, RequestedOutput
from sardonyx.serve.protocol.tensors import from_bytes, string_array, text_of, to_bytes
from sardonyx.serve.refusals import BadRequest, TooLarge

_UNSUPPORTED: Final = ("shared_memory_region", "classification")


def decode(message: Any, limits: Limits) -> InferRequest:
    """Return the request of a ModelInferRequest."""
    limits.check_count(len(message.inputs), "inputs")
    limits.check_count(len(message.outputs), "outputs")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise BadRequest(
            f"raw_input_contents has {len(raw)} entries, and there are {len(message.inputs)} inputs"
        )
    feed: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        name = limits.check_name(tensor.name)
        if name in feed:
            raise BadRequest(f"the input {name} is there twice")
        feed[name] = _tensor(name, tensor, raw[index] if raw else None, limits)
    if len(message.id) > limits.name_length:
        raise TooLarge(f"the id has {len(message.id)} characters")
    request = InferRequest(feed, _outputs(message, limits), message.id, is_raw=bool(raw))
    parameters = {key: _value(parameter) for key, parameter in message.parameters.items()}
    request.priority, request.timeout_s = schedule_of(parameters)
    return request


def _value(parameter: Any) -> object:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _outputs(message: Any, limits: Limits) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for output in message.outputs:
        _check_parameters(output.name, output.parameters)
        outputs[output.name] = RequestedOutput(limits.check_name(output.name))
    return tuple(outputs.values())


def _check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    for key in _UNSUPPORTED:
        if key in parameters and _value(parameters[key]):
            raise BadRequest(f"{name} has the parameter {key}, which is not supported")


def _tensor(name: str, tensor: Any, raw: bytes | None, limits: Limits) -> Array:
    _check_parameters(name, tensor.parameters)
    datatype = BY_NAME.get(tensor.datatype)
    if datatype is None:
        raise BadRequest(f"the datatype of {name} must be one of {', '.join(BY_NAME)}")
    shape = limits.check_shape(name, list(tensor.shape))
    if raw is not None:
        if tensor.HasField("contents"):
            raise BadRequest(f"{name} has contents, and raw contents too")
        return from_bytes(name, datatype, shape, raw)
    return _from_contents(name, datatype, shape, tensor.contents)


def _from_contents(name: str, datatype: Datatype, shape: tuple[int, ...], contents: Any) -> Array:
    if not datatype.contents:
        raise BadRequest(f"{name} is {datatype.name}, which has only raw contents")
    elements = getattr(contents, datatype.contents)
    if len(elements) != prod(shape):
        raise BadRequest(
            f"{datatype.contents} of {name} has {len(elements)} elements, not shape {list(shape)}"
        )
    if datatype.is_bytes:
        texts = [text_of(name, i, element) for i, element in enumerate(elements)]
        return string_array(texts, shape)
    try:
        array: Array = np.array(list(elements), datatype.dtype)
    except OverflowError:
        raise BadRequest(
            f"an element of {name} is outside of the range of {datatype.name}"
        ) from None
    return array.reshape(shape)


def encode(response: InferResponse, is_raw: bool) -> Any:
    """Return a ModelInferResponse, with raw contents if the request had them."""
    message = InferResponseMessage(
        model_name=response.model, model_version=response.version, id=response.id
    )
    datatypes = [BY_DTYPE[array.dtype] for _, array in response.outputs]
    is_raw = is_raw or not all(datatype.contents for datatype in datatypes)
    for (output, array), datatype in zip(response.outputs, datatypes, strict=True):
        tensor = message.outputs.add(
            name=output.name, datatype=datatype.name, shape=list(array.shape)
        )
        if is_raw:
            message.raw_output_contents.append(bytes(to_bytes(array)))
            continue
        elements: list[Any] = array.ravel().tolist()
        if datatype.is_bytes:
            elements = [element.encode() for element in elements]
        getattr(tensor.contents, datatype.contents).extend(elements)
    return message
