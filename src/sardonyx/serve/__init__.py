"""A model server: the Open Inference Protocol v2 over HTTP and gRPC, with dynamic batching.

`sardonyx serve` starts one; `start` starts one within a program. Needs `pip install
'sardonyx[serve]'`; the packages are imported when a server starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sardonyx.errors import NotImplemented
from sardonyx.serve.config import ModelConfig as ModelConfig
from sardonyx.serve.config import ServerConfig as ServerConfig
from sardonyx.serve.config import parse_config as parse_config
from sardonyx.serve.config import read_config as read_config

if TYPE_CHECKING:
    from sardonyx.serve.background import BackgroundServer

_PACKAGES: Final = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus_client": "prometheus-client",
    "grpc": "grpcio",
}
__all__ = ("ModelConfig", "ServerConfig", "parse_config", "read_config", "start")


def start(config: ServerConfig) -> BackgroundServer:
    """Return a server on a thread of its own, to be entered by `with`."""
    check_installed(config)
    from sardonyx.serve.background import BackgroundServer

    return BackgroundServer(config)


def check_installed(config: ServerConfig) -> None:
    """Raise an error if a package that the server needs is missing."""
    import importlib.util

    for module, package in _PACKAGES.items():
        is_needed = config.grpc_port >= 0 or module != "grpc"
        if is_needed and importlib.util.find_spec(module) is None:
            raise NotImplemented(
                f"the server needs the package {package}", hint="pip install 'sardonyx[serve]'"
            )
