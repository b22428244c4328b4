"""Drives a headless Chromium over its pipe of commands, where one is installed."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Self

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
# Chromium reads commands from descriptor 3 and writes answers to 4.
_AT_3_AND_4 = """
import fcntl, os, sys
taken, given = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(taken, 3)
os.dup2(given, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_SECONDS = 60.0  # for a start on a busy machine, and for each command


class Browser:
    """A browser with one page. `errors` are the exceptions and messages of its scripts."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._count = 0
        self._session: str | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        assert BINARY is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        taken, self._write = os.pipe()
        self._read, given = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", _AT_3_AND_4, str(taken), str(given), BINARY, "--headless",
                "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
                "--hide-scrollbars", f"--user-data-dir={self._folder.name}",
            ],
            pass_fds=(taken, given),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(taken)
        os.close(given)
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def __call__(self, method: str, **params: Any) -> Any:
        """One command and its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        limit = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, limit - time.monotonic()))
            more = os.read(self._read, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError("the browser does not answer")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.errors.append(json.dumps(event["params"]["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])

    def open(self, path: pathlib.Path, width: int = 1200, height: int = 900) -> None:
        """Loads a page of a file and waits until it says that it is ready."""
        self.open_url(path.resolve().as_uri(), width, height)

    def open_url(self, url: str, width: int = 1200, height: int = 900) -> None:
        """Loads a page and waits until it says that it is ready."""
        self.resize(width, height)
        self("Page.navigate", url=url)
        limit = time.monotonic() + _SECONDS
        while self.value("document.documentElement?.dataset.ready") != "1":
            assert time.monotonic() < limit, self.errors
            time.sleep(0.02)
        self.settle()

    def resize(self, width: int, height: int) -> None:
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self("Emulation.setEmulatedMedia", features=features)
        self.settle()

    def value(self, expression: str) -> Any:
        """What an expression of the page's script gives."""
        said = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def settle(self) -> None:
        """Waits until what was asked for is drawn."""
        frames = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))"
        self("Runtime.evaluate", expression=frames, awaitPromise=True)

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key to whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A move, press or release of the mouse."""
        self("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)
        self.settle()

    def screenshot(self, path: pathlib.Path) -> None:
        """The page as it is seen."""
        data = self("Page.captureScreenshot", captureBeyondViewport=False)["data"]
        path.write_bytes(base64.b64decode(data))
