"""A profile as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import os
from typing import Any, Final

from sardonyx.cli.profile import Report, described

_START, _RUN = 1, 2  # tracks
_TRACKS: Final = ((_START, "start"), (_RUN, "run"))
_KEPT: Final[tuple[str, ...]] = (
    "op",
    "nodes",
    "family",
    "kernel",
    "provider",
    "inputs",
    "outputs",
    "bound",
)


def trace(report: Report) -> dict[str, Any]:
    """A run and its steps on one track, the stages of the start on another."""
    events: list[dict[str, Any]] = [_named("process_name", 0, os.path.basename(report.given.model))]
    events += [_named("thread_name", track, name) for track, name in _TRACKS]
    events += _start(report)
    events += _run(report)
    limits = report.limits
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "threads": limits.threads,
            "gflops": {name: rate / 1e9 for name, rate in limits.rates.items()},
            "gbytes_read": limits.reads / 1e9,
        },
    }


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": track, "name": what, "args": {"name": name}}


def _slice(track: int, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    """One piece of time, in seconds from the beginning of its track."""
    times = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
    return {"ph": "X", "pid": 1, "tid": track, "name": name, **times, "args": args}


def _start(report: Report) -> list[dict[str, Any]]:
    stages = report.start.session._compiled.stages
    zero = stages.start
    made = [_slice(_START, name, begin - zero, end - zero) for name, begin, end in stages.spans]
    last = max((end for _, _, end in stages.spans), default=zero)
    return [_slice(_START, "start", 0, last - zero), *made]


def _run(report: Report) -> list[dict[str, Any]]:
    run = [e for e in report.events if e.name == "model_run"]
    zero = run[0].begin
    made = [_slice(_RUN, "run", 0, run[0].end - zero)]
    known = {step.timed.key: described(step, report.limits) for step in report.steps}
    for event in report.events:
        if event.step is None:
            continue
        step = event.step
        about = known.get(step.key, {})
        args = {key: about[key] for key in _KEPT if key in about}
        seconds = event.end - event.begin
        if about and seconds:
            passes = about["passes"] * seconds
            args["GFLOP/s"] = round(about["operations"] / passes / 1e9, 2)
            args["GB/s"] = round(about["bytes"] / passes / 1e9, 2)
            args["of_limit"] = round(about["at_limit_s"] / passes, 3)
        made.append(_slice(_RUN, step.name, event.begin - zero, event.end - zero, **args))
    return made
