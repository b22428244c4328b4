"""A server on a background thread of this process, for programs and tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

from sardonyx.errors import Fail
from sardonyx.serve.config import ServerConfig, check
from sardonyx.serve.server import Server, loop_factory
from sardonyx.serve.sockets import bind

_START_S = 600.0


class BackgroundServer:
    """A context manager: entered when the models are loaded, left after pending requests finish."""

    def __init__(self, config: ServerConfig) -> None:
        check(config)
        self._server = Server(config, bind(config.host, config.port), config.grpc_port)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sardonyx-serve", daemon=True)

    @property
    def url(self) -> str:
        """Return the address of the HTTP server."""
        config = self._server.config
        host = f"[{config.host}]" if ":" in config.host else config.host
        return f"{'https' if config.certificate else 'http'}://{host}:{self._server.http_port}"

    @property
    def http_port(self) -> int:
        """Return the port for HTTP."""
        return self._server.http_port

    @property
    def grpc_port(self) -> int:
        """Return the port for gRPC; -1: there is none."""
        return self._server.grpc_port

    @property
    def service(self) -> Any:
        """Return the service, which belongs to the server's thread."""
        return self._server.service

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(_START_S)
        if self._error is not None:
            self._thread.join()
            raise self._error
        if not self._ready.is_set():
            self.stop()
            raise Fail(f"the models are not loaded after {_START_S:g} s")
        return self

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._server.run(self._ready.set, owns_process=False))
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def stop(self) -> None:
        """Stop the server as SIGTERM would; returns at once."""
        self._server.stop()

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.stop()
        self._thread.join()
