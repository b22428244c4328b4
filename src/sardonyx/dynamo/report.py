"""What was compiled, and what runs in torch, with the reasons."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from torch._dynamo.utils import counters, get_compilation_metrics

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import field, mutable
from sardonyx.dynamo.lower import Fallback
from sardonyx.dynamo.step_memory import StepMemory, graph_memory, memory_page, memory_text

if TYPE_CHECKING:
    from sardonyx.dynamo.executor import Executor

_UNCAPTURED: Final = (
    "nothing is compiled: the module was not called yet, or TorchDynamo captures none of it, and "
    "it runs in torch. TORCH_LOGS=graph_breaks prints where it stops; its reasons in this process:"
)
_RECOMPILED: Final = (
    "a function of this process was compiled too often: calls that no compiled graph fits run in "
    "torch. TORCH_LOGS=recompiles prints why; torch._dynamo.config.recompile_limit is the limit"
)


@mutable
class GraphReport:
    """One compiled torch graph."""

    kind: str  # forward, backward or inference
    n_nodes: int  # ATen calls
    n_sessions: int
    fallbacks: list[Fallback] = field(default_factory=list)
    seconds: float = 0.0  # to lower and compile
    is_cached: bool = False  # the lowered graph was loaded from the cache
    executor: Any = None  # if sessions run all of it: of `Executor` or a class that contains some

    @property
    def latest_executor(self) -> Executor | None:
        """The executor that ran last."""
        executor: Executor | None = getattr(self.executor, "latest", self.executor)
        return executor

    def lines(self) -> list[str]:
        """Return the graph's summary, and each op that runs in torch."""
        lowered = self.n_nodes - len(self.fallbacks)
        head = (
            f"{self.kind}: {lowered} of {self.n_nodes} ATen calls in {self.n_sessions} session(s)"
        )
        counts = Counter((f.op, f.reason, f.source) for f in self.fallbacks)
        origin = ", from the cache" if self.is_cached else ""
        return [f"{head}, compiled in {self.seconds:.2f} s{origin}"] + [
            f"  {n} x {op} runs in torch: {reason}" + (f" [{source}]" if source else "")
            for (op, reason, source), n in counts.items()
        ]


def _latest_step(ran: list[tuple[str, Executor]]) -> list[tuple[str, Executor]]:
    """Return the end of a list of executors, by run, that belongs to the latest step.

    It begins after the previous run of the last executor or, if that ran once only, at the forward
    graph that its backward graphs are balanced by.
    """
    since = ran[-1][1].runs[0] if ran else 0
    if since:
        return [pair for pair in ran if pair[1].runs[1] > since]
    n_backward = 0
    for begin in reversed(range(len(ran))):
        n_backward += 1 if ran[begin][0] == "backward" else -1
        if n_backward <= 0:
            return ran[begin:]
    return ran


@mutable
class Report:
    """The graphs that one wrapped model was compiled to, in the order of their compilation."""

    graphs: list[GraphReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    graph_breaks: list[str] = field(
        default_factory=list
    )  # why TorchDynamo ended a graph, and where

    @property
    def fallbacks(self) -> list[Fallback]:
        """All calls that run in torch."""
        return [f for graph in self.graphs for f in graph.fallbacks]

    @property
    def memory(self) -> str:
        """Where the memory of the latest step goes: what is saved, recomputed and live."""
        return memory_text(self.step_memory())

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the memory timelines of the graphs as a page, like that of `sardonyx plan`."""
        with writing(os.fspath(path)) as file:
            file.write(memory_page({"": self.step_memory()}, {}).encode())

    def step_memory(self) -> StepMemory:
        """Return the memory of the graphs of the latest step, in the order of their runs.

        Others were compiled for other sizes or settings. Inference graphs are not part of a step.
        """
        executors = [(g.kind, g.latest_executor) for g in self.graphs if g.kind != "inference"]
        ran = [(kind, e) for kind, e in executors if e is not None and e.shapes]
        ran.sort(key=lambda pair: pair[1].runs[1])
        return StepMemory(tuple(graph_memory(kind, e) for kind, e in _latest_step(ran)))

    def __str__(self) -> str:
        lines = [line for graph in self.graphs for line in graph.lines()]
        breaks = (f"graph break: {reason}" for reason in self.graph_breaks)
        return "\n".join([*self.notes, *lines, *breaks, *self._uncompiled()])

    def _uncompiled(self) -> list[str]:
        """Return why calls were not compiled; torch counts the reasons per process."""
        failures = (str(metrics.fail_reason) for metrics in get_compilation_metrics())
        lines = [_RECOMPILED] if any("recompile limit" in reason for reason in failures) else []
        if not self.graphs:
            lines.append(_UNCAPTURED)
            lines += [f"  {' '.join(str(why).split())[:300]}" for why in counters["graph_break"]]
        return lines
