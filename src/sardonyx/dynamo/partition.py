"""Partition a joint graph of AOTAutograd into forward and backward: what is saved between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
import torch._functorch.config as functorch_config
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._functorch import partitioners
from torch.utils.checkpoint import CheckpointPolicy

from sardonyx.dynamo.activation_checkpointing import REPEATABLE, JointGraph, choose_saved
from sardonyx.dynamo.split import is_draw

_default_choose_saved: Final = partitioners.choose_saved_values_set


def partition(
    joint: fx.GraphModule, joint_inputs: Any, memory_budget: float | None = None, **options: Any
) -> Any:
    """Split a joint graph into forward and backward by a minimum cut over the bytes saved.

    Everything but matmuls, convolutions, attention and random draws may be recomputed in the
    backward graph where that saves bytes: activations, normalizations and copies are cheap compared
    with matmuls. With a budget, `activation_checkpointing` then chooses layers to recompute.
    """
    save_costly_calls(joint)
    # Saving a view would copy it; its base is saved without a copy, and may be saved already.
    with (
        functorch_config.patch(aggressive_recomputation=True, recompute_views=True),
        _with_budget(memory_budget, options["num_fwd_outputs"]),
    ):
        return min_cut_rematerialization_partition(joint, joint_inputs, **options)


@contextmanager
def _with_budget(budget: float | None, n_outputs: int) -> Iterator[None]:
    """Make torch's partitioner save what a budget allows.

    It has no hook for choosing the saved values, so that function is replaced for the call.
    """
    if budget is None:
        yield
        return
    module: Any = partitioners
    module.choose_saved_values_set = partial(_choose, budget, n_outputs)
    try:
        yield
    finally:
        module.choose_saved_values_set = _default_choose_saved


def _choose(budget: float, n_outputs: int, graph: fx.Graph, info: Any, **_: Any) -> list[fx.Node]:
    joint = JointGraph(
        graph,
        info.inputs,
        frozenset(info.required_fw_nodes),
        frozenset(info.static_lifetime_input_nodes),
        n_outputs,
    )
    return choose_saved(joint, _default_choose_saved(graph, info, memory_budget=1), budget)


def save_costly_calls(joint: fx.GraphModule) -> None:
    """Save the results of random calls and of costly calls.

    Recomputing random calls would draw different random numbers. torch knows which of its own ops
    are matmuls, but not the cost of Sardonyx's ops and of searches; Sardonyx's ops may be
    recomputed under a memory budget. Calls that read an argument that the forward graph mutates,
    such as running statistics, are saved too: the backward graph would read the new value.
    """
    mutated = _mutated_arguments(joint)
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        reads_mutated = not mutated.isdisjoint(node.all_input_nodes)
        if reads_mutated and getattr(node.target, "is_view", False):
            mutated.add(node)
        elif reads_mutated or is_draw(node) or _is_costly(node.target):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            node.meta[REPEATABLE] = (
                not reads_mutated and not is_draw(node) and _is_sardonyx_op(node.target)
            )


def _mutated_arguments(joint: fx.GraphModule) -> set[fx.Node]:
    """Return the placeholders whose tensors the forward graph mutates.

    The new values are results, which AOTAutograd describes since torch 2.9. In older versions only
    the running statistics of batch norm are recognized, by their op.
    """
    *nodes, output = joint.graph.nodes
    described = output.meta.get("desc") or ()
    mutated = [getattr(result, "mutated_input", None) for result in described]
    return {n for n in nodes if n.op == "placeholder" and n.meta.get("desc", n) in mutated}


def _is_costly(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.rpartition("::")[2].lstrip("_")
    return _is_sardonyx_op(target) or name.startswith(_COSTLY)


def _is_sardonyx_op(target: Any) -> bool:
    return getattr(target, "namespace", "") == "sardonyx"


# Sorting, sequential scans, linear algebra, Fourier transforms; batch norm that updates statistics.
_COSTLY = ("sort", "topk", "kthvalue", "median", "mode", "unique", "cum", "logcumsumexp",
           "linalg", "cholesky", "triangular_solve", "fft", "cdist", "pdist",
           "batch_norm_with_update")  # fmt: skip
