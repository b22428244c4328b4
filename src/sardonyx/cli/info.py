"""`sardonyx info`: a model's inputs, ops, weights, kernels and planned memory."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sardonyx._native as native
from sardonyx.base.atomic_file import writing
from sardonyx.base.records import as_dict
from sardonyx.cli.arguments import entries_of, merged
from sardonyx.cli.bench_worker import anonymous_bytes
from sardonyx.cli.console import activity, printable
from sardonyx.cli.inputs import check_outputs, input_shapes
from sardonyx.cli.measure import growth, start
from sardonyx.compile import Compiled, load_model
from sardonyx.graph.const import Const, Recipe, SourceConst
from sardonyx.graph.dim import symbols
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Guard
from sardonyx.graph.op import INTERNAL
from sardonyx.load.model import Declared, Model
from sardonyx.memory import live_ranges, peak_live_bytes
from sardonyx.ort.node_arg import node_arg
from sardonyx.pack.constants import PackConst, PackedOnlyConst
from sardonyx.place import HOST, has_device
from sardonyx.program.native import NativeSegment
from sardonyx.program.program import Program
from sardonyx.program.segment_builder import SegmentBuilder
from sardonyx.providers.cpu.index import MULTIPLIES_BF16
from sardonyx.reports.weights import COPIED, MAPPED, PACKED, WeightLayoutReport, weight_layouts_of
from sardonyx.session.program_variants import sizes_of


def command(arguments: argparse.Namespace) -> int:
    """Print the facts about MODEL."""
    check_outputs([arguments.html], [arguments.model])
    with activity(f"loading {printable(os.path.basename(arguments.model))}"):
        facts, graph = inspect(arguments)
        if arguments.html is not None:
            from sardonyx.cli.info_page import page

            with writing(os.fspath(arguments.html)) as file:
                file.write(page(arguments, facts).encode())
    if arguments.json:
        print(json.dumps(facts | ({"graph": _text(graph)} if arguments.dump else {}), indent=2))
        return 0
    if arguments.dump:
        for line in _text(graph).splitlines():
            print(printable(line))
        return 0
    from sardonyx.cli.info_text import show

    show(facts, arguments)
    return 0


def _text(graph: Graph) -> str:
    from sardonyx.load.graph_text import show

    return show(graph, facts=True)


def inspect(arguments: argparse.Namespace) -> tuple[dict[str, Any], Graph]:
    """Return all facts for JSON, and the optimized graph."""
    path = arguments.model
    before = anonymous_bytes()
    entries = entries_of(arguments)
    started = start(path, reads_weights=False, entries=entries, providers=arguments.provider)
    memory = growth(before)
    compiled = started.session._compiled
    # A standalone pack holds only the optimized graph.
    loaded = compiled.model.graph if compiled.is_standalone else load_model(path).graph
    as_loaded, names = _op_counts(loaded), _names(loaded)
    model, program = compiled.model, compiled.program
    weights = _weights(compiled, os.path.basename(path), names)
    outputs = [node_arg(d, o.fact) for d, o in zip(model.outputs, program.outputs, strict=True)]
    facts = {
        "model": os.fspath(path),
        "file_bytes": os.path.getsize(path),
        **_origin(model),
        "inputs": [_arg(d) for d in model.inputs],
        "overridable": [_arg(d) for d in model.overridable],
        "outputs": [as_dict(o) for o in outputs],
        "nodes_before": sum(as_loaded.values()),
        "nodes_after": sum(1 for _ in model.graph.all_nodes()),
        "ops_before": dict(as_loaded.most_common()),
        "ops_after": dict(_op_counts(model.graph).most_common()),
        "weights": weights,
        "weight_memory": _memory(weights),
        "nodes": (nodes := _nodes(compiled)),
        "precision": _precision(arguments.precision, nodes),
        "devices": _devices(compiled),
        "python_steps": program.python_steps,
        "guards": [_guard(g) for g in _guards(program)],
        "plan": _plan(arguments, model, program),
        "start": {"seconds": started.seconds, "stages": started.stages},
        "memory_bytes": memory,
    }
    return facts, model.graph


def _origin(model: Model) -> dict[str, Any]:
    return {
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "graph": model.graph_name,
        "description": model.description or model.graph_description,
        "domain": model.domain,
        "version": model.version,
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "metadata": model.metadata,
    }


def _arg(declared: Declared) -> dict[str, Any]:
    return as_dict(node_arg(declared)) | ({"shape": None} if declared.dims is None else {})


def _op_counts(graph: Graph) -> Counter[str]:
    return Counter(op_name(n) for n in graph.all_nodes())


def op_name(node: Node) -> str:
    """Return the name of a node's op, with its domain unless that is ai.onnx."""
    return f"{node.op.domain}.{node.op.name}" if node.op.domain else node.op.name


