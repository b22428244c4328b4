"""Profiles of a session as Chrome trace events, in onnxruntime's format."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import mutable
from sardonyx.base.stages import Stages
from sardonyx.program.segment_builder import SegmentBuilder

if TYPE_CHECKING:
    from sardonyx.graph.graph import Node
    from sardonyx.program.native import NativeSegment, Times
    from sardonyx.program.operands import Operands
    from sardonyx.program.program import PythonSegment, Run
    from sardonyx.program.region import RegionSegment

MAX_EVENTS: Final = 1_000_000
_MAX_THREAD_ID: Final = 1 << 22  # Linux's limit; lanes get thread ids above it


@mutable
class Event:
    """An interval; times are those of time.perf_counter, in seconds."""

    category: str
    name: str
    begin: float
    end: float
    args: Callable[[], dict[str, Any]]  # called when the profile is written
    thread: int
    step: TimedStep | None = None


@mutable
class TimedStep:
    """A step of a run: a node, or a whole region of a device."""

    key: Hashable  # equal for the same step in other runs
    nodes: tuple[Node, ...]
    provider: str
    kernel: str
    operands: Callable[[], Operands]

    @property
    def name(self) -> str:
        """The name of its first node, or its op if it has no name."""
        return self.nodes[0].name or self.nodes[0].op.name


class Profile:
    """Collects events and writes them to a file when the profile ends.

    Runs on several threads may add events: list.append is atomic.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.time_ns()
        self._zero = time.perf_counter()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.path = f"{prefix}_{stamp}_{self.start_ns // 1_000_000 % 1000:03d}.json"
        self.events: list[Event] = []
        self._sizes: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def add(self, category: str, name: str, start: float, end: float) -> None:
        """Add an event that is not a step."""
        self._append(Event(category, name, start, end, dict, threading.get_native_id()))

    def _append(self, event: Event) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)

    def _append_step(self, step: TimedStep, start: float, end: float, lane: int = 0) -> None:
        """Add a step, on the track of its thread or of a parallel lane."""
        n_more = len(step.nodes) - 1
        name = f"{step.name}_and_{n_more}_more" if n_more else f"{step.name}_kernel_time"
        thread = threading.get_native_id() + lane * _MAX_THREAD_ID
        self._append(Event("Node", name, start, end, lambda: _step_args(step), thread, step))

    def add_stages(self, stages: Stages, origin: str) -> None:
        """Add the load: as a whole, with onnxruntime's names, and by stage."""
        self._zero = min(self._zero, stages.start)
        for name, start, end in stages.spans:
            self.add("Session", f"stage_{name}", start, end)
            if name == "load":
                self.add("Session", f"model_loading_{origin}", start, end)
        last = stages.spans[-1][2] if stages.spans else stages.start
        self.add("Session", "session_initialization", stages.start, last)

    def add_step(self, segment: PythonSegment | RegionSegment, run: Run, started: float) -> None:
        """Add a step of a run that Python executes."""
        end = time.perf_counter()
        inputs, outputs = ([run.frame[i] for i in s] for s in (segment.inputs, segment.outputs))
        operands = _operands(inputs, outputs)
        nodes = getattr(segment, "nodes", (segment.node,))
        step = TimedStep(id(segment), nodes, segment.provider, segment.kernel, lambda: operands)
        self._append_step(step, started, end)

    def add_native(self, segment: NativeSegment, times: Times) -> None:
        """Add the steps of a native segment, whose clock is that of time.perf_counter."""
        parts = list(segment.all_items())
        # `lane` is the parallel branch of the step; `run` selects the sizes of one loop pass.
        for number, index, begin, end, run, lane in times.spans:
            part = parts[number]
            assert isinstance(part, SegmentBuilder), "control flow has no time of its own"
            operands = self._lazy_operands(part, index, times.names[run])
            flat = part.steps[index]
            step = TimedStep((id(part), index), (flat.node,), "cpu", flat.kernel, operands)
            self._append_step(step, begin / 1e9, end / 1e9, lane)

    def _lazy_operands(
        self, part: SegmentBuilder, index: int, names: list[int]
    ) -> Callable[[], Operands]:
        """Return a function that computes a step's operands: runs do not wait for it."""

        def compute() -> Operands:
            from sardonyx.program.operands import evaluate_sizes, operands

            key = id(part), tuple(names)
            if key not in self._sizes:
                self._sizes[key] = evaluate_sizes(part, names)
            return operands(part, part.steps[index], self._sizes[key])

        return compute

    def write(self) -> str:
        """Write the events atomically and return the file's name."""
        import json  # needed only for profiles

        pid = os.getpid()
        events = [
            {
                "cat": e.category,
                "pid": pid,
                "tid": e.thread,
                "dur": max(0, round((e.end - e.begin) * 1e6)),
                "ts": max(0, round((e.begin - self._zero) * 1e6)),
                "ph": "X",
                "name": e.name,
                "args": e.args(),
            }
            for e in self.events
        ]
        with writing(self.path) as file:
            file.write(json.dumps(events).encode())
        return self.path


def _step_args(step: TimedStep) -> dict[str, Any]:
    """Return the args of a step's event, as in onnxruntime's profiles."""
    inputs, outputs = ([o for o in side if o is not None] for side in step.operands())
    return {
        "op_name": step.nodes[0].op.name if len(step.nodes) == 1 else "Region",
        "provider": step.provider,
        "kernel": step.kernel,
        "nodes": [n.name or n.op.name for n in step.nodes],
        "input_type_shape": [{o.type: list(o.dims)} for o in inputs],
        "output_type_shape": [{o.type: list(o.dims)} for o in outputs],
        "output_size": str(sum(o.n_bytes for o in outputs)),
    }


def _operands(inputs: list[Any], outputs: list[Any]) -> Operands:
    """Return the types and shapes of arrays and torch tensors; None for other values."""
    from sardonyx.program.operands import Operand, Operands

    def operand(value: Any) -> Operand | None:
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            return None
        name = str(value.dtype).removeprefix("torch.")
        return Operand(name, tuple(value.shape), getattr(value, "nbytes", 0))

    return Operands(tuple(map(operand, inputs)), tuple(map(operand, outputs)))
