"""Positions of nodes in a drawing."""

from __future__ import annotations

import itertools
import random

from sardonyx.reports.graph_layout import Layout


def test_edges_lead_downwards_and_nodes_do_not_overlap() -> None:
    rng = random.Random(0)
    for n_nodes in (0, 1, 2, 30, 200):
        pairs = itertools.combinations(range(n_nodes), 2)
        edges = [pair for pair in pairs if rng.random() < 3 / (n_nodes + 1)]
        names = list(range(n_nodes))
        rng.shuffle(names)  # nodes are in any order
        edges = [(names[a], names[b]) for a, b in edges]
        layout = Layout(n_nodes, edges)
        assert all(layout.layers[a] < layout.layers[b] for a, b in edges)
        rows: dict[int, list[float]] = {}
        for layer, place in zip(layout.layers, layout.places, strict=True):
            rows.setdefault(layer, []).append(place)
        for row in rows.values():
            assert all(b - a > 0.999 for a, b in itertools.pairwise(sorted(row)))


def test_a_long_edge_passes_the_layers_between() -> None:
    layout = Layout(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert layout.layers[:4] == [0, 1, 2, 3]
    assert [len(bends) for bends in layout.bends] == [0, 0, 0, 2]
    assert [layout.layers[n] for n in layout.bends[3]] == [1, 2]


def test_a_chain_is_a_straight_line() -> None:
    chain = Layout(20, [(i, i + 1) for i in range(19)])
    assert set(chain.places) == {0.0}


def test_a_source_is_above_its_first_reader() -> None:
    layout = Layout(5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert layout.layers[4] == 2


def test_an_edge_over_many_layers_has_no_points() -> None:
    n_nodes = 30
    edges = [*itertools.pairwise(range(n_nodes)), (0, n_nodes - 1)]
    assert Layout(n_nodes, edges).bends[-1] == []
