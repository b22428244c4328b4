"""The clients that people have: tritonclient, kserve and openai, each where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.serve import ServerConfig, start
from tests.serve import models
from tests.serve.conftest import need_extra
from tests.serve.test_embeddings import expected
from tests.serve.test_embeddings import folder as encoders  # noqa: F401 - a fixture

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server whose models may be loaded and unloaded."""
    need_extra()
    folder = tmp_path_factory.mktemp("clients")
    models.save(models.DOUBLE, folder / "double.onnx")
    for onnx_type in ("string", "bfloat16", "int64"):
        models.save(models.identity(onnx_type), folder / f"same_{onnx_type}.onnx")
    config = ServerConfig(port=0, grpc_port=0, folders=(str(folder),), model_control=True)
    with start(config) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(own: Any, protocol: str) -> None:
    module = pytest.importorskip(f"tritonclient.{protocol}")
    utils = pytest.importorskip("tritonclient.utils")
    port = own.http_port if protocol == "http" else own.grpc_port
    client = module.InferenceServerClient(f"localhost:{port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    as_dict = {} if protocol == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_dict)["name"] == "sardonyx"
    metadata = client.get_model_metadata("double", **as_dict)
    assert [each["name"] for each in metadata["inputs"]] == ["x"]

    def ask(model: str, values: Any, datatype: str, **more: Any) -> Any:
        given = module.InferInput("x", list(values.shape), datatype)
        given.set_data_from_numpy(values)
        answer = client.infer(model, [given], request_id="5", **more)
        assert answer.get_response(**as_dict)["id"] == "5"
        return answer.as_numpy("y")

    assert np.array_equal(ask("double", X, "FP32"), X * 2)
    wanted = [module.InferRequestedOutput("y")]
    assert np.array_equal(ask("double", X, "FP32", outputs=wanted, priority=1), X * 2)
    texts = np.array([["größe".encode(), b""]], np.object_)
    assert np.array_equal(ask("same_string", texts, "BYTES"), texts)
    assert np.array_equal(ask("same_int64", X.astype(np.int64), "INT64"), X)
    halves = X.astype(ml_dtypes.bfloat16)
    assert np.array_equal(ask("same_bfloat16", halves, "BF16").astype(np.float32), X)
    with pytest.raises(utils.InferenceServerException, match="no model 'none'"):
        ask("none", X, "FP32")

    def states() -> dict[str, str]:
        index = client.get_model_repository_index(**as_dict)
        rows = index if isinstance(index, list) else index["models"]
        return {row["name"]: row["state"] for row in rows}

    client.unload_model("double")
    assert states()["double"] == "UNAVAILABLE"
    assert not client.is_model_ready("double")
    client.load_model("double")
    assert states()["double"] == "READY"
    client.close()


def test_tritonclient_compresses_and_sends_json(own: Any) -> None:
    module = pytest.importorskip("tritonclient.http")
    client = module.InferenceServerClient(f"localhost:{own.http_port}")
    given = module.InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X, binary_data=False)
    wanted = [module.InferRequestedOutput("y", binary_data=False)]
    for method in ("gzip", "deflate"):
        answer = client.infer(
            "double", [given], outputs=wanted, request_compression_algorithm=method
        )
        assert np.array_equal(answer.as_numpy("y"), X * 2)
    client.close()


def test_tritonclient_streams(own: Any) -> None:
    module = pytest.importorskip("tritonclient.grpc")
    answers: list[Any] = []
    with module.InferenceServerClient(f"localhost:{own.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        for index in range(5):
            given = module.InferInput("x", list(X.shape), "FP32")
            given.set_data_from_numpy(X + index)
            client.async_stream_infer("double", [given])
        client.stop_stream()
    assert [error for _, error in answers] == [None] * 5
    for index, (result, _) in enumerate(answers):
        assert np.array_equal(result.as_numpy("y"), (X + index) * 2)


def test_kserve(own: Any) -> None:
    kserve = pytest.importorskip("kserve")

    async def ask() -> None:
        config = kserve.inference_client.RESTConfig(protocol="v2", verbose=False)
        client = kserve.InferenceRESTClient(config)
        url = f"http://localhost:{own.http_port}"
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "double")
        given = kserve.InferInput("x", list(X.shape), "FP32")
        for is_binary in (False, True):
            given.set_data_from_numpy(X, binary_data=is_binary)
            request = kserve.InferRequest("double", [given], request_id="7")
            answer = await client.infer(url, request, model_name="double")
            assert np.array_equal(answer.outputs[0].as_numpy(), X * 2)
        grpc_client = kserve.InferenceGRPCClient(f"localhost:{own.grpc_port}")
        assert await grpc_client.is_server_live()
        assert await grpc_client.is_model_ready("double")
        answer = await grpc_client.infer(kserve.InferRequest("double", [given]))
        assert np.array_equal(answer.outputs[0].as_numpy(), X * 2)
        await grpc_client.close()

    asyncio.run(ask())


def test_openai(encoders: Path) -> None:  # noqa: F811
    openai = pytest.importorskip("openai")
    need_extra()
    config = ServerConfig(port=0, folders=(str(encoders),))
    with start(config) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
        answer = client.embeddings.create(model="words", input=["red", "green is"])
        assert np.allclose(answer.data[1].embedding, expected("green is"), atol=1e-6)
        assert [model.id for model in client.models.list()] == ["words"]
        with pytest.raises(openai.NotFoundError, match="no model 'none'"):
            client.embeddings.create(model="none", input="red")
