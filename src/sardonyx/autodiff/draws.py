"""Random numbers of a training step, drawn by the number of the run, so that it can be repeated.

Nodes in the bodies of loops, which run several times in a run, and Dropout with a ratio that is not
constant keep the generator of sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from sardonyx.autodiff.backward import Backward
from sardonyx.autodiff.forward_rewrites import replace_node
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import GRADIENT

_DRAWS: Final = frozenset((
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip


def draw_by_run(b: Backward, settings: Value) -> None:
    """Let Dropout, and random ops without a seed, draw by the number of the run.

    A node without a seed gets a number that no node has as its seed: their draws are independent.
    """
    graphs = list(_run_once(b.graph))
    nodes = [n for g in graphs for n in g.sorted_nodes() if not n.op.domain]
    taken = {n.attrs["seed"] for n in nodes if n.op.name == "Dropout"}
    seeds = (i for i in count() if i not in taken)
    for node in nodes:
        inner = b if node.graph is b.graph else Backward(node.graph)
        if node.op.name == "Dropout":
            _drop(inner, node, settings, seeds)
        elif node.op.name in _DRAWS and node.attrs["seed"] is None:
            attrs = {**node.attrs, "seed": next(seeds), "domain": GRADIENT}
            drawn = inner.node(node.op.name, settings, *node.inputs, **attrs)
            replace_node(inner, node, drawn.outputs)


def _run_once(graph: Graph) -> Iterator[Graph]:
    """The graph, and the branches of Ifs in it: bodies that run at most once in a run."""
    yield graph
    for node in graph.sorted_nodes():
        if node.op.key == ("", "If"):
            for _, branch in node.subgraphs:
                yield from _run_once(branch)


def _drop(b: Backward, node: Node, settings: Value, seeds: Iterator[int]) -> None:
    """Replace a Dropout of constant ratio by a mask and a product, if it trains or may train."""
    x, ratio, training = input_of(node, 0), optional_input(node, 1), optional_input(node, 2)
    share = 0.5 if ratio is None else _number(ratio.const)
    if training is None or _number(training.const) == 0 or share is None or not 0 <= share < 1:
        return
    if share == 0 and not any(v.is_used for v in node.outputs[1:]):
        replace_node(b, node, (x,))
        return
    own = node.attrs["seed"]
    seed = next(seeds) if own is None else own
    mask = b.DropoutMask(settings, x, domain=GRADIENT, ratio=share, seed=seed)
    y = b.where(mask, b.Mul(x, 1 / (1 - share)))
    if training.const is None:
        trains = b.Reshape(training, b.ints())  # its one element
        y, mask = b.Where(trains, y, x), b.Or(mask, b.Not(trains))
    replace_node(b, node, (y, mask))


def _number(const: Const | None) -> float | None:
    """Return the constant of one element as a number."""
    return None if const is None or const.count != 1 else float(const.read().reshape(-1)[0])
