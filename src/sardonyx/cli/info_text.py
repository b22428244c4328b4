"""Prints what `info` found, for people."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sardonyx.cli.info_devices import show as devices
from sardonyx.cli.term import clean, duration, heading, paint, say, shape, size, table

OPS: Final = 12  # ops in the summary


def show(facts: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """The summary, and whatever lists were asked for."""
    _origin(facts)
    _arguments(facts)
    _ops(facts)
    _weights(facts, arguments)
    _placement(facts)
    devices(facts)
    if arguments.nodes:
        _nodes(facts)
    if arguments.why:
        _refusals(facts)
    _checks(facts, arguments.guards)
    _costs(facts)


def _origin(facts: Mapping[str, Any]) -> None:
    opsets = ", ".join(f"{clean(d)} {v}" for d, v in facts["opsets"].items())
    heading(clean(facts["model"]), size(facts["file_bytes"]))
    rows = [
        ("made by", clean(facts["producer"])),
        ("graph", clean(facts["graph"])),
        ("about", clean(facts["description"].split("\n")[0])[:100]),
        ("opset", f"{opsets}, IR {facts['ir_version']}"),
    ]
    table([row for row in rows if row[1]], styles={0: "dim"})
    say()


def _arguments(facts: Mapping[str, Any]) -> None:
    for key, title in (("inputs", "inputs"), ("overridable", "may be fed"), ("outputs", "outputs")):
        if facts[key]:
            heading(title)
            rows = [[clean(a["name"]), a["type"], shape(a["shape"])] for a in facts[key]]
            table(rows, styles={0: "cyan"})
            say()


def _ops(facts: Mapping[str, Any]) -> None:
    before, after = facts["ops_before"], facts["ops_after"]
    n_before, n_after = facts["nodes_before"], facts["nodes_after"]
    heading("nodes", f"{n_before} in the model, {n_after} after optimization")
    names = sorted({*before, *after}, key=lambda n: (-after.get(n, 0), -before.get(n, 0), n))
    rows = [_change(clean(n), before.get(n, 0), after.get(n, 0)) for n in names[:OPS]]
    if len(names) > OPS:
        rows.append(
            _change(
                f"{len(names) - OPS} more kinds",
                sum(before.get(n, 0) for n in names[OPS:]),
                sum(after.get(n, 0) for n in names[OPS:]),
            )
        )
    table(rows, right=(1,), styles={2: "dim"})
    say()


def _change(name: str, before: int, after: int) -> list[str]:
    return [name, str(after), "" if before == after else f"was {before}" if before else "new"]


def _weights(facts: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    weights = facts["weights"]
    heading("weights", f"{len(weights)}, {size(sum(w['bytes'] for w in weights))}")
    said = {
        "embedded": "in the model file",
        "external": "in files beside it",
        "pack": "in the pack",
        "folded": "made of others when needed",
        "held": "small ones, in memory",
    }
    rows = []
    for source, note in said.items():
        bytes_of = [w["bytes"] for w in weights if w["source"] == source]
        if bytes_of:
            rows.append([source, str(len(bytes_of)), size(sum(bytes_of)), note])
    table(rows, right=(1, 2), styles={3: "dim"})
    say()
    _weight_memory(facts["weight_memory"])
    if arguments.weights or arguments.all:
        from sardonyx.cli.info_weights import show

        show(weights, arguments.all)


def _weight_memory(memory: Mapping[str, int]) -> None:
    said = {
        "mapped_bytes": ("mapped", "read where they lie, and shared through the page cache"),
        "packed_bytes": ("packed", "in the form that kernels read, in memory"),
        "copied_bytes": ("copied", "small, unaligned or computed, in memory"),
    }
    heading("a session holds", f"{size(memory['anonymous_bytes'])} of them in memory")
    rows = [[n, size(memory[k]), note] for k, (n, note) in said.items() if memory[k]]
    table(rows, right=(1,), styles={2: "dim"})
    say()


def _placement(facts: Mapping[str, Any]) -> None:
    steps = facts["python_steps"]
    heading("where nodes run", f"{steps} Python step{'' if steps == 1 else 's'}")
    kernels: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for node in facts["nodes"]:
        key = node["provider"], node["kernel"] or "in a body"
        kernels[key] += 1
        reasons.setdefault(key, node["why"])
    rows = [[p, k, str(n), reasons[p, k]] for (p, k), n in kernels.most_common()]
    table(rows, right=(2,), styles={3: "dim"})
    if facts["precision"]["asked"] != "exact":
        said = facts["precision"]
        what = said["why"] or f"{said['rounded']} nodes round both sides of their products"
        say(paint(f"  precision {said['asked']}: {what}", "dim"))
    refused = sum(1 for n in facts["nodes"] if n["refusals"])
    if refused:
        say(paint(f"  {refused} were refused by a provider before: --why tells the reasons", "dim"))
    say()


def _nodes(facts: Mapping[str, Any]) -> None:
    heading("each node")
    table(
        [
            [
                clean(n["name"]) or "-",
                n["op"],
                f"{n['provider']}/{n['kernel'] or 'in a body'}",
                clean(", ".join(n["outputs"]))[:60],
            ]
            for n in facts["nodes"]
        ],
        styles={0: "cyan", 3: "dim"},
    )
    say()


def _refusals(facts: Mapping[str, Any]) -> None:
    said: dict[tuple[str, str, str], list[str]] = {}
    for node in facts["nodes"]:
        for refusal in node["refusals"]:
            key = refusal["provider"], node["op"], refusal["why"]
            said.setdefault(key, []).append(node["name"] or node["op"])
    heading("refusals", "" if said else "none: the first provider takes every node")
    for (provider, op, why), names in said.items():
        say(f"  {provider} refuses {op}: {clean(why)}")
        say(paint(f"    {_some([clean(n) for n in names])}", "dim"))
    say()


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _checks(facts: Mapping[str, Any], listed: bool) -> None:
    guards = facts["guards"]
    hint = "" if listed or not guards else ": --guards lists them"
    heading("guards", f"{len(guards)} checked before or while it runs{hint}")
    if listed and guards:
        rows = [[clean(g["needs"]), clean(g["node"]), clean(g["else"])] for g in guards]
        table(rows, styles={1: "cyan", 2: "dim"})
    say()


def _costs(facts: Mapping[str, Any]) -> None:
    plan = facts["plan"]
    sizes = [f"{clean(n)} {shape(s)}" for n, s in plan["shapes"].items()]
    heading("a run", f"with {_some(sizes)}" if sizes else "")
    open_ = plan["values_of_open_size"]
    note = f"planned for {plan['values'] - open_} values, {size(plan['sum_bytes'])} without sharing"
    if open_:
        note += f"; {open_} more have sizes known only when it runs"
    note += "; sardonyx plan tells exactly"
    rows = [("memory", size(plan["peak_bytes"]), note)]
    stages = facts["start"]["stages"]
    by_stage = ", ".join(f"{k} {duration(v)}" for k, v in stages.items())
    rows.append(("start", duration(facts["start"]["seconds"]), by_stage))
    if facts["memory_bytes"] is not None:
        rows.append(("", size(facts["memory_bytes"]), "anonymous memory added by looking at it"))
    table(rows, right=(1,), styles={2: "dim"})
