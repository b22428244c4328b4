"""One server process: its sockets, its event loop, and its end.

It listens before its models are loaded, so that liveness probes succeed, and is ready when they
are. SIGTERM shuts it down gracefully: it stops being ready, refuses new requests, answers the
pending ones, and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from sardonyx.base.log import logger
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.http.app import App
from sardonyx.serve.http.connection import connection_class
from sardonyx.serve.service import Service

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_BACKLOG: Final = 2048
# Threads that end a run wait for the event loop at most this long for the interpreter.
_SWITCH_S: Final = 0.0005
_SEND_S: Final = 2  # for answers that are being sent when the server has to end
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2, which is the oldest that is spoken


class _Uvicorn(uvicorn.Server):
    """uvicorn, which leaves signals to us, says when it listens, and limits TLS handshakes."""

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._handshake_s = handshake_s if config.is_ssl else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            made: asyncio.Protocol = kind(config, self.server_state, self.lifespan.state)
            return made

        self.servers = [
            await loop.create_server(
                connection,
                sock=sock,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self._handshake_s,
            )
            for sock in sockets or []
        ]
        self.started = True
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """A server in this process. `run` is called once, on the loop that it then belongs to."""

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        grpc_port: int = -1,
        *,
        listens_early: bool = True,
    ) -> None:
        """`listener` is bound to the port for HTTP; `grpc_port` is -1 for none.

        `listens_early`: probes are answered while models are loaded. A worker beside others, which
        have them loaded, would refuse requests that the others can answer.
        """
        self.config = config
        self.http_port: int = listener.getsockname()[1]
        self.grpc_port = grpc_port
        self.service: Service
        self._listener = listener
        self._listens_early = listens_early
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop

    async def run(self, on_ready: Callable[[], None], owns_process: bool = True) -> None:
        """Serve until a signal or `stop`; `on_ready` is called when the models are loaded.

        A server that does not own its process changes none of its settings.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if owns_process:
            sys.setswitchinterval(_SWITCH_S)
            for number in _SIGNALS:
                self._loop.add_signal_handler(number, self._stop.set)
        try:
            self.service = Service(self.config)
            self.service.repository.owns_process = owns_process
            http = _Uvicorn(self._uvicorn_config(), self.config.header_timeout_s)
            self.service.connections = http.server_state.connections
        except BaseException:
            self._listener.close()
            raise
        tasks: list[asyncio.Task[None]] = []
        serving = grpc = None
        try:
            if not self._listens_early:
                await self._load()
            serving = asyncio.create_task(http.serve([self._listener]))
            await http.listens.wait()
            grpc = await self._start_grpc()
            if self._listens_early:
                await self._load()
            if self.config.watch_s:
                tasks.append(asyncio.create_task(self.service.repository.watch()))
            if not self._stop.is_set():
                on_ready()
            await self._stop.wait()
            http.config.timeout_graceful_shutdown = await self._drain()
        finally:
            http.should_exit = True
            for task in tasks:
                task.cancel()
            if grpc is not None:
                await grpc.stop(1.0)
            if serving is not None:
                await serving

    async def _load(self) -> None:
        """Load the models, unless the server is told to stop meanwhile."""
        if self.config.load == "start":
            load = asyncio.create_task(self.service.repository.load_all())
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait((load, stop), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if load.done():
                load.result()
            else:
                load.cancel()
        self.service.is_started = True

    async def _drain(self) -> int:
        """Answer the requests that are there; return the seconds that are left to send answers."""
        logger.info("stopping: %d requests are being answered", self.service.n_active)
        self.service.is_leaving = True
        if self.config.linger_s:
            await asyncio.sleep(self.config.linger_s)
        end = self._loop.time() + self.config.drain_s
        await self.service.drain()
        return max(_SEND_S, math.ceil(end - self._loop.time()))

    async def _start_grpc(self) -> Any:
        if self.grpc_port < 0:
            return None
        from sardonyx.serve.grpc.server import start_grpc

        server, self.grpc_port = await start_grpc(self.service, self.grpc_port)
        return server

    def stop(self) -> None:
        """Shut down as on SIGTERM. Thread-safe."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _uvicorn_config(self) -> uvicorn.Config:
        config = self.config
        return uvicorn.Config(
            App(self.service),
            http=connection_class(config),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(config.keep_alive_s),
            timeout_graceful_shutdown=_SEND_S,
            backlog=_BACKLOG,
            ssl_certfile=config.certificate or None,
            ssl_keyfile=config.key or None,
            ssl_ciphers=_CIPHERS,
            ssl_ca_certs=config.client_ca or None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if config.client_ca else ssl.CERT_NONE,
        )


def run(server: Server, on_ready: Callable[[], None]) -> None:
    """Run a server on this thread, until a signal."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(server.run(on_ready))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
