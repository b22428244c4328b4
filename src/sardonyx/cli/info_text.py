"""The text output of `sardonyx info`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli.console import (
    count,
    format_shape,
    heading,
    note,
    printable,
    say,
    short_name,
    table,
)
from sardonyx.cli.folding import argument_rows

OPS: Final = 12  # ops in the summary
LARGEST: Final = 20  # weights that are listed without --all
_LONGEST_SOURCE: Final = 120  # characters of a weight's source
_WEIGHT_TITLES: Final = ("weight", "type", "size", "held as", "memory", "source")
_SOURCES: Final = {
    "embedded": "in the model file",
    "external": "in external data files",
    "pack": "in the pack",
    "folded": "computed from others when needed",
    "held": "small constants, in memory",
}
_STATES: Final = {
    "mapped_bytes": ("mapped", "read from the file's mapping, shared through the page cache"),
    "packed_bytes": ("packed", "in the layout that kernels read, in memory"),
    "copied_bytes": ("copied", "small, unaligned or computed, in memory"),
}

Facts = Mapping[str, Any]


def show(facts: Facts, arguments: argparse.Namespace) -> None:
    """Print the summary, and the lists that the arguments select."""
    _origin(facts)
    _arguments(facts, folds=not arguments.all)
    _ops(facts)
    _weights(facts, arguments)
    _placement(facts)
    _devices(facts)
    if arguments.nodes:
        _nodes(facts)
    if arguments.why:
        _refusals(facts)
    _guards(facts, arguments.guards)
    _costs(facts)
    if arguments.html is not None:
        say(f"\nthe page is in {printable(str(arguments.html))}: open it in a browser")


def _origin(facts: Facts) -> None:
    opsets = ", ".join(f"{printable(d)} {v}" for d, v in facts["opsets"].items())
    heading(printable(facts["model"]), format_bytes(facts["file_bytes"]))
    rows = [
        ("producer", printable(facts["producer"])),
        ("graph", printable(facts["graph"])),
        ("about", printable(facts["description"].split("\n")[0])[:100]),
        ("opset", f"{opsets}, IR {facts['ir_version']}"),
    ]
    table([row for row in rows if row[1]], styles={0: "dim"})
    say()


def _arguments(facts: Facts, folds: bool) -> None:
    for key, title in (
        ("inputs", "inputs"),
        ("overridable", "optional inputs"),
        ("outputs", "outputs"),
    ):
        if facts[key]:
            heading(title)
            rows = argument_rows(facts[key], folds)
            table(rows, styles={0: "cyan", 3: "dim"}, names=(0,))
            say()


def _ops(facts: Facts) -> None:
    before, after = facts["ops_before"], facts["ops_after"]
    n_before, n_after = facts["nodes_before"], facts["nodes_after"]
    heading("nodes", f"{n_before} in the model, {n_after} after optimization")
    names = sorted({*before, *after}, key=lambda n: (-after.get(n, 0), -before.get(n, 0), n))
    rows = [_change(printable(n), before.get(n, 0), after.get(n, 0)) for n in names[:OPS]]
    if rest := names[OPS:]:
        n_before, n_after = (sum(counts.get(n, 0) for n in rest) for counts in (before, after))
        rows.append(_change(f"{len(rest)} more ops", n_before, n_after))
    table(rows, right=(1,), styles={2: "dim"})
    say()


def _change(name: str, before: int, after: int) -> list[str]:
    return [name, str(after), "" if before == after else f"was {before}" if before else "new"]


def _weights(facts: Facts, arguments: argparse.Namespace) -> None:
    weights = facts["weights"]
    heading("weights", f"{len(weights)}, {format_bytes(sum(w['bytes'] for w in weights))}")
    rows = []
    for source, remark in _SOURCES.items():
        bytes_of = [w["bytes"] for w in weights if w["source"] == source]
        if bytes_of:
            rows.append([source, str(len(bytes_of)), format_bytes(sum(bytes_of)), remark])
    table(rows, right=(1, 2), styles={3: "dim"})
    say()
    memory = facts["weight_memory"]
    heading("a session holds", f"{format_bytes(memory['anonymous_bytes'])} of them in memory")
    held = [[name, format_bytes(memory[k]), r] for k, (name, r) in _STATES.items() if memory[k]]
    table(held, right=(1,), styles={2: "dim"})
    say()
    if arguments.weights or arguments.all:
        _weight_table(weights, arguments.all)


def _weight_table(weights: Sequence[Facts], lists_all: bool) -> None:
    """Print the weights, which are sorted by size, and a summary of those left out."""
    shown = weights if lists_all else weights[:LARGEST]
    heading("each weight" if lists_all else "largest weights")
    rows = [row for weight in shown for row in _weight_rows(weight)]
    table(rows, _WEIGHT_TITLES, right=(2, 4), styles={0: "cyan", 5: "dim"}, names=(0,))
    rest = weights[len(shown) :]
    if rest:
        held = format_bytes(sum(f["anonymous_bytes"] for w in rest for f in w["forms"]))
        total = format_bytes(sum(w["bytes"] for w in rest))
        note(f"{len(rest)} more, {total}, {held} in memory: --all lists them")
    say()


def _weight_rows(weight: Facts) -> Iterator[list[str]]:
    """Yield one row for each layout of a weight."""
    first = [
        printable(weight["name"]) or "-",
        f"{weight['type']}{format_shape(weight['shape']).replace(' ', '')}",
        format_bytes(weight["bytes"]),
    ]
    source = short_name(_weight_source(weight), _LONGEST_SOURCE)
    if not weight["forms"]:
        yield [*first, "not read", "", source]
    for form in weight["forms"]:
        memory = format_bytes(form["anonymous_bytes"]) if form["anonymous_bytes"] else "-"
        yield [*first, form["layout"].removeprefix("packed by ") + _shared(form), memory, source]
        first, source = ["", "", ""], ""


def _weight_source(weight: Facts) -> str:
    if weight["source"] == "embedded":
        return f"model at {weight['offset']}"
    if weight["source"] == "pack":
        return "pack" if weight["offset"] is None else f"pack at {weight['offset']}"
    return str(weight["where"])


def _shared(form: Facts) -> str:
    """Return who else reads the same memory: other nodes, weights and sessions."""
    users = []
    if len(form["nodes"]) > 1:
        users.append(f"{len(form['nodes'])} nodes")
    if form["same_as"]:
        users.append(f"same as {printable(form['same_as'][0]) or 'another'}")
    if form["other_programs"]:
        users.append(f"{form['other_programs']} other sessions")
    return f" ({', '.join(users)})" if users else ""


def _kernel(node: Facts) -> str:
    """Return the kernel of a node, or why it has none."""
    return node["kernel"] or ("in a subgraph" if node["is_in_subgraph"] else "view, no kernel")


def _placement(facts: Facts) -> None:
    heading("where nodes run", count(facts["python_steps"], "Python step"))
    kernels: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for node in facts["nodes"]:
        key = node["provider"], _kernel(node)
        kernels[key] += 1
        reasons.setdefault(key, node["why"] if node["kernel"] else "")
    rows = [[p, k, str(n), reasons[p, k]] for (p, k), n in kernels.most_common()]
    table(rows, right=(2,), styles={3: "dim"})
    precision = facts["precision"]
    if precision["asked"] != "exact":
        what = precision["why"] or f"{precision['rounded']} nodes round the inputs of their matmuls"
        note(f"precision {precision['asked']}: {what}")
    refused = sum(1 for n in facts["nodes"] if n["refusals"])
    if refused:
        note(f"{refused} were refused by a preferred provider: --why lists the reasons")
    say()


def _devices(facts: Facts) -> None:
    """Print devices and copies, if there is a device besides the CPU."""
    devices = facts["devices"]["by_device"]
    if len(devices) < 2:
        return
    copies = facts["devices"]["copies"]
    heading("devices", f"{count(len(copies), 'copy', 'copies')} between them")
    rows = []
    for device in devices:
        weights = format_bytes(device["weight_bytes"]), f"in {count(device['weights'], 'weight')}"
        rows.append([device["device"], count(device["nodes"], "node"), *weights])
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


def _nodes(facts: Facts) -> None:
    heading("each node")
    rows = [
        [
            printable(n["name"]) or "-",
            n["op"],
            f"{n['provider']}/{_kernel(n)}",
            printable(", ".join(n["outputs"]))[:60],
        ]
        for n in facts["nodes"]
    ]
    table(rows, styles={0: "cyan", 3: "dim"}, names=(0,))
    say()


def _refusals(facts: Facts) -> None:
    refusals: dict[tuple[str, str, str], list[str]] = {}
    for node in facts["nodes"]:
        for refusal in node["refusals"]:
            key = refusal["provider"], node["op"], refusal["why"]
            refusals.setdefault(key, []).append(node["name"] or node["op"])
    heading("refusals", "" if refusals else "none: the first provider runs every node")
    for (provider, op, why), names in refusals.items():
        say(f"  {provider} refuses {op}: {printable(why)}")
        note(f"  {_some([printable(n) for n in names])}")
    say()


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _guards(facts: Facts, is_listed: bool) -> None:
    guards = facts["guards"]
    hint = "" if is_listed or not guards else ": --guards lists them"
    heading("guards", f"{len(guards)} conditions checked at run time{hint}")
    if is_listed:
        rows = [[printable(g["needs"]), printable(g["node"]), printable(g["else"])] for g in guards]
        table(rows, styles={1: "cyan", 2: "dim"})
    say()


def _costs(facts: Facts) -> None:
    plan = facts["plan"]
    sizes = [f"{printable(n)} {format_shape(s)}" for n, s in plan["shapes"].items()]
    heading("a run", f"with {_some(sizes)}" if sizes else "")
    n_open = plan["values_of_open_size"]
    total = format_bytes(plan["sum_bytes"])
    remark = f"planned for {plan['values'] - n_open} values, {total} without memory reuse"
    if n_open:
        remark += f"; the sizes of {n_open} more are known only at run time"
    remark += "; details: sardonyx plan"
    rows = [("memory", format_bytes(plan["peak_bytes"]), remark)]
    stages = facts["start"]["stages"]
    by_stage = ", ".join(f"{k} {format_seconds(v)}" for k, v in stages.items())
    rows.append(("start", format_seconds(facts["start"]["seconds"]), by_stage))
    if facts["memory_bytes"] is not None:
        rows.append(("", format_bytes(facts["memory_bytes"]), "anonymous memory added by `info`"))
    table(rows, right=(1,), styles={2: "dim"})
