"""If, Loop and Scan whose values lie on the device; conditions and counters are the host's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from sardonyx.errors import InvalidArgument
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Node
from sardonyx.ops.arrays import one_int
from sardonyx.ops.inference import axis_of
from sardonyx.place.provider import No, Step, Yes
from sardonyx.program.run import Body
from sardonyx.providers.torch.claim import unfit
from sardonyx.providers.torch.dtypes import TORCH

if TYPE_CHECKING:
    from sardonyx.program.program import Program, Run
    from sardonyx.providers.torch import Torch

# Ops for which it pays to keep a body on the device.
_HEAVY: Final = frozenset((
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Attention",
    "MultiHeadAttention", "GroupQueryAttention", "MatMulNBits", "FusedMatMul", "QLinearConv",
    "QLinearMatMul",
))  # fmt: skip
KNOWN: Final = frozenset((("", "If"), ("", "Loop"), ("", "Scan")))


def claims(node: Node) -> Yes | No:
    """Yes to control flow over tensors whose bodies have work for a device."""
    if node.op.key not in KNOWN:
        return No(f"{node.op} runs its bodies on the host")
    graphs = [body for _, body in node.subgraphs]
    if not any(n.op.name in _HEAVY for graph in graphs for n in graph.all_nodes()):
        return No("its bodies are too small for a device")
    values = [v for v in node.inputs if v is not None]
    values += [*node.outputs, *(v for g in graphs for v in (*g.inputs, *g.outputs))]
    for value in values:
        if isinstance(value.fact, Fact) and value.fact.shape is None:
            continue  # bodies know more
        if why := unfit(value):
            return No(why)
    return Yes("torch")


def host_inputs(node: Node) -> frozenset[int]:
    """Conditions and counts."""
    return {"If": frozenset((0,)), "Loop": frozenset((0, 1))}.get(node.op.name, frozenset())


def step(provider: Torch, node: Node, bodies: dict[str, Program]) -> Step:
    """A call that runs the node's bodies."""
    run_it = {"If": _if, "Loop": _loop, "Scan": _scan}[node.op.name]

    def call(values: Sequence[Any], run: Run) -> Sequence[Any]:
        bound = {name: Body(program, run) for name, program in bodies.items()}
        return run_it(provider, node, list(values), bound)

    return Step(node, call, "torch")


def _if(provider: Torch, node: Node, values: list[Any], bodies: dict[str, Body]) -> Sequence[Any]:
    is_then = one_int(values[0], "the condition")
    return bodies["then_branch" if is_then else "else_branch"]()


def _loop(provider: Torch, node: Node, values: list[Any], bodies: dict[str, Body]) -> Sequence[Any]:
    body = bodies["body"]
    values += [None] * (2 - len(values))
    count = None if values[0] is None else one_int(values[0], "the trip count")
    goes_on = values[1] is None or bool(one_int(values[1], "the condition"))
    carried, rows = values[2:], []
    turn = 0
    while goes_on and (count is None or turn < count):
        made = body(np.array(turn, np.int64), np.array(goes_on), *carried)
        goes_on = bool(one_int(made[0], "the condition"))
        carried = made[1 : 1 + len(carried)]
        rows.append(made[1 + len(carried) :])
        turn += 1
    facts = body.unrun_facts[1 + len(carried) :]
    stacks = [_stacked(provider, [row[i] for row in rows], f) for i, f in enumerate(facts)]
    return [*carried, *stacks]


def _scan(provider: Torch, node: Node, values: list[Any], bodies: dict[str, Body]) -> Sequence[Any]:
    body, attrs = bodies["body"], node.attrs
    n_scanned = attrs["num_scan_inputs"]
    n_states = len(values) - n_scanned
    states, scanned = values[:n_states], values[n_states:]
    axes = attrs["scan_input_axes"] or (0,) * n_scanned
    backward = attrs["scan_input_directions"] or (0,) * n_scanned
    parts = [x.unbind(axis_of(a, x.ndim)) for x, a in zip(scanned, axes, strict=True)]
    lengths = {len(p) for p in parts}
    if len(lengths) != 1:
        raise InvalidArgument(f"scanned inputs have different lengths: {sorted(lengths)}")
    parts = [p[::-1] if b else p for p, b in zip(parts, backward, strict=True)]
    rows = []
    for slices in zip(*parts, strict=True):
        made = body(*states, *slices)
        states = made[:n_states]
        rows.append(made[n_states:])
    facts = body.unrun_facts[n_states:]
    out_axes = attrs["scan_output_axes"] or (0,) * len(facts)
    reverse = attrs["scan_output_directions"] or (0,) * len(facts)
    stacks = []
    for i, fact in enumerate(facts):
        column = [row[i] for row in rows]
        column = column[::-1] if reverse[i] else column
        stacks.append(_stacked(provider, column, fact, out_axes[i]))
    return [*states, *stacks]


def _stacked(
    provider: Torch, rows: list[torch.Tensor], fact: AnyFact, axis: int = 0
) -> torch.Tensor:
    """Values of all iterations along a new axis; of none, an empty tensor."""
    if rows:
        shapes = list(dict.fromkeys(tuple(r.shape) for r in rows))
        if len(shapes) > 1:
            raise InvalidArgument(f"values collected over iterations have shapes {shapes[:4]}")
        return torch.stack(rows, axis_of(axis, rows[0].ndim + 1))
    assert isinstance(fact, Fact)
    dims = [d if isinstance(d, int) else 0 for d in fact.shape or ()]
    dims.insert(axis_of(axis, len(dims) + 1), 0)
    return torch.empty(dims, dtype=TORCH[fact.dtype], device=provider.place)
