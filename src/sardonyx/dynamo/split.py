"""Split a graph between torch, which runs calls without a lowering, and Sardonyx's sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from sardonyx.base.records import frozen

SARDONYX, TORCH = 0, 1


def split_graph(
    module: fx.GraphModule,
    fallbacks: Collection[fx.Node],
    gradients: Collection[str] | None = None,
) -> fx.GraphModule:
    """Return a module of submodules `submod_sardonyx_N` and `submod_torch_N`, called in order.

    A node's level is the maximum over its inputs, plus one for an input from the other side. Nodes
    of one side and level form a submodule: no cycle is possible, and the number of submodules is
    the number of alternations on the longest path. Draws from generators run in torch and keep
    their order: each has at least the level of the previous draw.

    `gradients` are the `gradient_names` of a backward graph. What it recomputes has the level of
    the first gradient that reads it, so that it is not live while torch runs a call before that.
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
    if gradients is not None:
        _sink(levels, sides, gradients)
    # split_module orders submodules by their dependencies.
    names = {n: f"{'torch' if sides[n] == TORCH else 'sardonyx'}_{levels[n]}" for n in levels}
    return split_module(module, module, lambda node: names[node], keep_original_order=False)  # type: ignore[arg-type,return-value]


def _sink(
    levels: dict[fx.Node, int], sides: dict[fx.Node, int], gradients: Collection[str]
) -> None:
    """Raise the levels of recomputed nodes as far as their users allow."""
    for node in reversed(list(levels)):
        if node.name in gradients or is_draw(node):
            continue
        users = [user for user in node.users if user in levels]
        if len(users) < len(node.users) or not users:  # a result of the graph
            continue
        levels[node] = min(levels[user] - (sides[user] != sides[node]) for user in users)
        for user in users:
            if user.target is getitem:
                levels[user] = levels[node]


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


@frozen
class _Call:
    """A call of a split graph, and the values that nothing reads after it."""

    node: fx.Node
    run: Callable[[list[Any]], Any]  # its arguments are in a list, which it may empty
    last_read: tuple[fx.Node, ...]


class SplitGraph:
    """A split graph as a boxed function, which holds no value after the last call that reads it.

    `run` of a submodule, if it has one, takes its arguments in a list that it empties, so that a
    session frees saved activations while it runs.
    """

    def __init__(self, whole: fx.GraphModule) -> None:
        nodes = list(whole.graph.nodes)
        self._inputs = [n for n in nodes if n.op == "placeholder"]
        self._results = nodes[-1].args[0]
        last = {source: node for node in nodes for source in node.all_input_nodes}
        self._calls = [
            _Call(
                node,
                _function_of(whole, node),
                tuple(n for n in node.all_input_nodes if last[n] is node),
            )
            for node in nodes
            if node.op not in ("placeholder", "output")
        ]
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> Any:
        """Run with the torch graph's arguments, in a list that is emptied."""
        values = dict(zip(self._inputs, args, strict=True))
        args.clear()
        for call in self._calls:
            given = [values[a] if isinstance(a, fx.Node) else a for a in call.node.args]
            for node in call.last_read:
                del values[node]
            values[call.node] = call.run(given)
        return fx.node.map_arg(self._results, values.__getitem__)


def _function_of(whole: fx.GraphModule, node: fx.Node) -> Callable[[list[Any]], Any]:
    """Return a function that runs a node of a split graph with a list of its arguments."""
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(whole)
        return lambda _: value
    function: Any = node.target
    if node.op == "call_module":
        function = whole.get_submodule(str(node.target))
        boxed = getattr(function, "run", None)
        if boxed is not None:
            return boxed  # type: ignore[no-any-return]
    return lambda given: function(*given)
