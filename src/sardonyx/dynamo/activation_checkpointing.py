"""Activation checkpointing: choose what a training step saves under a memory budget.

`choose_saved` starts with the values that a minimum cut saves, and finds layers: forward calls
between two boundaries, single values that separate everything before from everything after. A layer
is either saved as the cut has it, or checkpointed: only its boundary is kept, and the backward
graph recomputes the layer right before the gradients that read it (Chen et al., Training Deep Nets
with Sublinear Memory Cost, 2016). Which layers are checkpointed, and how many are grouped, is
decided by estimates of peak memory and recompute time: see `Plan`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from sardonyx.base.records import frozen

# Cost of writing one byte, in FLOPs (machine balance of one core).
_FLOPS_PER_BYTE: Final = 10
# A boundary ends a layer that holds at least this many times its bytes: in a chain all values are
# boundaries.
_BYTES_PER_BOUNDARY: Final = 2
# Of a layer's largest saved value; smaller values (e.g. norm statistics) are always saved.
_MIN_DROPPED_FRACTION: Final = 1 / 32
# Set in the `meta` of calls that a minimum cut must save only because they are expensive.
REPEATABLE: Final = "sardonyx_repeatable"
_UNKNOWN_SIZE: Final = 4096  # of a symbolic dim without a value


@frozen
class JointGraph:
    """A joint graph of AOTAutograd, and what is known about it."""

    graph: fx.Graph
    inputs: Sequence[fx.Node]  # of the forward graph
    forward: Collection[fx.Node]
    parameters: Collection[fx.Node]  # and buffers; empty if this torch does not identify them
    n_outputs: int  # of the forward graph; the gradients of the inputs follow


@frozen
class CheckpointedLayer:
    """Forward calls [begin, end), and the effect and cost of checkpointing them."""

    begin: int
    end: int
    dropped: frozenset[fx.Node]  # saved values that are recomputed instead
    kept: frozenset[fx.Node]  # inputs of the recomputation, which must be saved
    held_bytes: int  # the memory that recomputing them takes
    cost: float  # in FLOPs, see _FLOPS_PER_BYTE


@frozen
class Plan:
    """Saved values, with estimates.

    The peak is that of the backward pass: the most bytes of saved values and gradients that are
    live simultaneously, plus the arena, which holds the gradients of activations and the largest
    checkpointed layer.
    """

    saved: frozenset[fx.Node]
    saved_bytes: int
    peak_bytes: int
    cost: float


def choose_saved(joint: JointGraph, saved: Sequence[fx.Node], budget: float) -> list[fx.Node]:
    """Return the values to save.

    A budget up to 1 is a fraction of the bytes saved without one, a larger one a number of bytes.
    Of the Pareto-optimal plans (peak and cost), the cheapest one within the budget is chosen, or
    the one with the lowest peak if none fits. So a smaller budget never leads to a higher peak.
    """
    forward = _Forward(joint, saved)
    plans = sorted(forward.plans(), key=lambda p: (p.cost, p.peak_bytes))
    pareto: list[Plan] = []
    for plan in plans:
        if not pareto or plan.peak_bytes < pareto[-1].peak_bytes:
            pareto.append(plan)
    limit = budget * forward.saved_bytes(saved) if budget <= 1 else budget
    chosen = next((p for p in pareto if p.saved_bytes <= limit), pareto[-1]).saved
    order = {node: i for i, node in enumerate(joint.graph.nodes)}
    return sorted(chosen, key=order.__getitem__)


class _Forward:
    """The forward nodes of a joint graph, its calls numbered in order."""

    def __init__(self, joint: JointGraph, saved: Sequence[fx.Node]) -> None:
        self._saved = saved
        forward = set(joint.forward)
        self._calls = [n for n in joint.graph.nodes if n in forward and _is_call(n)]
        self._position = {n: i for i, n in enumerate(self._calls)}
        for node in joint.graph.nodes:
            if node.target is operator.getitem and node.args[0] in self._position:
                self._position[node] = self._position[node.args[0]]
        grads = _outputs(joint.graph)[joint.n_outputs :]
        self._gradients = {
            n: g for n, g in zip(joint.inputs, grads, strict=False) if isinstance(g, fx.Node)
        }
        data = [n for n in joint.inputs if n not in joint.parameters]
        # Gradients flow through these. A value that depends on parameters alone, such as a cast
        # weight, connects the layers that share it but is not an activation.
        self._derived = _depending(joint.graph, self._gradients) & _depending(joint.graph, data)
        self._active = {n for n in self._derived if not _is_discrete(n)}
        self._backward_bytes = _working_bytes(joint)

    def saved_bytes(self, nodes: Iterable[fx.Node]) -> int:
        """Return the bytes of activations; inputs are excluded: the caller keeps them alive."""
        return sum(_bytes_of(n) for n in nodes if n in self._position)

    def plans(self) -> Iterator[Plan]:
        """Yield plans that checkpoint no layer, the cheapest one, the two cheapest and so on.

        Layers are ordered by recompute cost per byte saved, ties by position: the activations of
        earlier layers are live longest. This is repeated with groups of 1, 2, 3, 4, 6, 9, ...
        layers, for models with many layers and large boundaries.
        """
        yield self._plan([])
        ends = self._layer_ends()
        size = 1
        while ends and size <= len(ends):
            grouped = [*ends[size - 1 :: size]]
            layers = [self._layer(b, e) for b, e in zip([0, *grouped], grouped, strict=False)]
            layers = [layer for layer in layers if layer.dropped]
            layers.sort(key=lambda layer: (_cost_per_byte(layer), layer.begin))
            for n in range(1, len(layers) + 1):
                yield self._plan(layers[:n])
            size += max(1, size // 2)

    def _plan(self, layers: Sequence[CheckpointedLayer]) -> Plan:
        saved = set(self._saved).difference(*(layer.dropped for layer in layers))
        saved.update(*(layer.kept for layer in layers))
        arena = self._backward_bytes + max((layer.held_bytes for layer in layers), default=0)
        return Plan(
            frozenset(saved),
            self.saved_bytes(saved),
            self._peak(saved, arena),
            sum(layer.cost for layer in layers),
        )

    def _peak(self, saved: Collection[fx.Node], arena: int) -> int:
        """Estimate the peak live bytes of the backward pass.

        A saved value is live until the pass reaches its call, a gradient from its call on. The
        arena may alias the largest gradient's block until that gradient is written.
        """
        held = np.zeros(len(self._calls) + 1, np.int64)
        made = np.zeros(len(self._calls) + 1, np.int64)
        for node in saved:
            if node in self._position:
                held[self._position[node]] += _bytes_of(node)
        largest = 0
        for node in self._gradients:
            size = _bytes_of(node)
            made[
                min((self._position[u] for u in node.users if u in self._position), default=0)
            ] += size
            largest = max(largest, size)
        saved_bytes, gradients = np.cumsum(held), np.cumsum(made[::-1])[::-1]
        late = int((saved_bytes + gradients).max()) + arena
        early = int((saved_bytes + np.maximum(gradients, largest)).max())
        return min(late, early + max(0, arena - largest))

    def _layer_ends(self) -> list[int]:
        """Return where layers end.

        Nodes after the last boundary are not checkpointed: the backward pass reads them first.
        """
        held = np.zeros(len(self._calls) + 1, np.int64)
        for node in self._saved:
            if node in self._position:
                held[self._position[node] + 1] += _bytes_of(node)
        total = np.cumsum(held)
        ends: list[int] = []
        begin = 0
        for i, value in self._boundaries():
            if total[i + 1] - total[begin] >= _BYTES_PER_BOUNDARY * _bytes_of(value):
                ends.append(i + 1)
                begin = i + 1
        return ends

    def _boundaries(self) -> Iterator[tuple[int, fx.Node]]:
        """Yield the single-value cuts of the forward graph: a call and the value live after it."""
        last_read: dict[fx.Node, int] = {}
        for i, call in enumerate(self._calls):
            last_read.update((n, i) for n in call.all_input_nodes if n in self._active)
        n_live, n_ending = 0, [0] * len(self._calls)
        for i, call in enumerate(self._calls):
            live = [value for value in _results(call) if value in last_read]
            for value in live:
                n_ending[last_read[value]] += 1
            n_live += len(live) - n_ending[i]
            if n_live == 1 and len(live) == 1 and not _is_view(call):
                yield i, live[0]

    def _layer(self, begin: int, end: int) -> CheckpointedLayer:
        """Return the layer of the calls [begin, end)."""
        inside = [
            n
            for n in self._saved
            if begin <= self._position.get(n, -1) < end
            and n in self._derived
            and not is_unrepeatable(n)
        ]
        small = _MIN_DROPPED_FRACTION * max(map(_bytes_of, inside), default=0)
        dropped = {n for n in inside if _bytes_of(n) > small}
        recomputed, kept = self._sources(dropped, begin)
        sizes = {n: _bytes_of(n) for n in recomputed if not _is_view(n)}
        other = max((size for n, size in sizes.items() if n not in dropped), default=0)
        cost = sum(_flops(n) for n in recomputed) + _FLOPS_PER_BYTE * sum(sizes.values())
        held = sum(map(_bytes_of, dropped)) + other
        return CheckpointedLayer(begin, end, frozenset(dropped), frozenset(kept), held, cost)

    def _sources(
        self, dropped: Collection[fx.Node], begin: int
    ) -> tuple[set[fx.Node], set[fx.Node]]:
        """Return the nodes from call `begin` on that recompute values, and the inputs they read."""
        recomputed: set[fx.Node] = set()
        kept: set[fx.Node] = set()
        saved = set(self._saved).difference(dropped)
        work = list(dropped)
        while work:
            node = work.pop()
            if node in recomputed or node in kept:
                continue
            is_before = self._position.get(node, begin) < begin and not _is_view(node)
            is_kept = _is_tensor(node) and (is_before or is_unrepeatable(node))
            if is_kept or node in saved or node.op == "placeholder":
                kept.add(node)
            else:
                recomputed.add(node)
                work.extend(node.all_input_nodes)
        return recomputed, kept


def _cost_per_byte(layer: CheckpointedLayer) -> float:
    """Return the recompute cost per byte saved, as log2.

    It is rounded to 0.1, so that near-ties keep graph order.
    """
    dropped = sum(map(_bytes_of, layer.dropped)) - sum(map(_bytes_of, layer.kept))
    return math.inf if dropped <= 0 else round(math.log2(1 + layer.cost / dropped), 1)


def _working_bytes(joint: JointGraph) -> int:
    """Return the peak bytes of activation gradients that one backward call reads and writes.

    Nodes that feed a single output are excluded: they are computed in that gradient's buffer.
    """
    tangents = [
        n for n in joint.graph.nodes if n.op == "placeholder" and n not in set(joint.inputs)
    ]
    backward = _depending(joint.graph, tangents)
    results: dict[fx.Node, set[int]] = {}
    for i, output in enumerate(_outputs(joint.graph)):
        if isinstance(output, fx.Node):
            results.setdefault(output, set()).add(i)
    for node in reversed(joint.graph.nodes):
        if node in backward and node.op == "call_function":
            of_users = (results.get(user, set()) for user in node.users)
            results[node] = results.get(node, set()).union(*of_users)
    shared = {n for n in backward if len(results[n]) > 1}
    touched = ({node, *node.all_input_nodes} & shared for node in backward)
    return max((sum(map(_bytes_of, nodes)) for nodes in touched), default=0)


def _depending(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the calls that depend on one of the sources."""
    found = set(sources)
    depending: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
            depending.add(node)
    return depending


