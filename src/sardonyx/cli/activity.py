"""The line on standard error that shows what a long command is doing, by rich."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Self

from rich import progress as columns
from rich.console import Console, RenderableType

from sardonyx.base import progress
from sardonyx.base.units import format_bytes
from sardonyx.cli.console import Activity

# Per second. Rendering competes with the measured runs for the GIL and for cores.
_REFRESHES: Final = 5


class _Bar(columns.BarColumn):
    """A bar for tasks whose total is known: rich's own bar pulses for the others."""

    def __call__(self, task: columns.Task) -> RenderableType:
        return super().__call__(task) if task.total else ""


class _Task(Activity):
    """One line of a display."""

    def __init__(self, display: columns.Progress, description: str) -> None:
        self._display = display
        self.id: Final = display.add_task(description, total=None, amount="")

    def describe(self, description: str) -> None:
        """Replace the description."""
        self._display.update(self.id, description=description)

    def update(self, done: int, total: int, amount: str = "") -> None:
        """Show how many of `total` bytes are done, or the text for it."""
        amount = amount or f"{format_bytes(done)} of {format_bytes(total)}"
        self._display.update(self.id, completed=done, total=total, amount=amount)


class ActivityLine(_Task):
    """A spinner, a description, a bar and the time that passed, from progress.DELAY_S on.

    Operations of the core that report their progress get a line of their own while they last.
    """

    def __init__(self, description: str) -> None:
        stderr = Console(stderr=True)
        display = columns.Progress(
            columns.SpinnerColumn("dots" if stderr.encoding.startswith("utf") else "line"),
            columns.TextColumn("{task.description}", markup=False),
            _Bar(),
            columns.TextColumn("{task.fields[amount]}"),
            columns.TimeElapsedColumn(),
            console=stderr,
            transient=True,
            refresh_per_second=_REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        super().__init__(display, description)
        self._delay = threading.Timer(progress.DELAY_S, display.start)
        self._delay.daemon = True
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(progress.use_display(self._nested))
        self._delay.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._delay.cancel()
        self._delay.join()  # it may be starting the display
        self._display.stop()

    @contextmanager
    def _nested(self, description: str) -> Iterator[_Task]:
        task = _Task(self._display, description)
        try:
            yield task
        finally:
            self._display.remove_task(task.id)
