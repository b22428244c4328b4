"""Whoever does not belong stays out: tokens, TLS, browsers, and clients that misbehave."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import SardonyxError
from sardonyx.serve import ModelConfig, ServerConfig, start
from tests.serve import models
from tests.serve.conftest import need_extra
from tests.serve.http_client import Client, tensor
from tests.serve.process import until

TOKEN = "a-token-of-enough-characters"
X = np.ones((1, 3), np.float32)
REQUEST = {"inputs": [tensor("x", X)]}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a token and short timeouts."""
    need_extra()
    folder = tmp_path_factory.mktemp("strict")
    tokens = folder / "tokens"
    tokens.write_text(f"# who may\n{TOKEN}  # everybody\nanother-token-of-that-kind\n")
    config = ServerConfig(
        port=0,
        grpc_port=0,
        models={
            "double": ModelConfig(path=str(models.save(models.DOUBLE, folder / "m.onnx"))),
            "wide": ModelConfig(
                path=str(models.save(models.WIDE, folder / "wide.onnx")), max_batch=1
            ),
        },
        token_file=str(tokens),
        header_timeout_s=0.2,
        body_timeout_s=0.2,
        max_connections=20,
    )
    with start(config) as server:
        yield server


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Any]:
    """A server with few connections, small limits and time."""
    need_extra()
    (tmp_path / "tokens").write_text(TOKEN)
    for name in ("double", "steps"):
        models.save(getattr(models, name.upper()), tmp_path / f"{name}.onnx")
    config = ServerConfig(
        port=0,
        folders=(str(tmp_path),),
        token_file=str(tmp_path / "tokens"),
        max_connections=4,
        max_held=200_000,
    )
    with start(config) as server:
        yield server


@pytest.fixture
def client(strict: Any) -> Iterator[Client]:
    with Client(strict.http_port) as made:
        yield made


def raw(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(data)
        parts = []
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("path", ["/v2", "/metrics", "/status.json", "/v1/models", "/nothing"])
def test_all_but_probes_need_a_token(client: Client, path: str) -> None:
    refused = client.get(path)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    for value in ("Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", "Bearer \xe9"):
        assert client.get(path, Authorization=value).status == 401
    assert client.get(path, Authorization=f"Bearer {TOKEN}").status in (200, 404)


def test_probes_and_the_page_need_none(client: Client) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/", "/status.js"):
        assert client.get(path).status == 200


def test_inference_with_a_token(client: Client) -> None:
    path = "/v2/models/double/infer"
    assert client.post(path, REQUEST).status == 401
    again = client.post(path, REQUEST, Authorization="bearer another-token-of-that-kind")
    assert again.status == 200


def test_grpc_needs_the_token(strict: Any) -> None:
    grpc = pytest.importorskip("grpc")
    from tests.serve.test_grpc import Stub
    from tests.serve.test_grpc import raw as raw_contents

    stub = Stub(strict.grpc_port)
    assert stub("ServerReady").ready
    fields = {"model_name": "double", **raw_contents({"x": X})}
    with pytest.raises(grpc.RpcError) as caught:
        stub("ModelInfer", **fields)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert stub("ModelInfer", metadata=(("authorization", f"Bearer {TOKEN}"),), **fields)
    stub.channel.close()


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", "", 200),
        ("[::1]:8000", "", 200),
        ("attacker.example", "", 403),
        ("", "", 403),
        ("localhost:8000", "http://localhost:8000", 200),
        ("localhost:8000", "http://localhost:3000", 200),
        ("localhost:8000", "https://attacker.example", 403),
        ("localhost:8000", "null", 403),
    ],
)
def test_cross_origin_requests_are_refused(
    client: Client, host: str, origin: str, status: int
) -> None:
    headers = {"Host": host, **({"Origin": origin} if origin else {})}
    assert client.send("GET", "/v2/health/live", headers=headers).status == status


def test_headers_have_a_size_limit_and_a_timeout(strict: Any) -> None:
    port = strict.http_port
    begin = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
    assert b" 431 " in raw(port, begin + b"X: " + b"a" * (40 << 10))
    assert b" 431 " in raw(port, b"GET /" + b"a" * (40 << 10))
    assert b" 408 " in raw(port, begin)
    assert b" 408 " in raw(port, b"")


def test_bodies_have_a_timeout(strict: Any) -> None:
    begin = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    begin += b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    for sent in (b"", b'{"inputs":'):
        assert b" 408 " in raw(strict.http_port, begin + sent)