def _weights(compiled: Compiled, file: str, names: Mapping[object, str]) -> list[dict[str, Any]]:
    """Return the facts about each constant that a node reads, the largest first."""
    graph, forms = compiled.model.graph, weight_layouts_of(compiled.program)
    # Reversed, so that a constant with several names gets its first one.
    constants = {id(const): (name, const) for name, const in reversed(list(_constants(graph)))}
    for const in forms:  # adds those that only lowering created
        constants.setdefault(id(const), ("", const))
    weights = [
        {
            "name": name or _name(const, names),
            "type": const.dtype.ort_name,
            "shape": list(const.shape),
            "bytes": const.dtype.packed_bytes(const.count),
            "source": _source(const, file),
            "where": _where(const),
            "file": const.source.name if isinstance(const, SourceConst) else None,
            "offset": const.offset if isinstance(const, SourceConst) else None,
            "forms": [_form(f) for f in forms.get(const, ())],
        }
        for name, const in constants.values()
    ]
    _note_shared(weights, [forms.get(const, []) for _, const in constants.values()])
    return sorted(weights, key=lambda w: (-w["bytes"], w["name"]))


def _names(graph: Graph) -> dict[object, str]:
    """Return the names of the model's own weights by their location in a file."""
    return {
        c.content_id: name for name, c in _constants(graph) if isinstance(c, SourceConst) and name
    }


def _name(const: Const, names: Mapping[object, str]) -> str:
    """Return the name of the largest weight that a constant is computed from."""
    worklist, seen, weights = [const], set[int](), list[SourceConst]()
    while worklist:
        const = worklist.pop()
        if isinstance(const, Recipe) and id(const) not in seen:
            seen.add(id(const))
            worklist.extend(c for c in const.inputs if c is not None)
        elif isinstance(const, SourceConst) and const.content_id in names:
            weights.append(const)
    return names[max(weights, key=lambda c: c.length).content_id] if weights else ""


def _form(form: WeightLayoutReport) -> dict[str, Any]:
    return {
        "layout": form.layout,
        "state": form.state,
        "anonymous_bytes": form.own_bytes,
        "nodes": [n.name or op_name(n) for n in form.nodes],
        "other_programs": form.other_programs,
    }


def _note_shared(weights: list[dict[str, Any]], forms: list[list[WeightLayoutReport]]) -> None:
    """Add to each layout the other weights in the same memory, which counts only for the first."""
    users: dict[object, list[int]] = {}
    for i, of_weight in enumerate(forms):
        for form in of_weight:
            users.setdefault(form.memory_key, []).append(i)
    for i, (weight, of_weight) in enumerate(zip(weights, forms, strict=True)):
        for facts, form in zip(weight["forms"], of_weight, strict=True):
            same = users[form.memory_key]
            facts["same_as"] = [weights[k]["name"] for k in same if k != i]
            if same[0] != i:
                facts["anonymous_bytes"] = 0


def _memory(weights: list[dict[str, Any]]) -> dict[str, int]:
    """Return the bytes of all weights by state, and their anonymous memory."""
    totals = dict.fromkeys((MAPPED, PACKED, COPIED), 0)
    own = 0
    for weight in weights:
        for form in weight["forms"]:
            is_mapped = form["state"] == MAPPED
            totals[form["state"]] += weight["bytes"] if is_mapped else form["anonymous_bytes"]
            own += form["anonymous_bytes"]
    return {**{f"{k}_bytes": v for k, v in totals.items()}, "anonymous_bytes": own}


def _constants(graph: Graph) -> Iterator[tuple[str, Const]]:
    for subgraph in graph.family():
        yield from ((v.name, c) for v, c in subgraph.defaults.items())
        yield from _named_constants(subgraph.outputs)
        for node in subgraph.nodes:
            yield from _named_constants(v for v in node.inputs if v is not None)
            for key, attr in node.attrs.items():
                if isinstance(attr, Const):
                    yield f"{node.name or node.op.name}.{key}", attr


def _named_constants(values: Iterable[Value]) -> Iterator[tuple[str, Const]]:
    return ((v.name, v.const) for v in values if v.const is not None)


