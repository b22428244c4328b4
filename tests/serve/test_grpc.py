"""The Open Inference Protocol v2 over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.serve.protocol.datatypes import BY_DTYPE, BY_NAME
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.tensors import from_bytes, string_array, to_bytes
from sardonyx.serve.refusals import Refusal

grpc = pytest.importorskip("grpc")
messages = pytest.importorskip("sardonyx.serve.grpc.messages")
codec = pytest.importorskip("sardonyx.serve.grpc.codec")

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


class Stub:
    """Methods of the service by name."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __call__(
        self, method: str, *, timeout: float = 20, metadata: Any = None, **fields: Any
    ) -> Any:
        kind = messages.MESSAGES[f"{method}Request"]
        call = self.channel.unary_unary(
            f"/{messages.SERVICE}/{method}",
            kind.SerializeToString,
            messages.MESSAGES[f"{method}Response"].FromString,
        )
        return call(kind(**fields), timeout=timeout, metadata=metadata)


@pytest.fixture
def stub(server: Any) -> Iterator[Stub]:
    made = Stub(server.grpc_port)
    yield made
    made.channel.close()


def raw(feed: dict[str, Any]) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": n, "datatype": BY_DTYPE[a.dtype].name, "shape": a.shape}
            for n, a in feed.items()
        ],
        "raw_input_contents": [bytes(to_bytes(a)) for a in feed.values()],
    }


def typed(feed: dict[str, Any]) -> dict[str, Any]:
    inputs = []
    for name, array in feed.items():
        datatype = BY_DTYPE[array.dtype]
        elements = [e.encode() if isinstance(e, str) else e for e in array.ravel().tolist()]
        contents = {datatype.contents: elements}
        entry = {"name": name, "datatype": datatype.name, "shape": array.shape}
        inputs.append({**entry, "contents": contents})
    return {"inputs": inputs}


def outputs_of(response: Any) -> dict[str, Any]:
    found = {}
    for index, tensor in enumerate(response.outputs):
        datatype, shape = BY_NAME[tensor.datatype], tuple(tensor.shape)
        if response.raw_output_contents:
            data = response.raw_output_contents[index]
            found[tensor.name] = from_bytes(tensor.name, datatype, shape, data)
        elif datatype.is_bytes:
            texts = [e.decode() for e in tensor.contents.bytes_contents]
            found[tensor.name] = string_array(texts, shape)
        else:
            elements = list(getattr(tensor.contents, datatype.contents))
            found[tensor.name] = np.array(elements, datatype.dtype).reshape(shape)
    return found


def test_health_and_metadata(stub: Stub) -> None:
    assert stub("ServerLive").live
    assert stub("ServerReady").ready
    assert stub("ServerMetadata").name == "sardonyx"
    assert stub("ModelReady", name="double").ready
    assert not stub("ModelReady", name="scale", version="2").ready
    model = stub("ModelMetadata", name="double")
    assert (model.versions, list(model.inputs[0].shape)) == (["1"], [-1, 3])
    states = {(m.name, m.version): m.state for m in stub("RepositoryIndex").models}
    assert states["scale", "10"] == "READY"


@pytest.mark.parametrize("form", [raw, typed])
def test_inference(stub: Stub, form: Any) -> None:
    response = stub("ModelInfer", model_name="double", id="9", **form({"x": X}))
    assert (response.model_name, response.model_version, response.id) == ("double", "1", "9")
    assert bool(response.raw_output_contents) == (form is raw)
    assert np.array_equal(outputs_of(response)["y"], X * 2)


@pytest.mark.parametrize(
    "values",
    [
        string_array(["größe", "", "a\0b"], (1, 3)),
        np.array([[1.5, -2, 3e38]], ml_dtypes.bfloat16),
        np.array([[True, False]]),
        np.array([[0, 255]], np.uint8),
        np.array([[-(2**63), 2**63 - 1]], np.int64),
        np.array([[np.inf, 1e-300]]),
    ],
    ids=lambda v: str(v.dtype),
)
def test_types(stub: Stub, values: Any) -> None:
    name = {"object": "string", "float64": "double"}.get(str(values.dtype), str(values.dtype))
    for form in (raw, typed) if BY_DTYPE[values.dtype].contents else (raw,):
        response = stub("ModelInfer", model_name=f"same_{name}", **form({"x": values}))
        assert np.array_equal(outputs_of(response)["y"], values)


@pytest.mark.parametrize(
    ("fields", "code", "match"),
    [
        ({"model_name": "none"}, "NOT_FOUND", "no model 'none'"),
        ({"model_name": "double"}, "INVALID_ARGUMENT", "x is missing"),
        ({"model_name": "double", **raw({"x": X[:, :2]})}, "INVALID_ARGUMENT", "the shape"),
        ({"model_name": "double", "model_version": "7"}, "NOT_FOUND", "no version '7'"),
        (
            {"model_name": "double", **raw({"x": X}), "raw_input_contents": [b""] * 2},
            "INVALID_ARGUMENT",
            "2 entries",
        ),
    ],
)
def test_refusals(stub: Stub, fields: Any, code: str, match: str) -> None:
    with pytest.raises(grpc.RpcError, match=match) as caught:
        stub("ModelInfer", **fields)
    assert caught.value.code() is grpc.StatusCode[code]


def test_loading_by_requests_is_off(stub: Stub) -> None:
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        with pytest.raises(grpc.RpcError, match="off") as caught:
            stub(method, model_name="double")
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_the_deadline_of_a_call_ends_its_run(stub: Stub, server: Any) -> None:
    steps = {"n": np.array(200_000_000_000)}
    with pytest.raises(grpc.RpcError) as caught:
        stub("ModelInfer", model_name="steps", timeout=0.2, **raw(steps))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    few = stub("ModelInfer", model_name="steps", **raw({"n": np.array(5)}))  # the slot is free
    assert outputs_of(few)["last"] == 5


def test_malformed_messages_are_the_clients_fault(stub: Stub) -> None:
    call = stub.channel.unary_unary(f"/{messages.SERVICE}/ModelInfer", bytes, bytes)
    with pytest.raises(grpc.RpcError, match="the message is not a ModelInferRequest") as caught:
        call(b"\xff\xff", timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_stream_answers_in_order(stub: Stub) -> None:
    kind = messages.MESSAGES["ModelInferRequest"]
    call = stub.channel.stream_stream(
        f"/{messages.SERVICE}/ModelStreamInfer",
        kind.SerializeToString,
        messages.MESSAGES["ModelStreamInferResponse"].FromString,
    )
    names = ["double", "none"] * 20
    requests = (kind(model_name=n, id=str(i), **raw({"x": X + i})) for i, n in enumerate(names))
    for index, response in enumerate(call(requests, timeout=20)):
        assert response.infer_response.id == str(index)
        if names[index] == "none":
            assert "no model" in response.error_message
        else:
            assert np.array_equal(outputs_of(response.infer_response)["y"], (X + index) * 2)
    assert index == len(names) - 1


LIMITS = Limits(tensors=4, rank=4, elements=1000)


@given(st.binary(max_size=200))
def test_any_message_is_decoded_or_refused(data: bytes) -> None:
    try:
        message = messages.InferRequestMessage.FromString(data)
    except Exception:  # protobuf's own refusal
        return
    with contextlib.suppress(Refusal):  # any other exception fails
        codec.decode(message, LIMITS)


def test_the_compiled_protobuf_descriptor_is_current() -> None:
    pytest.importorskip("grpc_tools")
    from tools.grpc_messages import compiled

    assert messages.COMPILED.read_bytes() == compiled()
