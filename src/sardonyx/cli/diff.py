"""`sardonyx diff`: finds the first node where two models, or two runs of a model, part."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, Final

import sardonyx._native as native
from sardonyx.base.records import frozen
from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import UsageError, provider_name
from sardonyx.cli.compare.difference import Difference
from sardonyx.cli.compare.isa_process import IsaSide
from sardonyx.cli.compare.matching import Matcher, Pair
from sardonyx.cli.compare.search import Comparison, Finding, Result, compared_values, group_limit
from sardonyx.cli.compare.sides import (
    ComparedModel,
    OnnxRuntimeSide,
    SardonyxSide,
    Side,
    SideOptions,
)
from sardonyx.cli.console import activity, count, heading, note, printable, say, table
from sardonyx.graph.graph import Node
from sardonyx.passes.options import LEVELS, PRECISIONS

EQUAL, DIFFERENT = 0, 1
_ALIASES: Final = {"disable": "none", "disabled": "none"}
_CHOICES: Final = {"levels": tuple(LEVELS), "precisions": tuple(PRECISIONS), "isas": native.isas}


@frozen
class DiffResult:
    """The result of a comparison, with the nodes that have no counterpart."""

    result: Result
    pairs: list[Pair]
    only_b: list[Node]
    inputs_from: str


def command(arguments: argparse.Namespace) -> int:
    """Compare A and B, and print where they part."""
    left, right = _sides(arguments)
    with activity(f"comparing {printable(pathlib.Path(left.model).name)}") as line:
        outcome = _compare(arguments, left, right, line.update)
    if arguments.json:
        print(json.dumps(_facts(arguments, outcome), indent=2))
    else:
        _print(arguments, outcome)
    return DIFFERENT if outcome.result.differs(arguments.tolerance) else EQUAL


def _sides(arguments: argparse.Namespace) -> tuple[SideOptions, SideOptions]:
    """Return the options of both sides; they must differ in something."""
    settings: list[dict[str, Any]] = [
        {"model": arguments.model, "threads": arguments.threads},
        {"model": arguments.other or arguments.model, "threads": arguments.threads},
    ]
    for option, name in (("levels", "level"), ("precisions", "precision"), ("isas", "isa")):
        for setting, chosen in zip(settings, getattr(arguments, option) or (), strict=False):
            setting[name] = _checked(option, _ALIASES.get(chosen, chosen))
    for setting, chosen in zip(settings, arguments.providers or (), strict=False):
        setting["providers"] = ((provider_name(chosen), {}),)
    if arguments.with_ is not None:
        if arguments.isas:
            raise UsageError("--isas chooses kernels of sardonyx: leave out --with")
        settings[1]["runtime"] = arguments.with_
    left, right = (SideOptions(**setting) for setting in settings)
    if left == right:
        raise UsageError("nothing to compare: name B, --with, --levels, --precisions or --isas")
    return left, right


def _checked(option: str, name: str) -> str:
    if name not in _CHOICES[option]:
        raise UsageError(f"--{option} names {name}; known are {', '.join(_CHOICES[option])}")
    return name


def _compare(
    arguments: argparse.Namespace, left: SideOptions, right: SideOptions, update: Any
) -> DiffResult:
    a = ComparedModel(left.model)
    b = a if right.model == left.model else ComparedModel(right.model)
    feed, source = feeds.chosen(arguments, pathlib.Path(left.model), a.model.inputs)
    if b is a:
        pairs, only_b, renamed = [Pair(node, node) for node in a.nodes], [], {}
    else:
        matcher = Matcher(a.model.graph, b.model.graph)
        inputs = a.model.graph.inputs
        renamed = {v.name: matcher.counterparts.get(v, v).name for v in inputs}
        pairs, only_b = matcher.pairs(), matcher.unmatched()
        for loaded in (a, b):
            loaded.bytes.release_pages()
    values = compared_values(pairs, a, b, feed)
    names = [output.name for output in a.model.outputs]
    with contextlib.ExitStack() as stack:
        sides = (_side(left, a, stack), _side(right, b, stack))
        comparison = Comparison(*sides, feed, arguments.tolerance, renamed)

        def report(done: int, total: int) -> None:
            update(done, total, f"{done} of {total} values")

        result = comparison.run(values, names, group_limit(a), report)
    return DiffResult(result, pairs, only_b, source)


def _side(options: SideOptions, loaded: ComparedModel, stack: contextlib.ExitStack) -> Side:
    if options.runtime != "sardonyx":
        return OnnxRuntimeSide(loaded, options)
    if options.isa and options.isa != native.isa:
        return stack.enter_context(IsaSide(options))
    return SardonyxSide(loaded, options)


def _facts(arguments: argparse.Namespace, outcome: DiffResult) -> dict[str, Any]:
    result, tolerance = outcome.result, arguments.tolerance
    first = result.first(tolerance)
    return {
        "model": arguments.model,
        "other": arguments.other,
        "inputs_from": outcome.inputs_from,
        "tolerance": tolerance,
        "differs": result.differs(tolerance),
        "compared": result.n_compared,
        "first": None if first is None else _finding(first),
        "only_if_fused": result.is_fused,
        "worst": [_finding(f) for f in _worst(result, arguments.top)],
        "outputs": [{"name": name, **_numbers(d)} for name, d in result.outputs],
        "error": result.output_error or None,
        "changes": [
            {
                **_node(pair.a),
                "kind": change.kind,
                "change": change.text,
                "values": _effect(result, pair),
            }
            for pair in outcome.pairs
            for change in pair.changes
        ],
        "only_a": [_node(pair.a) for pair in outcome.pairs if pair.b is None],
        "only_b": [_node(node) for node in outcome.only_b],
    }


def _node(node: Node) -> dict[str, Any]:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return {"node": name, "op": node.op.name, "outputs": [v.name for v in node.outputs]}


def _finding(finding: Finding) -> dict[str, Any]:
    compared = finding.compared
    value = compared.pair.a.outputs[compared.a[1]]
    return {
        **_node(compared.pair.a),
        "value": value.name,
        **_numbers(finding.difference),
        "changes": [change.text for change in compared.pair.changes],
        "error": finding.error or None,
    }


def _numbers(found: Difference) -> dict[str, Any]:
    """Return a difference for JSON, which has no infinities."""

    def plain(x: float) -> float | str:
        return x if math.isfinite(x) else str(x)

    return {
        "max_abs": plain(found.max_abs),
        "max_rel": plain(found.max_rel),
        "ulps": found.ulps,
        "fraction": plain(found.fraction),
        "nonfinite": found.n_nonfinite,
        "index": None if found.index is None else list(found.index),
        "note": found.note,
    }


def _worst(result: Result, top: int) -> Sequence[Finding]:
    return sorted(result.findings, key=lambda f: f.difference.fraction, reverse=True)[:top]


def _effect(result: Result, pair: Pair) -> str:
    """Return what the changes of a node do to its values."""
    own = [f for f in result.findings if f.compared.pair is pair]
    if any(f.error for f in own):
        return "cannot run"
    return "differ" if own else "are the same"


def _print(arguments: argparse.Namespace, outcome: DiffResult) -> None:
    result = outcome.result
    first = result.first(arguments.tolerance)
    _print_verdict(arguments, result, first)
    changed = [p for p in outcome.pairs if p.changes]
    if changed:
        say()
        heading("nodes that differ in structure")
        rows = [
            [_shown(pair.a), change.text, f"its values {_effect(result, pair)}"]
            for pair in changed[: arguments.top]
            for change in pair.changes
        ]
        table([[printable(cell) for cell in row] for row in rows], styles={0: "cyan", 2: "dim"})
    _print_unmatched("only in A", [p.a for p in outcome.pairs if p.b is None], arguments.top)
    _print_unmatched("only in B", outcome.only_b, arguments.top)
    if result.findings:
        say()
        heading("largest differences", "as a fraction of the value's largest element")
        columns = [_row(f) for f in _worst(result, arguments.top)]
        header = ["node", "fraction", "max abs", "max rel", "ulps", "first at", ""]
        table([header, *columns], right=(1, 2, 3, 4), styles={0: "cyan", 6: "dim"})


def _print_verdict(arguments: argparse.Namespace, result: Result, first: Finding | None) -> None:
    n_values = count(result.n_compared, "value")
    if result.output_error and first is None:
        say(f"B cannot run: {printable(result.output_error)}", "bold red")
    elif first is None and not result.differs(arguments.tolerance):
        say(f"equal within {arguments.tolerance:g}: {n_values} compared", "bold green")
    elif first is None:
        say("the outputs differ, and no value that could be compared does", "bold red")
    else:
        say(f"{_shown(first.compared.pair.a)} is the first node that differs", "bold red")
        for text in (c.text for c in first.compared.pair.changes):
            say(f"  {printable(text)}")
        say(f"  {printable(first.error) if first.error else _sentence(first.difference)}")
        if result.is_fused:
            note("It differs only if it is fused with others: no other value was visible.")
    for name, found in result.outputs:
        if not found.is_none:
            say(f"  output {printable(name)}: {_sentence(found)}", "dim")


def _print_unmatched(what: str, nodes: Sequence[Node], top: int) -> None:
    if nodes:
        say()
        heading(what, count(len(nodes), "node"))
        table([[_shown(node)] for node in nodes[:top]], styles={0: "cyan"})


def _shown(node: Node) -> str:
    facts = _node(node)
    return printable(f"{facts['node']} ({facts['op']})")


def _sentence(found: Difference) -> str:
    parts = [found.note] if found.note else []
    if math.isfinite(found.max_abs):
        ulps = "" if found.ulps is None else f", {found.ulps} ulps"
        parts.append(f"differs by up to {found.max_abs:.3g} ({found.max_rel:.3g} relative{ulps})")
    if found.n_nonfinite:
        parts.append(f"{count(found.n_nonfinite, 'NaN or infinity', 'NaNs or infinities')} differ")
    if found.index is not None:
        parts.append(f"first at {list(found.index)}")
    return printable("; ".join(parts))


def _row(finding: Finding) -> list[str]:
    found = finding.difference
    ulps = "" if found.ulps is None else str(found.ulps)
    index = "" if found.index is None else str(list(found.index))
    remark = finding.error or found.note
    if found.n_nonfinite:
        remark = f"{remark} {found.n_nonfinite} not finite".strip()
    numbers = [f"{x:.3g}" for x in (found.fraction, found.max_abs, found.max_rel)]
    return [_shown(finding.compared.pair.a), *numbers, ulps, index, printable(remark)[:80]]
