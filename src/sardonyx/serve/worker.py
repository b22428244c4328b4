"""A worker process: a server that shares its models' state with other workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any, Final

from sardonyx.errors import SardonyxError
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.refusals import ModelFailed
from sardonyx.serve.server import Server, loop_factory

_LINE: Final = 1 << 20


class Channel:
    """The worker's end of its connection to the supervisor."""

    def __init__(self, sock: socket.socket, server: Server) -> None:
        self._sock = sock
        self._server = server
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter

    async def run(self, actions: Mapping[str, str]) -> None:
        """Replay the loads and unloads from before this worker started, then apply new ones."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock, limit=_LINE)
        service = self._server.service
        service.control = self.change
        for name, action in actions.items():
            await self._apply({"action": action, "name": name, "change": 0})
        self._send({"op": "ready"})
        while line := await reader.readline():
            message = json.loads(line)
            if message["op"] == "apply":
                task = asyncio.create_task(self._apply(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif message["op"] == "done" and message["id"] in self._waiting:
                self._waiting.pop(message["id"]).set_result(message["error"])
        os.kill(os.getpid(), signal.SIGTERM)  # the supervisor is gone

    async def change(self, action: str, name: str) -> None:
        """Load or unload a model in every worker."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"op": "change", "id": number, "action": action, "name": name})
        error = await self._waiting[number]
        if error:
            raise ModelFailed(error)

    async def _apply(self, message: dict[str, Any]) -> None:
        error = ""
        try:
            await self._server.service.apply(message["action"], message["name"])
        except SardonyxError as refusal:
            error = refusal.what
        self._send({"op": "applied", "change": message["change"], "error": error})

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


def name_metrics(number: int) -> None:
    """Keep metrics in files that have the worker's number: the one that replaces it goes on."""
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: number)


def run_worker(
    config: ServerConfig,
    listener: socket.socket,
    grpc_port: int,
    sock: socket.socket,
    actions: Mapping[str, str],
    is_first: bool,
) -> None:
    """Serve until SIGTERM, or until the supervisor exits."""
    server = Server(config, listener, grpc_port, listens_early=is_first)
    channel = Channel(sock, server)
    tasks: list[asyncio.Task[None]] = []

    def on_ready() -> None:
        tasks.append(asyncio.create_task(channel.run(actions)))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(server.run(on_ready))