def _source(const: Const, file: str) -> str:
    match const:
        case PackConst() | PackedOnlyConst():
            return "pack"
        case SourceConst():
            return "embedded" if const.source.name == file else "external"
        case Recipe():
            return "folded"
    return "held"


def _where(const: Const, depth: int = 2) -> str:
    """Return where the bytes come from, to a depth: inputs of recipes may be shared."""
    if not isinstance(const, Recipe):
        return const.describe()
    if not depth:
        return f"{const.op.name}(...)"
    inner = ("-" if c is None else _where(c, depth - 1) for c in const.inputs)
    return f"{const.op.name}({', '.join(inner)})"


def _nodes(compiled: Compiled) -> list[dict[str, Any]]:
    """Return the facts about each node in execution order, those of subgraphs last."""
    kernels = {node: kernel for node, _, kernel in compiled.program.nodes()}
    placement = compiled.placement
    graph = compiled.model.graph
    others = [n for n in graph.all_nodes() if n not in kernels]
    top_level = set(graph.nodes)
    return [
        {
            "name": node.name,
            "op": op_name(node),
            "outputs": [str(v.fact) for v in node.outputs],
            "provider": placement.where[node].name,
            "kernel": kernels.get(node),  # None: a view, or a node of a subgraph
            "is_in_subgraph": node not in top_level,
            "why": placement.where[node].claims(node).why,
            "refusals": [
                {"provider": p, "why": why} for p, why in placement.refusals.get(node, ())
            ],
        }
        for node in (*kernels, *others)
    ]


def _devices(compiled: Compiled) -> dict[str, Any]:
    """Return nodes and weights by device, and the values that are copied between devices."""
    placement, program = compiled.placement, compiled.program
    nodes: dict[str, list[Node]] = {HOST: []}
    copies = []
    for node, provider in placement.where.items():
        if node.op.key == (INTERNAL, "Copy"):
            (value,), to = node.inputs, node.attrs["to"].decode()
            assert value is not None
            copies.append({"value": value.name, "type": str(value.fact), "to": to})
        else:
            device = provider.device if has_device(provider) else HOST
            nodes.setdefault(device, []).append(node)
    by_device = []
    for device, on_device in nodes.items():
        values = (v for n in on_device for v in n.inputs if v is not None)
        weights = {v.const for v in values if v.const is not None}
        size = {"weights": len(weights), "weight_bytes": sum(c.size_bytes for c in weights)}
        by_device.append({"device": device, "nodes": len(on_device), **size})
    return {
        "by_device": by_device,
        "copies": copies,
        "copied_in": [_endpoint(i) for i in program.inputs if i.device != HOST],
        "copied_out": [_endpoint(o) for o in program.outputs if o.device != HOST],
    }


def _endpoint(value: Any) -> dict[str, str]:
    return {"name": value.name, "device": value.device}


def _precision(requested: str, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the requested precision, and how many nodes round to it."""
    rounded = sum(1 for n in nodes if (n["kernel"] or "").endswith("_bf16"))
    why = ""
    if requested == "bf16" and not MULTIPLIES_BF16:
        why = f"it changes nothing on this CPU, which has no bf16 multiplication ({native.isa})"
    return {"asked": requested, "rounded": rounded, "why": why}


def _guards(program: Program) -> Iterator[Guard]:
    yield from program.guards
    for segment in program.segments:
        if isinstance(segment, NativeSegment):
            for part in segment.all_items():
                if isinstance(part, SegmentBuilder):
                    yield from part.guards
        else:
            yield from segment.guards


def _guard(guard: Guard) -> dict[str, Any]:
    return {"needs": guard.needs, "else": guard.what, "node": str(guard.node or "")}


def _plan(arguments: argparse.Namespace, model: Model, program: Program) -> dict[str, Any]:
    """Return the planned bytes of all values of a run, for the sizes of --dims and --shapes."""
    shapes = input_shapes(model.inputs, merged(arguments.dims), merged(arguments.shapes))
    dims = sizes_of(program.inputs, shapes)
    plan = program.plan
    lives = live_ranges(plan.spans, dims)
    known = [s for s in plan.spans if s.size is not None and symbols(s.size) <= dims.keys()]
    return {
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "peak_bytes": plan.layout(dims).size,
        "least_bytes": peak_live_bytes(lives),
        "sum_bytes": sum(life.size for life in lives),
        "values": len(plan.spans),
        "values_of_open_size": len(plan.spans) - len(known),
    }
