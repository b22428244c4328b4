"""`sardonyx bisect`: finds the graph pass that changes a model's outputs."""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import precision_entry, stop_entry
from sardonyx.cli.bench_worker import flat
from sardonyx.cli.console import activity, printable, say
from sardonyx.cli.measure import difference, start
from sardonyx.passes.pipeline import PIPELINE


def command(arguments: argparse.Namespace) -> int:
    """Print the first pass of the pipeline after which the outputs of MODEL differ."""
    with activity(f"bisecting {printable(pathlib.Path(arguments.model).name)}"):
        runner = _Runner(arguments)
        number = runner.first_difference()
    name = "" if number is None else PIPELINE[number - 1].name
    largest = runner.difference(len(PIPELINE) if number is None else number)
    if arguments.json:
        print(json.dumps({"pass": number, "name": name, "difference": largest}))
    elif number is None:
        say(f"no pass changes the outputs; the largest difference is {largest:.3g}")
    else:
        say(f"pass {number} ({name}) changes the outputs by {largest:.3g} of the largest value")
        for n in (number - 1, number):
            say(f"  sardonyx info {printable(arguments.model)} --stop-after {n} --dump")
    return 0


class _Runner:
    """Runs a model on the same inputs with the first N passes, and caches the differences."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        session = self._session(0)
        path = pathlib.Path(arguments.model)
        self._feed, _ = feeds.chosen(arguments, path, session._compiled.model.inputs)
        self._names = [o.name for o in session.get_outputs()]
        self._expected = self._outputs(session)
        self._differences: dict[int, float] = {}

    def first_difference(self) -> int | None:
        """Return the number of the first pass after which outputs differ, or None.

        Binary search: it assumes that later passes keep a difference.
        """
        # Invariant: outputs agree after `good` passes and differ after `bad`.
        good, bad = 0, len(PIPELINE)
        if not self._differs(bad):
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if self._differs(middle) else (middle, bad)
        return bad

    def difference(self, n_passes: int) -> float:
        """Return the largest difference of an output, as a fraction of its largest value."""
        if n_passes not in self._differences:
            outputs = self._outputs(self._session(n_passes))
            pairs = ((array, outputs.get(name)) for name, array in self._expected.items())
            self._differences[n_passes] = max((difference(*pair) for pair in pairs), default=0.0)
        return self._differences[n_passes]

    def _differs(self, n_passes: int) -> bool:
        # Not `>`: a NaN difference counts as one.
        return not self.difference(n_passes) <= self._arguments.tolerance

    def _session(self, n_passes: int) -> Any:
        entries = precision_entry(self._arguments) | stop_entry(n_passes)
        return start(
            self._arguments.model, entries=entries, providers=self._arguments.provider
        ).session

    def _outputs(self, session: Any) -> dict[str, Any]:
        named = zip(self._names, session.run(None, self._feed), strict=True)
        return dict(pair for name, value in named for pair in flat(name, value))
