"""A server of small models, which the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sardonyx.serve import ModelConfig, ServerConfig, start
from tests.serve import models
from tests.serve.http_client import Client

EXTRA = ("starlette", "uvicorn", "httptools", "prometheus_client", "grpc")


def need_extra() -> None:
    """Skip where the packages of the extra are missing."""
    for name in EXTRA:
        pytest.importorskip(name)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, one of them in two versions."""
    root = tmp_path_factory.mktemp("models")
    for name in ("centered", "masked", "steps", "pick"):
        models.save(getattr(models, name.upper()), root / f"{name}.onnx")
    models.save(models.DOUBLE, root / "scale" / "2" / "model.onnx")
    models.save(models.TRIPLE, root / "scale" / "10" / "model.onnx")
    for onnx_type in ("string", "bfloat16", "float16", "bool", "uint8", "int64", "double"):
        models.save(models.identity(onnx_type), root / f"same_{onnx_type}.onnx")
    return root


@pytest.fixture(scope="session")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with all models; tests do not change it."""
    need_extra()
    double = models.save(models.DOUBLE, tmp_path_factory.mktemp("named") / "double.onnx")
    config = ServerConfig(
        port=0,
        grpc_port=0,
        models={"double": ModelConfig(path=str(double))},
        folders=(str(folder),),
        max_body=1 << 20,
        max_elements=1 << 18,
    )
    with start(config) as running:
        yield running


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    with Client(server.http_port) as connected:
        yield connected
