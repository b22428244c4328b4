"""The nodes and weights of a model by device, and the copies between devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sardonyx.base.units import format_bytes
from sardonyx.cli.console import count, heading, note, printable, say, table
from sardonyx.compile import Compiled
from sardonyx.graph.const import Const
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.place import HOST, Provider, has_device


def devices(compiled: Compiled) -> dict[str, Any]:
    """Return nodes and weights by device, and the values that are copied between devices."""
    placement, program = compiled.placement, compiled.program
    nodes: dict[str, list[Node]] = {HOST: []}
    copies = []
    for node, provider in placement.where.items():
        if node.op.key == (INTERNAL, "Copy"):
            copies.append(_copy(node))
        else:
            nodes.setdefault(_device(provider), []).append(node)
    by_device = []
    for device, on_device in nodes.items():
        weights = _weights(on_device)
        by_device.append(
            {
                "device": device,
                "nodes": len(on_device),
                "weights": len(weights),
                "weight_bytes": sum(c.size_bytes for c in weights),
            }
        )
    return {
        "by_device": by_device,
        "copies": copies,
        "copied_in": [_endpoint(i) for i in program.inputs if i.device != HOST],
        "copied_out": [_endpoint(o) for o in program.outputs if o.device != HOST],
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


def _endpoint(value: Any) -> dict[str, str]:
    return {"name": value.name, "device": value.device}


def show(facts: Mapping[str, Any]) -> None:
    """Print devices and copies, if there is a device besides the CPU."""
    devices = facts["devices"]["by_device"]
    if len(devices) < 2:
        return
    copies = facts["devices"]["copies"]
    heading("devices", f"{count(len(copies), 'copy', 'copies')} between them")
    rows = [
        [
            d["device"],
            count(d["nodes"], "node"),
            format_bytes(d["weight_bytes"]),
            f"in {count(d['weights'], 'weight')}",
        ]
        for d in devices
    ]
    table(rows, right=(1, 2), styles={0: "cyan", 3: "dim"})
    copied = [["copied", f"{c['value'] or 'a value'} to {c['to']}", c["type"]] for c in copies[:8]]
    if len(copies) > 8:
        copied.append(["", f"{len(copies) - 8} more", ""])
    for key, what, way in (("copied_in", "input", "to"), ("copied_out", "output", "from")):
        copied += [[what, f"{e['name']} {way} {e['device']}", ""] for e in facts["devices"][key]]
    table([list(map(printable, row)) for row in copied], styles={0: "dim", 2: "dim"})
    if facts["devices"]["copied_in"] or facts["devices"]["copied_out"]:
        note("numpy arrays are copied; tensors that are on the device already are not")
    say()