def _is_discrete(node: fx.Node) -> bool:
    """Whether no gradient flows through a node: its tensor is of integers or booleans."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _outputs(graph: fx.Graph) -> Sequence[Any]:
    results: Sequence[Any] = next(iter(reversed(graph.nodes))).args[0]
    return results


def _is_call(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_view(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


def is_unrepeatable(node: fx.Node) -> bool:
    """Whether a call, or the call whose item this is, must not be recomputed."""
    call: Any = node.args[0] if node.target is operator.getitem else node
    is_saved = call.meta.get("recompute") is CheckpointPolicy.MUST_SAVE
    return is_saved and not call.meta.get(REPEATABLE, False)


def _results(call: fx.Node) -> list[fx.Node]:
    """Return the values of a call: itself, or the items of its tuple."""
    items = [n for n in call.users if n.target is operator.getitem]
    return items if not _is_tensor(call) else [call]


def _bytes_of(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(map(_hint, value.shape)) * value.element_size()


def _hint(size: Any) -> int:
    """Return a size as a number, for a symbolic one its hint (example value); adds no guard."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return _UNKNOWN_SIZE if hint is None else int(hint)


def _flops(node: fx.Node) -> int:
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    return _hint(formula(*args, **kwargs, out_val=node.meta.get("val")))
