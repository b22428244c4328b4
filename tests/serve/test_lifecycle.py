"""The life of a server: configuration, loading, swapping, stopping, workers."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.errors import SardonyxError
from sardonyx.serve import ModelConfig, ServerConfig, start
from sardonyx.serve.models import repository
from sardonyx.serve.models.loaded import load
from tests.serve import models
from tests.serve.conftest import need_extra
from tests.serve.http_client import Client, tensor
from tests.serve.process import Process, until

grpc = pytest.importorskip("grpc")
SERVICE = "inference.GRPCInferenceService"
N_STEPS = 1_000_000  # more than a second
X = np.ones((1, 3), np.float32)


@pytest.fixture(autouse=True)
def extra() -> None:
    need_extra()


@contextmanager
def serving(**changes: Any) -> Iterator[tuple[Any, Client]]:
    with start(ServerConfig(port=0, **changes)) as server, Client(server.http_port) as client:
        yield server, client


def double(client: Client) -> float:
    return float(client.infer("m", {"x": X})["y"][0, 0])


def test_load_and_unload_requests(tmp_path: Path) -> None:
    models.save(models.DOUBLE, tmp_path / "m.onnx")
    with serving(folders=(str(tmp_path),), model_control=True) as (_, client):
        assert double(client) == 2
        assert client.post("/v2/repository/models/m/unload").status == 200
        answer = client.post("/v2/models/m/infer", {"inputs": [tensor("x", X)]})
        assert (answer.status, answer.json["error"]) == (503, "the model m is unloaded")
        assert client.get("/v2/models/m/ready").status == 503
        assert client.get("/v2/health/ready").status == 200
        models.save(models.TRIPLE, tmp_path / "m.onnx")
        assert client.post("/v2/repository/models/m/load").status == 200
        assert double(client) == 3
        models.save(models.CENTERED, tmp_path / "new.onnx")
        assert client.post("/v2/repository/models/new/load").status == 200
        assert client.post("/v2/repository/models/none/load").status == 404
        config = {"parameters": {"config": "{}", "file:1/model.onnx": "AAAA"}}
        assert client.post("/v2/repository/models/m/load", config).status == 403


def test_a_model_that_fails_to_load_leaves_the_old_one(tmp_path: Path) -> None:
    models.save(models.DOUBLE, tmp_path / "m.onnx")
    with serving(folders=(str(tmp_path),), model_control=True) as (_, client):
        (tmp_path / "next").write_bytes(b"not a model")
        (tmp_path / "next").rename(tmp_path / "m.onnx")
        answer = client.post("/v2/repository/models/m/load")
        assert answer.status == 500
        assert "not an ONNX model" in answer.json["error"]
        assert double(client) == 2


def test_replaced_files_are_loaded_without_a_lost_request(tmp_path: Path) -> None:
    path = models.save(models.DOUBLE, tmp_path / "m.onnx")
    with serving(models={"m": ModelConfig(path=str(path))}, watch_s=0.02) as (server, client):
        seen: set[float] = set()
        errors: list[BaseException] = []
        done = threading.Event()

        def ask() -> None:
            try:
                with Client(server.http_port) as own:
                    while not done.is_set():
                        seen.add(double(own))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: 2.0 in seen)
        models.save(models.TRIPLE, path)
        until(lambda: 3.0 in seen or errors)
        done.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert seen == {2.0, 3.0}
        assert double(client) == 3


def test_models_are_loaded_on_demand_within_a_memory_limit(tmp_path: Path) -> None:
    size = 0
    for name in "abc":
        size = models.save(models.DOUBLE, tmp_path / f"{name}.onnx").stat().st_size
    limits = {"load": "request", "memory_limit": size * 5 // 2}
    with serving(folders=(str(tmp_path),), **limits) as (_, client):

        def loaded() -> set[str]:
            rows = client.post("/v2/repository/index", {"ready": True}).json
            return {row["name"] for row in rows}

        assert loaded() == set()
        for name, expected in (("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("b", "bc")):
            client.infer(name, {"x": X})
            assert loaded() == set(expected)


def test_a_deadline_counts_while_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(models.DOUBLE, tmp_path / "m.onnx")
    can_load = threading.Event()

    def slow(*args: Any) -> Any:
        assert can_load.wait(20)
        return load(*args)

    monkeypatch.setattr(repository, "load", slow)
    defaults = ModelConfig(timeout_s=0.02)
    with serving(folders=(str(tmp_path),), load="request", defaults=defaults) as (_, client):
        for parameters, shown in (({"timeout": 10_000}, "0.01"), ({}, "0.02")):
            body = {"inputs": [tensor("x", X)], "parameters": parameters}
            answer = client.post("/v2/models/m/infer", body)
            assert answer.status == 504
            assert answer.json["error"] == f"the model m was not loaded within {shown} s"
        can_load.set()  # the load was not cancelled
        until(lambda: client.get("/v2/models/m/ready").status == 200)
        body = {"inputs": [tensor("x", X)], "parameters": {"timeout": 20_000_000}}
        assert client.post("/v2/models/m/infer", body).status == 200


def test_files_of_weights_count_for_the_memory_limit(tmp_path: Path) -> None:
    path = models.save(models.DOUBLE, tmp_path / "a" / "model.onnx")
    model = onnx.load(path)
    weights = onnx.numpy_helper.from_array(np.zeros(1000, np.float32), "w")
    model.graph.initializer.append(weights)
    onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    models.save(models.DOUBLE, tmp_path / "b" / "model.onnx")
    with serving(folders=(str(tmp_path),), load="request", memory_limit=4250) as (_, client):
        client.infer("b", {"x": X})
        client.infer("a", {"x": X})
        rows = client.post("/v2/repository/index", {"ready": True}).json
        assert [row["name"] for row in rows] == ["a"]


def test_a_model_that_was_named_must_load(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no")
    with (
        pytest.raises(SardonyxError, match="the model m is not loaded"),
        serving(models={"m": ModelConfig(path=str(path))}),
    ):
        pass


def test_graceful_shutdown_answers_running_requests(tmp_path: Path) -> None:
    models.save(models.STEPS, tmp_path / "steps.onnx")
    answers: list[Any] = []
    with Process("--folders", str(tmp_path)) as server:
        inputs = [tensor("n", np.array(N_STEPS))]

        def ask() -> None:
            with Client(server.http_port) as own:
                answers.append(own.post("/v2/models/steps/infer", {"inputs": inputs}))

        thread = threading.Thread(target=ask)
        with Client(server.http_port) as client:
            thread.start()
            until(lambda: client.get("/status.json").json["active"] == 1)
            server.terminate()
            until(lambda: client.get("/v2/health/ready").status == 503)
            assert client.get("/v2/health/live").status == 200
            refused = client.post("/v2/models/steps/infer", {"inputs": inputs})
            assert (refused.status, refused.json["error"]) == (503, "the server is stopping")
            assert refused.headers["retry-after"] == "1"
        thread.join()
        assert server.wait() == 0
    assert answers[0].status == 200
    assert answers[0].json["outputs"][0]["data"] == [N_STEPS]


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    models.save(models.DOUBLE, tmp_path / "m.onnx")
    options = ("--folders", str(tmp_path), "--workers", "2", "--model-control")
    with Process(*options) as server:
        with Client(server.http_port) as client:
            before = set(until(lambda: len(server.children()) == 2 and server.children()))
            assert double(client) == 2
            victim = client.get("/status.json").json["pid"]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(set(server.children()) - {victim}) == 2)
        assert set(server.children()) & before
        pids = set()

        def seen() -> bool:
            with Client(server.http_port) as each:
                assert double(each) == 2
                pids.add(each.get("/status.json").json["pid"])
            return pids == set(server.children())

        until(seen)
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in server.children())
        files = re.findall(r"counter_(\w+)\.db", maps)
        assert set(files) == {"0", "1"}, "files of metrics do not pile up"
        with Client(server.http_port) as client:
            lines = client.get("/metrics").body.decode().splitlines()
            counted = [line for line in lines if line.startswith("sardonyx_requests_total")]
            assert float(counted[0].rpartition(" ")[2]) >= 2  # of the killed worker too
            models.save(models.TRIPLE, tmp_path / "m.onnx")
            assert client.post("/v2/repository/models/m/load").status == 200
        for _ in range(10):  # whichever worker takes the connection
            with Client(server.http_port) as client:
                assert double(client) == 3
        server.terminate()
        assert server.wait() == 0


def test_workers_that_cannot_start_end_the_server(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no")
    process = Process(str(path), "--workers", "2")
    assert process.wait() == 1
    assert "the model m is not loaded" in process.log()
    process.__exit__()


def test_json_logs(tmp_path: Path) -> None:
    models.save(models.DOUBLE, tmp_path / "m.onnx")
    options = ("--log", "json", "--access-log", "--grpc-port", "0")
    with Process("--folders", str(tmp_path), *options) as server:
        with Client(server.http_port) as client:
            double(client)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelReady", bytes, bytes)
            call(b"\n\1m", timeout=20)
            with pytest.raises(grpc.RpcError):
                call(b"\n\1n", timeout=20)
        server.terminate()
        assert server.wait() == 0
        lines = [line for line in server.log().splitlines() if line.startswith("{")]
    records = [json.loads(line) for line in lines]
    logged = [(r["model"], r["status"], r["level"]) for r in records if "status" in r]
    assert logged == [("m", 200, "info"), ("m", "OK", "info"), ("n", "NOT_FOUND", "info")]
