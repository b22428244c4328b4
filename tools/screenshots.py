"""Makes the pictures of pages and of terminal output in docs/screenshots.

python tools/screenshots.py --zoo FOLDER    # with resnet50.onnx and gpt2_with_past.onnx

Pages are PNG files by Chromium, light and dark; terminals are SVG files. Figures in them are of the
machine that runs this.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sardonyx.models import DIGITS, SAMPLES  # noqa: E402
from tests.cli.browser import Browser  # noqa: E402 - a folder of this repository

FOLDER: Final = ROOT / "docs" / "screenshots"
# By file: the command, without `sardonyx`.
TERMINALS: Final = {
    "info": "info gpt2_with_past.onnx",
    "error": "run gpt2_with_past.onnx --provider cuad",
}
# By file: the command whose --html is shown, and the height of the picture.
PAGES: Final = {
    "profile_page": ("profile resnet50.onnx", 1150),
    "info_page": ("info resnet50.onnx", 720),
    "plan_page": ("plan resnet50.onnx --dims batch=4", 900),
    "bench_page": ("bench resnet50.onnx --rivals onnxruntime", 420),
    "quantize_page": (
        (
            f"quantize {DIGITS} --data {SAMPLES} --metric error --max-loss 5% --min-speedup 0 "
            "-o WORK/out.onnx --work WORK/search"
        ),
        760,
    ),
}
WIDTH: Final = 1100  # pixels of a page
COLUMNS: Final = 96
_FONTS: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # of other sites


def terminal_output(command: str, folder: Path) -> str:
    """Return what a command writes to a terminal, escape codes included."""
    import fcntl
    import termios

    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {
        "TERM": "xterm-256color"
    }
    with subprocess.Popen(
        [sys.executable, "-m", "sardonyx", *command.split()],
        cwd=folder, env=environment, stdout=other, stderr=subprocess.STDOUT, close_fds=True,
    ):  # fmt: skip
        os.close(other)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := os.read(main, 1 << 16):
                said += data
    os.close(main)
    return said.decode(errors="replace").replace("\r\n", "\n").strip("\n")


def terminal(name: str, command: str, folder: Path) -> None:
    """Write the output of a command as an SVG file."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ sardonyx {command}", "bold"))
    console.print(Text.from_ansi(terminal_output(command, folder)))
    drawn = _FONTS.sub("", console.export_svg(title="", unique_id=name))
    (FOLDER / f"{name}.svg").write_text("\n".join(x.rstrip() for x in drawn.split("\n")) + "\n")


def page(browser: Browser, name: str, command: str, height: int, folder: Path) -> None:
    """Write the page of a command as two PNG files."""
    with tempfile.TemporaryDirectory() as work:
        target = Path(work) / "page.html"
        words = command.replace("WORK", work).split()
        words = [sys.executable, "-m", "sardonyx", *words, "--html", str(target)]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for scheme in ("light", "dark"):
            browser.resize(WIDTH, height)
            browser.scheme(scheme)
            browser("Page.navigate", url=target.as_uri())
            while browser.value("document.readyState") != "complete":
                browser.settle()
            browser.settle()
            browser.screenshot(FOLDER / f"{name}_{scheme}.png")
    assert not browser.errors, browser.errors


def main() -> None:
    """Make all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*TERMINALS, *PAGES, []])
    parser.add_argument("--zoo", type=Path, required=True)
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    names = arguments.names or [*TERMINALS, *PAGES]
    for name in filter(TERMINALS.get, names):
        terminal(name, TERMINALS[name], arguments.zoo)
    with Browser() as browser:
        for name in filter(PAGES.get, names):
            page(browser, name, *PAGES[name], arguments.zoo)


if __name__ == "__main__":
    main()
