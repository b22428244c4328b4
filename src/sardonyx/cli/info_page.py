"""The page of `sardonyx info --html`: the graph, coloured by op, provider, time or memory."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from typing import Any, Final

from sardonyx.base.printable import format_shape
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli.arguments import entries_of, merged
from sardonyx.cli.info import op_name
from sardonyx.cli.inputs import generate, input_shapes
from sardonyx.cli.measure import start
from sardonyx.errors import SardonyxError
from sardonyx.graph.dim import evaluate, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.reports.graph_layout import Layout
from sardonyx.reports.html_page import FOLDER, document, figures
from sardonyx.session import InferenceSession
from sardonyx.session.program_variants import sizes_of

_RUNS: Final = 5
_LONGEST: Final = 120  # characters of a name


def page(arguments: argparse.Namespace, facts: Mapping[str, Any]) -> str:
    """Return the whole page; the model is run for the times, if its inputs can be generated."""
    started = start(
        arguments.model, 0, os.devnull, entries=entries_of(arguments),
        providers=arguments.provider,
    )  # fmt: skip
    session = started.session
    compiled = session._compiled
    shapes = input_shapes(compiled.model.inputs, merged(arguments.dims), merged(arguments.shapes))
    seconds, why = _seconds(session, shapes)
    sizes = sizes_of(compiled.program.inputs, shapes)
    data = _drawing(compiled.model.graph, {n["name"]: n for n in facts["nodes"]}, seconds, sizes)
    fed = ", ".join(f"{name} {format_shape(shape)}" for name, shape in list(shapes.items())[:4])
    cards = figures(
        [
            (str(len(data["nodes"])), f"nodes, of {facts['nodes_before']} in the model"),
            (str(facts["python_steps"]), "steps in Python"),
            (format_seconds(sum(seconds.values())) if seconds else "-", why or "in steps of a run"),
            (format_bytes(facts["plan"]["peak_bytes"]), "memory of a run"),
        ]
    )
    body = [cards, (FOLDER / "graph.html").read_text("utf-8")]
    title = f"Graph of {os.path.basename(arguments.model)}"
    return document(title, f"inputs: {fed}", body, scripts=("graph.js",), data=data)


def _seconds(session: InferenceSession, shapes: Any) -> tuple[dict[Node, float], str]:
    """Return the median time of the step that each node begins, or why there is none."""
    profile = session._profile
    assert profile is not None
    times: dict[Node, list[float]] = {}
    try:
        feed = generate(session._compiled.model.inputs, shapes)
        session.run(None, feed)
        for _ in range(_RUNS):
            profile.events.clear()
            session.run(None, feed)
            for event in profile.events:
                if event.step is not None:
                    times.setdefault(event.step.nodes[0], []).append(event.end - event.begin)
    except SardonyxError as error:
        return {}, f"no times: {error.what}"
    return {node: statistics.median(seconds) for node, seconds in times.items()}, ""


def _drawing(
    graph: Graph,
    facts: Mapping[str, Mapping[str, Any]],
    seconds: Mapping[Node, float],
    sizes: Mapping[str, int],
) -> dict[str, Any]:
    """Return the nodes with their positions, and the edges with their bends."""
    numbers = {node: i for i, node in enumerate(graph.nodes)}
    edges = sorted(
        {
            (numbers[value.node], i)
            for node, i in numbers.items()
            for value in node.inputs
            if value is not None and value.node in numbers
        }
    )
    layout = Layout(len(numbers), edges)
    nodes = []
    for node, i in numbers.items():
        known = facts.get(node.name, {})
        nodes.append(
            {
                "name": node.name[:_LONGEST],
                "op": op_name(node),
                "x": round(layout.places[i], 3),
                "y": layout.layers[i],
                "provider": known.get("provider", ""),
                "kernel": known.get("kernel") or "",
                "inputs": [_described(v) for v in node.inputs if v is not None][:12],
                "outputs": [_described(v) for v in node.outputs][:12],
                "bytes": sum(_bytes(v, sizes) for v in node.outputs),
                "seconds": seconds.get(node),
            }
        )
    lines = [
        [a, b, [[round(layout.places[n], 3), layout.layers[n]] for n in bends]]
        for (a, b), bends in zip(edges, layout.bends, strict=True)
    ]
    return {"nodes": nodes, "edges": lines}


def _described(value: Value) -> str:
    return f"{value.name[:_LONGEST]} {value.fact}" + (" const" if value.const is not None else "")


def _bytes(value: Value, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a value as far as its sizes are known."""
    fact = value.fact
    if not isinstance(fact, Fact) or fact.shape is None:
        return 0
    count = 1
    for dim in fact.dims:
        if isinstance(dim, int):
            count *= dim
        elif symbols(dim) <= sizes.keys():
            count *= evaluate(dim, sizes)
        else:
            return 0
    return fact.dtype.packed_bytes(count)
