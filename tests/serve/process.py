"""`sardonyx serve` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, Self


class Process:
    """A server that was started by the command line; it is stopped at the end."""

    def __init__(self, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sardonyx", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.http_port = self.grpc_port = -1

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        assert found, self.log()
        self.http_port = int(found[1])
        if "--grpc-port" in self._process.args:  # type: ignore[operator]
            self.grpc_port = int(self._process.stdout.readline().rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait(60)

    def children(self) -> list[int]:
        path = f"/proc/{self.pid}/task/{self.pid}/children"
        with open(path, encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]


def until(condition: Any, seconds: float = 30.0) -> Any:
    """Poll until a condition holds, and return its value."""
    import time

    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the condition does not come to hold"
        time.sleep(0.01)
    return value
