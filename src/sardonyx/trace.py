"""Profiles: what a session did and when, as Chrome trace events, as onnxruntime writes them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sardonyx.atomic import writing
from sardonyx.program.flat import SegmentBuilder

if TYPE_CHECKING:
    from sardonyx.program.native import NativeSegment
    from sardonyx.program.program import PythonSegment, Run, Span
    from sardonyx.program.region import RegionSegment

MAX_EVENTS: Final = 1_000_000


class Stages:
    """Times the stages of a load. Always on: it costs two clock readings a stage."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.start = time.perf_counter()
        self._before = before
        self.spans: list[tuple[str, float, float]] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage of several, one after the other."""
        self._before()
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append((name, started, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """How long each stage took."""
        return {name: end - start for name, start, end in self.spans}


class Profile:
    """Collects events and writes them to a file when the profile ends."""

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.time_ns()
        self._zero = time.perf_counter()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.path = f"{prefix}_{stamp}_{self.start_ns // 1_000_000 % 1000:03d}.json"
        self._events: list[dict[str, Any]] = []
        self._pid = os.getpid()

    def add(self, category: str, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        """One event, with times of time.perf_counter."""
        if len(self._events) >= MAX_EVENTS:
            return
        self._events.append(
            {
                "cat": category,
                "pid": self._pid,
                "tid": threading.get_native_id(),
                "dur": max(0, round((end - start) * 1e6)),
                "ts": max(0, round((start - self._zero) * 1e6)),
                "ph": "X",
                "name": name,
                "args": args,
            }
        )

    def add_stages(self, stages: Stages, origin: str) -> None:
        """The load: as a whole, under the names onnxruntime gives it, and by stage."""
        self._zero = min(self._zero, stages.start)
        for name, start, end in stages.spans:
            self.add("Session", f"stage_{name}", start, end, {})
            if name == "load":
                self.add("Session", f"model_loading_{origin}", start, end, {})
        last = stages.spans[-1][2] if stages.spans else stages.start
        self.add("Session", "session_initialization", stages.start, last, {})

    def add_step(self, segment: PythonSegment | RegionSegment, run: Run, started: float) -> None:
        """One step of a run: a node, or a region of a device as a whole."""
        frame, node = run.frame, segment.node
        inputs = [frame[i] for i in segment.inputs]
        outputs = [frame[i] for i in segment.outputs]
        nodes = getattr(segment, "nodes", (node,))
        name = node.name or node.op.name
        self.add(
            "Node",
            f"{name}_kernel_time" if len(nodes) == 1 else f"{name}_and_{len(nodes) - 1}_more",
            started,
            time.perf_counter(),
            {
                "op_name": node.op.name if len(nodes) == 1 else "Region",
                "provider": segment.provider,
                "kernel": segment.kernel,
                "nodes": [n.name or n.op.name for n in nodes],
                "input_type_shape": _shapes(inputs),
                "output_type_shape": _shapes(outputs),
                "output_size": str(sum(getattr(v, "nbytes", 0) for v in outputs)),
            },
        )

    def add_native(self, segment: NativeSegment, spans: list[Span]) -> None:
        """The steps of a native segment; its clock is that of time.perf_counter."""
        parts = list(segment.all_parts())
        for number, index, begin, end in spans:
            part = parts[number]
            assert isinstance(part, SegmentBuilder), "control flow takes no time of its own"
            step = part.steps[index]
            self.add(
                "Node",
                f"{step.node.name or step.node.op.name}_kernel_time",
                begin / 1e9,
                end / 1e9,
                {"op_name": step.node.op.name, "provider": "cpu", "kernel": step.row},
            )

    def write(self) -> str:
        """Writes the events, whole or not at all, and returns the file's name."""
        import json  # only a session that profiles needs it

        with writing(self.path) as file:
            file.write(json.dumps(self._events).encode())
        return self.path


def _shapes(values: list[Any]) -> list[dict[str, list[int]]]:
    # Arrays, and tensors of torch, whose types begin with its name.
    tensors = (v for v in values if hasattr(v, "dtype") and hasattr(v, "shape"))
    return [{str(v.dtype).removeprefix("torch."): list(v.shape)} for v in tensors]
