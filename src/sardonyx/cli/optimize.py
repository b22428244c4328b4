"""`sardonyx optimize`: saves a model as the portable graph passes leave it."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections import Counter
from typing import Any, Final

from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.compare.sides import ComparedModel
from sardonyx.cli.console import activity, printable, say, table
from sardonyx.ort.options import SessionOptions
from sardonyx.passes.options import LEVELS
from sardonyx.session import InferenceSession

_LARGE: Final = 1 << 30  # bytes of weights that get a file of their own
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_SHOWN: Final = 8  # ops whose number changed


def command(arguments: argparse.Namespace) -> int:
    """Optimize MODEL, write OUT, and print how the graph changed."""
    if arguments.output is None:
        raise UsageError("optimize needs -o, the model to write")
    began, before = time.monotonic(), ComparedModel(arguments.model)
    data, is_ort = arguments.external_data, arguments.output.suffix.lower() == ".ort"
    if is_ort and data is not None:
        raise UsageError("files in the .ort format hold their weights: leave out --external-data")
    if not is_ort and data is None and before.weight_bytes > _LARGE:
        data = f"{arguments.output.name}.data"
    outputs = [arguments.output]
    if data is not None:
        outputs.append(pathlib.Path(os.path.join(arguments.output.parent, data)))
    read = [*feeds.input_files(arguments), *before.bytes.files.states()]
    feeds.check_outputs(outputs, read)
    options = SessionOptions()
    options.graph_optimization_level = LEVELS[arguments.level]
    options.optimized_model_filepath = os.fspath(arguments.output)
    if data is not None:
        options.add_session_config_entry(_DATA_FILE, data)
    with activity(f"optimizing {printable(os.path.basename(arguments.model))}"):
        InferenceSession(arguments.model, options)
        after = ComparedModel(os.fspath(arguments.output))
    _print(arguments, (_ops(before), _ops(after)), outputs, time.monotonic() - began)
    return 0


def _ops(loaded: ComparedModel) -> Counter[str]:
    """Return the number of nodes by op, bodies included."""
    return Counter(node.op.name for node in loaded.model.graph.all_nodes())


def _print(
    arguments: argparse.Namespace,
    ops: tuple[Counter[str], Counter[str]],
    outputs: list[pathlib.Path],
    seconds: float,
) -> None:
    before, after = ops
    written = {str(path): path.stat().st_size for path in outputs if path.exists()}
    if arguments.json:
        facts: dict[str, Any] = {
            "model": arguments.model,
            "level": arguments.level,
            "nodes_before": before.total(),
            "nodes_after": after.total(),
            "ops_before": dict(before),
            "ops_after": dict(after),
            "files": written,
            "seconds": seconds,
        }
        print(json.dumps(facts, indent=2))
        return
    say(f"{before.total()} nodes before, {after.total()} after, in {format_seconds(seconds)}")
    changed = sorted(before | after, key=lambda op: (-abs(after[op] - before[op]), op))
    rows = [[op, str(before[op]), str(after[op])] for op in changed if before[op] != after[op]]
    table(rows[:_SHOWN], right=(1, 2), styles={0: "cyan"})
    for path, size in written.items():
        say(f"{printable(path)}: {format_bytes(size)}")