def opened(port: int, data: bytes = b"") -> socket.socket:
    """Return a connection that has sent something."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(data)
    return sock


def is_open(sock: socket.socket) -> bool:
    """Return whether the server has not closed a connection."""
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True


BEGIN = (
    b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\n"
    b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
)
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_connections_have_a_limit(patient: Any) -> None:
    """Connections without a request make room for others, those with one do not."""
    port = patient.http_port
    begun = BEGIN + b"Content-Length: 9\r\n\r\n"
    idle = opened(port, HEALTH)
    assert b" 200 " in idle.recv(100)
    held = [opened(port, begun) for _ in range(3)]
    until(lambda: len(patient.service.connections) == 4)
    fourth = opened(port, begun)
    until(lambda: not is_open(idle))
    until(lambda: len(patient.service.connections) == 4)
    assert b" 503 " in raw(port, b"")
    for sock in (*held, fourth, idle):
        sock.close()


@pytest.mark.parametrize("trailer", [b"a: b\r\n", b"a", b"a: bbb"])
def test_trailers_have_a_limit(patient: Any, trailer: bytes) -> None:
    begin = BEGIN + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with opened(patient.http_port, begin) as sock, contextlib.suppress(OSError):
        first, rest = trailer[:-1], trailer * (1 << 20)
        sock.sendall(first)
        sock.sendall(rest)
        while sock.recv(1 << 16):
            pass
    until(lambda: not patient.service.connections)


def test_chunks_of_one_byte_are_bounded(patient: Any) -> None:
    text = json.dumps({"inputs": [tensor("x", np.zeros((1, 1000), np.float32))]}) + " " * 9000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text.encode())
    begin = BEGIN.replace(b"wide", b"double") + b"Connection: close\r\n"
    answer = raw(
        patient.http_port, begin + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    )
    assert b"shape [-1, 3], got [1, 1000]" in answer


def test_slow_readers_are_disconnected(strict: Any) -> None:
    body = json.dumps(
        {**REQUEST, "parameters": {"binary_data_output": True}},
    ).encode()
    request = BEGIN + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with opened(strict.http_port, request) as sock:
        until(lambda: strict.service.n_active == 0 and len(strict.service.connections) == 1)
        until(lambda: not strict.service.connections)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1 << 20):
                pass


def test_a_malformed_request_after_a_good_one_logs_nothing(
    patient: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It closes the connection before the good one is answered."""
    body = json.dumps({"inputs": [tensor("n", np.array(100_000))]}).encode()
    begin = BEGIN.replace(b"wide", b"steps") + b"Content-Length: %d\r\n\r\n" % len(body)
    for _ in range(3):
        assert b" 400 " in raw(patient.http_port, begin + body + b"\0\0\0\r\n\r\n")
    until(lambda: not patient.service.n_active)
    assert "failed" not in caplog.text


def test_bodies_have_a_limit_in_all(patient: Any) -> None:
    begin = BEGIN + b"Content-Length: 100000\r\n\r\n"
    port = patient.http_port
    held = [opened(port, begin + b" " * 90_000) for _ in range(2)]
    until(lambda: patient.service.held.count == 180_000)
    assert b"503" in raw(port, begin + b" " * 90_000)
    for sock in held:
        sock.close()
    until(lambda: patient.service.held.count == 0)


def test_malformed_requests_do_not_affect_others(strict: Any) -> None:
    """Mutated requests are refused or closed; a client between them gets its answers."""
    chance = random.Random(5)
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}'
    whole = (
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (TOKEN.encode(), len(body), body)
    )
    assert b" 200 " in raw(strict.http_port, whole)
    for _ in range(150):
        mutant = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            begin = chance.randrange(len(mutant))
            mutant[begin : begin + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        with socket.create_connection(("127.0.0.1", strict.http_port), timeout=20) as sock:
            sock.sendall(mutant)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(100)
    with Client(strict.http_port) as client:
        answer = client.post("/v2/models/double/infer", REQUEST, Authorization=f"Bearer {TOKEN}")
        assert answer.status == 200


def test_token_files_are_checked(tmp_path: Path) -> None:
    need_extra()
    path = tmp_path / "tokens"
    model = {"m": ModelConfig(path=str(models.save(models.DOUBLE, tmp_path / "m.onnx")))}
    for text, match in (("", "has no token"), ("short", "fewer than 16"), (None, "cannot be read")):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        with (
            pytest.raises(SardonyxError, match=match),
            start(ServerConfig(port=0, models=model, token_file=str(path))),
        ):
            pass


@pytest.mark.skipif(which("openssl") is None, reason="there is no openssl")
def test_tls(tmp_path: Path) -> None:
    need_extra()
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    config = ServerConfig(
        port=0,
        grpc_port=0,
        models={"m": ModelConfig(path=str(models.save(models.DOUBLE, tmp_path / "m.onnx")))},
        certificate=str(certificate),
        key=str(key),
    )
    with start(config) as server:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        with Client(server.http_port, trusted) as client:
            assert client.infer("m", {"x": X})["y"].tolist() == [[2, 2, 2]]
        trusted.maximum_version = ssl.TLSVersion.TLSv1_2
        trusted.set_ciphers("ECDHE-ECDSA-AES256-SHA")
        with pytest.raises(ssl.SSLError), Client(server.http_port, trusted) as client:
            client.get("/v2/health/live")
        grpc = pytest.importorskip("grpc")
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            grpc.channel_ready_future(channel).result(20)
    with pytest.raises(SardonyxError, match="certificate and key"):
        start(ServerConfig(key=str(key)))
