"""The Open Inference Protocol v2 over HTTP."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.serve.protocol.tensors import string_array
from tests.serve.http_client import Client, outputs_of, tensor

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def test_health_and_metadata(client: Client) -> None:
    assert client.get("/v2/health/live").status == 200
    assert client.get("/v2/health/ready").json == {"ready": True}
    server = client.get("/v2").json
    assert server["name"] == "sardonyx"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get("/v2/models/double").json
    assert model == {
        "name": "double",
        "versions": ["1"],
        "platform": "sardonyx_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
    assert client.get("/v2/models/double/ready").json == {"name": "double", "ready": True}


def test_json_inference(client: Client) -> None:
    message = {"id": "42", "inputs": [tensor("x", X)]}
    answer = client.post("/v2/models/double/infer", message)
    assert answer.json == {
        "model_name": "double",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [2, 4, 6, 8, 10, 12]}
        ],
    }
    assert "inference-header-content-length" not in answer.headers


def test_binary_inference(client: Client) -> None:
    assert np.array_equal(client.infer("double", {"x": X})["y"], X * 2)


def test_an_output_may_be_binary_alone(client: Client) -> None:
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    answer = client.post("/v2/models/double/infer", {"inputs": [tensor("x", X)], "outputs": wanted})
    assert int(answer.headers["inference-header-content-length"]) == len(answer.body) - 24
    assert np.array_equal(outputs_of(answer)["y"], X * 2)


def test_outputs_have_the_requested_order(client: Client) -> None:
    ids = np.array([[1, 2]], np.int64)
    inputs = [tensor("input_ids", ids), tensor("attention_mask", np.ones_like(ids))]
    for names in (["tokens", "total"], ["total"]):
        outputs = [{"name": name} for name in names]
        answer = client.post("/v2/models/masked/infer", {"inputs": inputs, "outputs": outputs})
        assert list(outputs_of(answer)) == names


@pytest.mark.parametrize(
    "values",
    [
        string_array(["größe", "", "a\0b"], (1, 3)),
        np.array([[1.5, -2, 3e38]], ml_dtypes.bfloat16),
        np.array([[1.5, -2, 6e4]], np.float16),
        np.array([[True, False]]),
        np.array([[0, 255]], np.uint8),
        np.array([[-(2**63), 2**63 - 1]], np.int64),
        np.array([[np.nan, np.inf, 1e-300]]),
    ],
    ids=lambda v: str(v.dtype),
)
def test_every_kind_of_type_goes_through(client: Client, values: Any) -> None:
    name = "string" if values.dtype == object else str(values.dtype)
    name = {"float64": "double"}.get(name, name)
    binary = client.infer(f"same_{name}", {"x": values})["y"]
    assert binary.dtype == values.dtype
    assert np.array_equal(binary, values, equal_nan=values.dtype.kind == "f")
    answer = client.post(f"/v2/models/same_{name}/infer", {"inputs": [tensor("x", values)]})
    assert answer.status == 200, answer.body
    plain = outputs_of(answer)["y"]
    assert np.array_equal(plain, values, equal_nan=values.dtype.kind == "f")


def test_the_newest_version_answers(client: Client) -> None:
    assert np.array_equal(client.infer("scale", {"x": X})["y"], X * 3)
    assert client.get("/v2/models/scale").json["versions"] == ["10"]
    older = client.post("/v2/models/scale/versions/2/infer", {"inputs": [tensor("x", X)]})
    assert (older.status, older.json["error"]) == (
        503,
        "version 2 of scale is not loaded: ask for it",
    )
    assert client.get("/v2/models/scale/versions/3").status == 404


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([], "the input x is missing"),
        ([tensor("z", X)], "no input z; it has x"),
        ([tensor("x", X.astype(np.int32))], "has the datatype FP32"),
        ([tensor("x", X[0])], "must have 2 dims, got [3]"),
        ([tensor("x", X[:, :2])], "must have the shape [-1, 3], got [2, 2]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(client: Client, inputs: Any, match: str) -> None:
    answer = client.post("/v2/models/double/infer", {"inputs": inputs})
    assert answer.status == 400
    assert match in answer.json["error"]


def test_named_dims_agree(client: Client) -> None:
    ids, mask = np.ones((1, 2), np.int64), np.ones((1, 3), np.int64)
    inputs = [tensor("input_ids", ids), tensor("attention_mask", mask)]
    answer = client.post("/v2/models/masked/infer", {"inputs": inputs})
    assert answer.json["error"] == "s is 2 in the input input_ids, but 3 in attention_mask"


def test_an_unknown_output_is_refused(client: Client) -> None:
    message = {"inputs": [tensor("x", X)], "outputs": [{"name": "z"}]}
    answer = client.post("/v2/models/double/infer", message)
    assert (answer.status, answer.json["error"]) == (400, "the model has no output z; it has y")


def test_wrong_data_of_one_request_are_its_own_fault(client: Client) -> None:
    answer = client.post("/v2/models/pick/infer", {"inputs": [tensor("index", np.array([1, 7]))]})
    assert answer.status in (400, 500)
    assert "7" in answer.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/none", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("GET", "/v3", 404),
        ("GET", "/v2/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v2/models/double/infer", 400),
        ("POST", "/v2/repository/models/double/unload", 403),
        ("POST", "/v2/repository/models/..%2fx/load", 404),
    ],
)
def test_paths_without_an_endpoint(client: Client, method: str, path: str, status: int) -> None:
    answer = client.send(method, path, b'{"inputs":[]}' if method == "POST" else None)
    assert answer.status == status
    assert answer.json["error"]


def test_the_index_lists_versions(client: Client) -> None:
    rows = client.post("/v2/repository/index").json
    states = {(row["name"], row["version"]): row["state"] for row in rows}
    assert states["double", "1"] == "READY"
    assert states["scale", "2"] == "UNAVAILABLE"
    assert states["scale", "10"] == "READY"
    ready = client.post("/v2/repository/index", {"ready": True}).json
    assert {row["state"] for row in ready} == {"READY"}


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bodies(client: Client, encoding: str, compress: Any) -> None:
    body = compress(json.dumps({"inputs": [tensor("x", X)]}).encode())
    headers = {"Content-Encoding": encoding}
    path = "/v2/models/double/infer"
    assert outputs_of(client.send("POST", path, body, headers))["y"].tolist() == (X * 2).tolist()
    for wrong in (body[:-3], body + b"x", b"no"):
        assert client.send("POST", path, wrong, headers).status == 400
    bomb = compress(bytes(50 << 20))
    answer = client.send("POST", path, bomb, headers)
    assert (answer.status, "decompressed" in answer.json["error"]) == (413, True)
    assert client.send("POST", path, body, {"Content-Encoding": "br"}).status == 415


def test_large_bodies_are_refused_before_they_are_read(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port)) as sock:
        sock.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\n")
        sock.sendall(b"Content-Length: 99999999999\r\n\r\n")
        assert b" 413 " in sock.recv(1000)


def test_chunked_bodies_have_the_same_limit(server: Any) -> None:
    with Client(server.http_port) as client:
        body = json.dumps({"inputs": [tensor("x", X)]}).encode()
        parts = (body[i : i + 7] for i in range(0, len(body), 7))
        answer = client.post("/v2/models/double/infer", parts)
        assert np.array_equal(outputs_of(answer)["y"], X * 2)
    with socket.create_connection(("127.0.0.1", server.http_port)) as sock:
        sock.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\n")
        sock.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (1 << 19, bytes(1 << 19))
        sock.sendall(chunk * 2 + chunk[:1000])
        sock.sendall(chunk[1000:])
        assert b" 413 " in sock.recv(1000)


@pytest.mark.parametrize("size", ["-1", "x", "99999999", "1e3", "٣"])
def test_wrong_json_sizes_are_refused(client: Client, size: str) -> None:
    headers = {"Inference-Header-Content-Length": size.encode().decode("latin-1")}
    answer = client.send("POST", "/v2/models/double/infer", b"{}", headers)
    assert answer.status == 400


def test_requests_are_traced(server: Any, client: Client) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    propagation = pytest.importorskip("opentelemetry.trace.propagation.tracecontext")
    spans, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    tracer = server.service.tracer
    tracer.use(provider, propagation.TraceContextTextMapPropagator())
    try:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        path = "/v2/models/double/infer"
        assert client.post(path, {"inputs": [tensor("x", X)]}, traceparent=parent).status == 200
    finally:
        tracer.stop()
    (span,) = spans.get_finished_spans()
    assert span.name == "infer double"
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]
    assert f"{span.parent.span_id:016x}" == parent.split("-")[2]


def test_many_clients_get_their_own_answers(server: Any) -> None:
    errors: list[object] = []

    def ask(number: int) -> None:
        with Client(server.http_port) as client:
            for i in range(40):
                x = np.full((1 + i % 3, 3), number * 100 + i, np.float32)
                if not np.array_equal(client.infer("double", {"x": x})["y"], x * 2):
                    errors.append((number, i))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
