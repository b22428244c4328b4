"""Ways to call a session, which must all give the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

import sardonyx
from tests.invalid_feeds import mutate_feeds
from tests.metamorphic.variant import Settings
from tests.two_paths import Disagree, Start, agreed, both, checked, difference, fast, outcome

Call = Callable[[Start, dict[str, Any], Settings], Sequence[Any]]
THREADS = 3


def run(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """By the fast path, and by the checked one."""
    return both(start, feeds)


def after_invalid_feeds(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """By both, after runs with feeds that do not fit: these may fail, and leave nothing behind."""
    rng = Random(settings.seed)
    one, other = start(), start()
    for _ in range(3):
        mutated = mutate_feeds(rng, feeds)
        by_fast, by_checked = fast(one, mutated), checked(other, mutated)
        if wrong := difference(by_fast, by_checked):
            shown = {n: getattr(x, "shape", x) for n, x in mutated.items()}
            raise Disagree(f"fed with {shown!s:.300}, fast path: {wrong} (by the checked path)")
    return agreed(checked(other, feeds), fast(one, feeds))


def at_once(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """By several threads in one session."""
    session = start()
    found: list[Any] = []

    def call() -> None:
        found.extend(fast(session, feeds) for _ in range(2))

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = found[0]
    for other in found[1:]:
        agreed(first, other) if not isinstance(first, Exception) else None
    return agreed(first, first)


def each_output(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """Each output by itself, the last first; every second time computing nothing else."""
    session = start()
    found: dict[int, Any] = {}
    for i, output in reversed(list(enumerate(session.get_outputs()))):
        options = sardonyx.RunOptions()
        options.only_execute_path_to_fetches = i % 2 == settings.seed % 2
        result = outcome(lambda name=output.name, o=options: session.run([name], feeds, o))
        if isinstance(result, Exception):
            raise result
        found[i] = result[0]
    return [found[i] for i in sorted(found)]


def binding(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """Bound, twice: the second time into memory of the shapes that came out first."""
    session = start()
    bound = session.io_binding()
    for name, value in feeds.items():
        bound.bind_cpu_input(name, value)
    for output in session.get_outputs():
        bound.bind_output(output.name)
    session.run_with_iobinding(bound)
    first = bound.copy_outputs_to_cpu()
    places = [sardonyx.OrtValue.ortvalue_from_numpy(np.zeros_like(x)) for x in first]
    for output, place in zip(session.get_outputs(), places, strict=True):
        bound.bind_ortvalue_output(output.name, place)
    session.run_with_iobinding(bound)
    return [place.numpy() for place in places]


def ort_values(start: Start, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """With OrtValues."""
    given = {n: sardonyx.OrtValue.ortvalue_from_numpy(x) for n, x in feeds.items()}
    return [value.numpy() for value in start().run_with_ort_values(None, given)]


CALLS: dict[str, Call] = {
    "run": run,
    "after_invalid_feeds": after_invalid_feeds,
    "at_once": at_once,
    "each_output": each_output,
    "binding": binding,
    "ort_values": ort_values,
}
