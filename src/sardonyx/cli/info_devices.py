"""What of a model lies on devices: nodes, weights, and the copies at their borders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sardonyx.cli.term import clean, heading, paint, say, size, table
from sardonyx.compile import Compiled
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.place import HOST, Provider, has_device


def devices(compiled: Compiled) -> dict[str, Any]:
    """Nodes and weights by device, and what is copied from one to another."""
    placement, program = compiled.placement, compiled.program
    nodes: dict[str, list[Node]] = {HOST: []}
    copies = []
    for node, provider in placement.where.items():
        if node.op.key == (INTERNAL, "Copy"):
            copies.append(_copy(node))
        else:
            nodes.setdefault(_device(provider), []).append(node)
    by_device = []
    for device, there in nodes.items():
        weights = _weights(there)
        by_device.append(
            {
                "device": device,
                "nodes": len(there),
                "weights": len(weights),
                "weight_bytes": sum(c.size_bytes for c in weights),
            }
        )
    return {
        "by_device": by_device,
        "copies": copies,
        "copied_in": [_end(i) for i in program.inputs if i.device != HOST],
        "copied_out": [_end(o) for o in program.outputs if o.device != HOST],
    }


def _device(provider: Provider) -> str:
    return provider.device if has_device(provider) else HOST


def _weights(nodes: Iterable[Node]) -> set[Const]:
    read = (v for n in nodes for v in n.inputs if v is not None)
    return {v.const for v in read if v.const is not None}


def _copy(node: Node) -> dict[str, Any]:
    value = node.inputs[0]
    assert isinstance(value, Value)
    return {"value": value.name, "type": str(value.fact), "to": node.attrs["to"].decode()}


def _end(given: Any) -> dict[str, str]:
    return {"name": given.name, "device": given.device}


def show(facts: Mapping[str, Any]) -> None:
    """The same for people, where there is a device beside the CPU."""
    places = facts["devices"]["by_device"]
    if len(places) < 2:
        return
    copies = facts["devices"]["copies"]
    heading("devices", f"{len(copies)} cop{'y' if len(copies) == 1 else 'ies'} between them")
    rows = [
        [
            p["device"],
            f"{p['nodes']} node{'' if p['nodes'] == 1 else 's'}",
            size(p["weight_bytes"]),
            f"in {p['weights']} weight{'' if p['weights'] == 1 else 's'}",
        ]
        for p in places
    ]
    table(rows, right=(1, 2), styles={0: "cyan", 3: "dim"})
    ways = [["copied", f"{c['value'] or 'a value'} to {c['to']}", c["type"]] for c in copies[:8]]
    if len(copies) > 8:
        ways.append(["", f"{len(copies) - 8} more", ""])
    for key, what, way in (("copied_in", "fed", "to"), ("copied_out", "handed out", "from")):
        ways += [[what, f"{e['name']} {way} {e['device']}", ""] for e in facts["devices"][key]]
    table([[clean(cell) for cell in row] for row in ways], styles={0: "dim", 2: "dim"})
    if facts["devices"]["copied_in"] or facts["devices"]["copied_out"]:
        say(
            paint("  what is fed or handed out as an array is copied; tensors there are not", "dim")
        )
    say()
