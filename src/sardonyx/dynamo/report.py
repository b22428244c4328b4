"""What was compiled, and what stayed with torch, with the reasons."""

from __future__ import annotations

from collections import Counter
from typing import Final

from torch._dynamo.utils import counters, get_compilation_metrics

from sardonyx.base.records import field, mutable
from sardonyx.dynamo.lower import Fallback

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

    def __str__(self) -> str:
        lines = [line for graph in self.graphs for line in graph.lines()]
        breaks = (f"graph break: {reason}" for reason in self.graph_breaks)
        return "\n".join([*self.notes, *lines, *breaks, *self._uncompiled()])

    def _uncompiled(self) -> list[str]:
        """Say which calls no graph was made for: torch counts the reasons for the whole process."""
        failures = (str(metrics.fail_reason) for metrics in get_compilation_metrics())
        lines = [_RECOMPILED] if any("recompile limit" in reason for reason in failures) else []
        if not self.graphs:
            lines.append(_UNCAPTURED)
            lines += [f"  {' '.join(str(why).split())[:300]}" for why in counters["graph_break"]]
        return lines
