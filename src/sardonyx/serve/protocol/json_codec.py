"""HTTP bodies of inference: a JSON object, then the binary tensors in the order of its entries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sardonyx.serve.protocol.datatypes import BY_DTYPE, BY_NAME, Array, Datatype
from sardonyx.serve.protocol.json_tensors import from_json, to_json
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.messages import InferRequest, InferResponse, RequestedOutput
from sardonyx.serve.protocol.tensors import Buffer, from_bytes, to_bytes
from sardonyx.serve.refusals import BadRequest, TooLarge

MAX_TIMEOUT_S: Final = 86_400.0
_UNSUPPORTED: Final = ("shared_memory_region", "classification")  # extensions of Triton


def decode(body: Buffer, json_size: int | None, limits: Limits) -> InferRequest:
    """Return the request of a body whose first `json_size` bytes (None: all) are JSON."""
    if json_size is not None and not 0 <= json_size <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_size}, but the body has {len(body)} bytes"
        )
    n_json = len(body) if json_size is None else json_size
    if n_json > limits.json_bytes:
        raise TooLarge(
            f"the JSON has {n_json} bytes; at most {limits.json_bytes} are: send binary tensors"
        )
    view = memoryview(body)
    message = parse_object(view if json_size is None else view[:json_size])
    binary = view[len(view) if json_size is None else json_size :]
    parameters = mapping(message, "parameters")
    request = InferRequest(
        _inputs(message, binary, limits),
        _outputs(message, limits),
        _text(message, "id", limits),
        is_binary=_flag(parameters, "binary_data_output"),
    )
    request.priority, request.timeout_s = schedule_of(parameters)
    return request


def parse_object(data: Buffer) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        message = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise BadRequest(f"the body must be a JSON object, got a {type(message).__name__}")
    return message


def mapping(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key; an empty one if there is none."""
    value = message.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{key} must be a JSON object, got {value!r:.40}")
    return value


def schedule_of(parameters: Mapping[str, Any]) -> tuple[int, float | None]:
    """Return the priority and the timeout in seconds; the parameter is in microseconds."""
    priority, timeout = parameters.get("priority", 0), parameters.get("timeout")
    if type(priority) is not int or not 0 <= priority <= 1000:
        raise BadRequest(f"priority must be a number from 0 to 1000, got {priority!r:.40}")
    if timeout is None or timeout == 0:
        return priority, None
    if type(timeout) is not int or timeout < 0:
        raise BadRequest(f"timeout must be a number of microseconds, got {timeout!r:.40}")
    return priority, min(timeout * 1e-6, MAX_TIMEOUT_S)


def _entries(message: Mapping[str, Any], key: str, limits: Limits) -> Sequence[Mapping[str, Any]]:
    entries = message.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise BadRequest(f"{key} must be a list of JSON objects")
    limits.check_count(len(entries), key)
    return entries


def _inputs(message: Mapping[str, Any], binary: memoryview, limits: Limits) -> dict[str, Array]:
    feed: dict[str, Array] = {}
    offset = 0
    for entry in _entries(message, "inputs", limits):
        name = limits.check_name(entry.get("name"))
        if name in feed:
            raise BadRequest(f"the input {name} is there twice")
        datatype, shape = _declared(name, entry, limits)
        size = mapping(entry, "parameters").get("binary_data_size")
        if size is None:
            feed[name] = from_json(name, datatype, shape, entry.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - offset:
            raise BadRequest(
                f"binary_data_size of {name} is {size!r:.40}; {len(binary) - offset} bytes are left"
            )
        feed[name] = from_bytes(name, datatype, shape, binary[offset : offset + size])
        offset += size
    if offset != len(binary):
        raise BadRequest(f"{len(binary) - offset} bytes after the JSON object belong to no input")
    return feed


def _declared(
    name: str, entry: Mapping[str, Any], limits: Limits
) -> tuple[Datatype, tuple[int, ...]]:
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or datatype not in BY_NAME:
        raise BadRequest(f"the datatype of {name} must be one of {', '.join(BY_NAME)}")
    if not isinstance(shape, list):
        raise BadRequest(f"the shape of {name} must be a list of sizes, got {shape!r:.40}")
    for key in _UNSUPPORTED:
        if key in mapping(entry, "parameters"):
            raise BadRequest(f"{name} has the parameter {key}, which is not supported")
    return BY_NAME[datatype], limits.check_shape(name, shape)


def _outputs(message: Mapping[str, Any], limits: Limits) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for entry in _entries(message, "outputs", limits):
        name, parameters = limits.check_name(entry.get("name")), mapping(entry, "parameters")
        for key in _UNSUPPORTED:
            if parameters.get(key):
                raise BadRequest(f"{name} has the parameter {key}, which is not supported")
        default = _flag(mapping(message, "parameters"), "binary_data_output")
        outputs[name] = RequestedOutput(name, _flag(parameters, "binary_data", default))
    return tuple(outputs.values())


def _flag(parameters: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise BadRequest(f"{key} must be true or false, got {value!r:.40}")
    return value


def _text(message: Mapping[str, Any], key: str, limits: Limits) -> str:
    value = message.get(key, "")
    if not isinstance(value, str):
        raise BadRequest(f"{key} must be a string, got {value!r:.40}")
    if len(value) > limits.name_length:
        raise TooLarge(f"{key} has {len(value)} characters; at most {limits.name_length} are")
    return value


def encode(response: InferResponse) -> tuple[list[Buffer], int | None]:
    """Return the parts of a body, and the size of its JSON if binary tensors follow it."""
    parts: list[Buffer] = []
    entries = []
    for output, array in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": BY_DTYPE[array.dtype].name,
            "shape": list(array.shape),
        }
        if output.is_binary:
            data = to_bytes(array)
            parts.append(data)
            entry["parameters"] = {"binary_data_size": len(data)}
        else:
            entry["data"] = to_json(array)
        entries.append(entry)
    message: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        message["id"] = response.id
    message["outputs"] = entries
    text = json.dumps(message, separators=(",", ":")).encode()
    return [text, *parts], len(text) if parts else None
