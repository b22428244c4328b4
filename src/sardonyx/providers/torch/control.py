"""If, Loop and Scan over values on the device; conditions and counters are on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from sardonyx.errors import InvalidArgument
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Node
from sardonyx.ops.arrays import one_int
from sardonyx.ops.control.scan_outputs import empty_shape, stack_axis
from sardonyx.ops.control.standard import run_loop
from sardonyx.ops.inference import axis_of
from sardonyx.place.provider import CompiledNode, No, Yes
from sardonyx.program.run import PythonBody
from sardonyx.providers.torch.claim import why_unsupported
from sardonyx.providers.torch.dtypes import TORCH

if TYPE_CHECKING:
    from sardonyx.program.program import Program, Run
    from sardonyx.providers.torch import Torch

# Ops whose work on the device outweighs a synchronization per iteration.
_HEAVY: Final = frozenset((
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Attention",
    "MultiHeadAttention", "GroupQueryAttention", "MatMulNBits", "FusedMatMul", "QLinearConv",
    "QLinearMatMul",
))  # fmt: skip
KNOWN: Final = frozenset((("", "If"), ("", "Loop"), ("", "Scan")))


def claims(node: Node) -> Yes | No:
    """Accept control flow over tensors whose bodies contain heavy ops."""
    if node.op.key not in KNOWN:
        return No(f"{node.op} runs its bodies on the host")
    # Each iteration reads its condition on the host, which synchronizes with the device.
    graphs = [body for _, body in node.subgraphs]
    if not any(n.op.name in _HEAVY for graph in graphs for n in graph.all_nodes()):
        return No("its bodies are too small for a device")
    values = [v for v in node.inputs if v is not None]
    values += [*node.outputs, *(v for g in graphs for v in (*g.inputs, *g.outputs))]
    for value in values:
        if isinstance(value.fact, Fact) and value.fact.shape is None:
            continue  # the bodies' own values have ranks
        if why := why_unsupported(value):
            return No(why)
    return Yes("torch")


def host_inputs(node: Node) -> frozenset[int]:
    """Return the inputs read on the host: conditions and trip counts."""
    return {"If": frozenset((0,)), "Loop": frozenset((0, 1))}.get(node.op.name, frozenset())


def step(provider: Torch, node: Node, bodies: dict[str, Program]) -> CompiledNode:
    """Return a step that runs the node's bodies."""
    run_node = {"If": _if, "Loop": _loop, "Scan": _scan}[node.op.name]

    def call(values: Sequence[Any], run: Run) -> Sequence[Any]:
        bound_bodies = {name: PythonBody(program, run) for name, program in bodies.items()}
        return run_node(provider, node, list(values), bound_bodies)

    return CompiledNode(node, call, "torch")


def _if(
    provider: Torch, node: Node, values: list[Any], bodies: dict[str, PythonBody]
) -> Sequence[Any]:
    is_then = one_int(values[0], "the condition")
    return bodies["then_branch" if is_then else "else_branch"]()


def _loop(
    provider: Torch, node: Node, values: list[Any], bodies: dict[str, PythonBody]
) -> Sequence[Any]:
    values += [None] * (2 - len(values))
    carried, scanned, facts = run_loop(values[0], values[1], values[2:], bodies["body"])
    return [*carried, *(_stack(provider, r, f) for r, f in zip(scanned, facts, strict=True))]


def _scan(
    provider: Torch, node: Node, values: list[Any], bodies: dict[str, PythonBody]
) -> Sequence[Any]:
    body, attrs = bodies["body"], node.attrs
    n_scanned = attrs["num_scan_inputs"]
    n_states = len(values) - n_scanned
    states, scanned = values[:n_states], values[n_states:]
    axes = attrs["scan_input_axes"] or (0,) * n_scanned
    backward = attrs["scan_input_directions"] or (0,) * n_scanned
    # Views: one slice per iteration.
    slices = [x.unbind(axis_of(a, x.ndim)) for x, a in zip(scanned, axes, strict=True)]
    lengths = {len(s) for s in slices}
    if len(lengths) != 1:
        raise InvalidArgument(f"scanned inputs have different lengths: {sorted(lengths)}")
    slices = [s[::-1] if b else s for s, b in zip(slices, backward, strict=True)]
    outputs = []
    for slice_ in zip(*slices, strict=True):
        results = body(*states, *slice_)
        states = results[:n_states]
        outputs.append(results[n_states:])
    facts = body.zero_trip_facts[n_states:]
    out_axes = attrs["scan_output_axes"] or (0,) * len(facts)
    reverse = attrs["scan_output_directions"] or (0,) * len(facts)
    stacks = []
    for i, fact in enumerate(facts):
        elements = [results[i] for results in outputs]
        elements = elements[::-1] if reverse[i] else elements
        stacks.append(_stack(provider, elements, fact, out_axes[i]))
    return [*states, *stacks]


def _stack(provider: Torch, tensors: list[Any], fact: AnyFact, axis: int = 0) -> torch.Tensor:
    """Return the values of all iterations along a new axis; empty without iterations."""
    if tensors:
        return torch.stack(tensors, stack_axis([tuple(t.shape) for t in tensors], axis))
    assert isinstance(fact, Fact)
    return torch.empty(
        empty_shape(fact, axis), dtype=TORCH[fact.dtype], device=provider.torch_device
    )
