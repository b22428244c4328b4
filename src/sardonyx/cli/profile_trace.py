"""A profile as Chrome trace events, for Perfetto and chrome://tracing."""

from __future__ import annotations

import os
from typing import Any, Final

from sardonyx.cli.profile import ModelProfile, described

_START, _RUN = 1, 2  # tracks
_TRACKS: Final = ((_START, "start"), (_RUN, "run"))
# Facts about a step that the trace has.
_ARGS: Final = ("op", "nodes", "family", "kernel", "provider", "inputs", "outputs", "bound")


def trace(report: ModelProfile) -> dict[str, Any]:
    """Return a trace with a run and its steps on one track, and the start-up on another."""
    events: list[dict[str, Any]] = [
        _named("process_name", 0, os.path.basename(report.subject.model))
    ]
    events += [_named("thread_name", track, name) for track, name in _TRACKS]
    events += _start(report)
    events += _run(report)
    roofline = report.roofline
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "threads": roofline.threads,
            "gflops": {name: rate / 1e9 for name, rate in roofline.operations_per_s.items()},
            "gbytes_read": roofline.bytes_read_per_s / 1e9,
        },
    }


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": track, "name": what, "args": {"name": name}}


def _slice(track: int, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    """Return a complete event; times are seconds from the beginning of its track."""
    times = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
    return {"ph": "X", "pid": 1, "tid": track, "name": name, **times, "args": args}


def _start(report: ModelProfile) -> list[dict[str, Any]]:
    stages = report.start.session._compiled.stages
    zero = stages.start
    slices = [_slice(_START, name, begin - zero, end - zero) for name, begin, end in stages.spans]
    last = max((end for _, _, end in stages.spans), default=zero)
    return [_slice(_START, "start", 0, last - zero), *slices]


def _run(report: ModelProfile) -> list[dict[str, Any]]:
    run = [e for e in report.events if e.name == "model_run"]
    zero = run[0].begin
    slices = [_slice(_RUN, "run", 0, run[0].end - zero)]
    facts_of = {step.timed.key: described(step, report.roofline) for step in report.steps}
    for event in report.events:
        if event.step is None:
            continue
        step = event.step
        facts = facts_of.get(step.key, {})
        args: dict[str, Any] = {key: facts[key] for key in _ARGS if key in facts}
        seconds = event.end - event.begin
        if facts and seconds:
            # The facts are of all passes of a loop; an event is one of them.
            all_passes_s = facts["passes"] * seconds
            args["GFLOP/s"] = round(facts["operations"] / all_passes_s / 1e9, 2)
            args["GB/s"] = round(facts["bytes"] / all_passes_s / 1e9, 2)
            args["of_limit"] = round(facts["at_limit_s"] / all_passes_s, 3)
        slices.append(_slice(_RUN, step.name, event.begin - zero, event.end - zero, **args))
    return slices
