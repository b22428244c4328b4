"""Positions of the nodes of a graph in a drawing: layers from top to bottom (Sugiyama's method)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SWEEPS: Final = 6
_LONG: Final = 12  # layers: longer edges, as of masks that all layers read, have no place

Edge = tuple[int, int]  # numbers of nodes: who makes a value, who reads it


class Layout:
    """The layer of each node, and its place from left to right, in widths of a node.

    `bends` has for each edge the numbers of the points, also with layer and place, that it passes.
    """

    def __init__(self, n_nodes: int, edges: Sequence[Edge]) -> None:
        self._before: list[list[int]] = [[] for _ in range(n_nodes)]
        self._after: list[list[int]] = [[] for _ in range(n_nodes)]
        self.layers = _layers(n_nodes, edges)
        self.bends = self._add_edges(edges)
        self._rows: list[list[int]] = [[] for _ in range(max(self.layers, default=-1) + 1)]
        for node, layer in enumerate(self.layers):
            self._rows[layer].append(node)
        self.places = [0.0] * len(self.layers)
        for row in self._rows:
            for i, node in enumerate(row):
                self.places[node] = i - (len(row) - 1) / 2
        for sweep in range(_SWEEPS):
            self._sweep(downwards=sweep % 2 == 0)

    def _add_edges(self, edges: Sequence[Edge]) -> list[list[int]]:
        """Connect nodes; return for each edge the extra points in the layers that it crosses."""
        bends: list[list[int]] = []
        for a, b in edges:
            chain = [a]
            if self.layers[b] - self.layers[a] > _LONG:
                bends.append([])
                continue
            for layer in range(self.layers[a] + 1, self.layers[b]):
                chain.append(len(self.layers))
                self.layers.append(layer)
                self._before.append([])
                self._after.append([])
            bends.append(chain[1:])
            for one, other in zip(chain, [*chain[1:], b], strict=True):
                self._after[one].append(other)
                self._before[other].append(one)
        return bends

    def _sweep(self, downwards: bool) -> None:
        """Order the nodes of each layer by the places of their neighbours, and move them there."""
        near, rows = (self._before, self._rows) if downwards else (self._after, self._rows[::-1])
        for row in rows:
            wanted = {node: self._median(near[node], self.places[node]) for node in row}
            row.sort(key=lambda node: wanted[node])
            for node, place in zip(row, _spaced([wanted[n] for n in row]), strict=True):
                self.places[node] = place

    def _median(self, nodes: Sequence[int], default: float) -> float:
        if not nodes:
            return default
        places = sorted(self.places[n] for n in nodes)
        middle = len(places) // 2
        return places[middle] if len(places) % 2 else (places[middle - 1] + places[middle]) / 2


def _layers(n_nodes: int, edges: Sequence[Edge]) -> list[int]:
    """Return the longest way to each node from the top; sources are above their first reader."""
    after: list[list[int]] = [[] for _ in range(n_nodes)]
    n_before = [0] * n_nodes
    for a, b in edges:
        after[a].append(b)
        n_before[b] += 1
    sources = [n for n in range(n_nodes) if not n_before[n]]
    layers, ready = [0] * n_nodes, list(sources)
    while ready:
        node = ready.pop()
        for reader in after[node]:
            layers[reader] = max(layers[reader], layers[node] + 1)
            n_before[reader] -= 1
            if not n_before[reader]:
                ready.append(reader)
    for node in sources:
        layers[node] = min((layers[reader] - 1 for reader in after[node]), default=0)
    return layers


def _spaced(wanted: Sequence[float]) -> list[float]:
    """Return ascending places at least 1 apart, as near as possible to the wanted ones."""
    blocks: list[list[float]] = []  # sum of wanted first places, count
    for i, place in enumerate(wanted):
        blocks.append([place - i, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    return [start + i for i, start in enumerate(starts)]
