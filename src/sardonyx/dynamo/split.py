"""Split a graph between torch, which runs calls without a lowering, and Sardonyx's sessions."""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter, getitem

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

SARDONYX, TORCH = 0, 1


def split_graph(module: fx.GraphModule, fallbacks: Collection[fx.Node]) -> fx.GraphModule:
    """Return a module of submodules `submod_sardonyx_N` and `submod_torch_N`, called in order.

    A node's level is the maximum over its inputs, plus one for an input from the other side. Nodes
    of one side and level form a submodule: no cycle is possible, and the number of submodules is
    the number of alternations on the longest path. Draws from generators run in torch and keep
    their order: each has at least the level of the previous draw.
    """
    sides = _sides(module, fallbacks)
    levels: dict[fx.Node, int] = {}
    last_draw = 0
    for node in module.graph.nodes:
        if node not in sides:
            continue
        level = 0
        for source in node.all_input_nodes:
            if source in levels:
                level = max(level, levels[source] + (sides[source] != sides[node]))
        if is_draw(node):
            level = last_draw = max(level, last_draw)
        levels[node] = level
    # split_module orders submodules by their dependencies.
    names = {n: f"{'torch' if sides[n] == TORCH else 'sardonyx'}_{levels[n]}" for n in levels}
    return split_module(module, module, lambda node: names[node], keep_original_order=False)  # type: ignore[arg-type,return-value]


def _sides(module: fx.GraphModule, fallbacks: Collection[fx.Node]) -> dict[fx.Node, int]:
    """Return the side of every call; an item of a tuple stays with the call that returns it."""
    sides: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        if node.op == "get_attr" and is_graph(module, node):
            continue  # split_module copies it to the call that reads it
        if node.target is getitem:
            sides[node] = sides.get(node.args[0], SARDONYX)
        else:
            sides[node] = TORCH if node in fallbacks or is_draw(node) else SARDONYX
    return sides


def is_graph(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an attribute is a graph that a higher-order op, such as `torch.cond`, calls."""
    return isinstance(attrgetter(str(node.target))(module), torch.nn.Module)


def is_draw(node: fx.Node) -> bool:
    """Whether a node draws from a generator."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags
