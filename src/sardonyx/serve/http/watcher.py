"""Clients that leave before they have their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from sardonyx.serve.http.exchange import Exchange

_WATCH_AFTER_S: Final = 0.005  # disconnects are not watched for during shorter requests


class Watcher:
    """Calls a function when the client of a request disconnects."""

    __slots__ = ("_exchange", "_task", "_timer")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, leave: Callable[[], Any]) -> None:
        """Watch from soon on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_WATCH_AFTER_S, self._watch, leave)

    def _watch(self, leave: Callable[[], Any]) -> None:
        self._task = asyncio.create_task(self._until_gone(leave))

    async def _until_gone(self, leave: Callable[[], Any]) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        leave()

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
