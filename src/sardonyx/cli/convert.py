"""`sardonyx convert`: writes a model with other types, opset, sizes or format."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from typing import Any

from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli.arguments import UsageError, merged
from sardonyx.cli.console import activity, count, note, printable, say
from sardonyx.cli.inputs import check_outputs
from sardonyx.convert import KEPT, Converted, ConvertOptions, convert


def command(arguments: argparse.Namespace) -> int:
    """Convert MODEL, write OUT, and print what changed."""
    if arguments.output is None:
        raise UsageError("convert needs -o, the model to write")
    if arguments.embed and arguments.external_data is not None:
        raise UsageError("--embed and --external-data exclude each other")
    _check_half(arguments)
    check_outputs([arguments.output], [arguments.model])
    began = time.monotonic()
    name = printable(os.path.basename(arguments.model))
    with activity(f"converting {name}"):
        done = convert(arguments.model, arguments.output, _options(arguments))
    _print(arguments, done, time.monotonic() - began)
    return 0


def _check_half(arguments: argparse.Namespace) -> None:
    """Raise for options of the conversion to a 16-bit type without --to."""
    given = {
        "--keep-io-types": arguments.keep_io_types,
        "--keep-ops": arguments.keep_ops,
        "--convert-all-ops": arguments.convert_all_ops,
        "--keep-nodes": arguments.keep_nodes,
        "--min": arguments.min is not None,
        "--max": arguments.max is not None,
    }
    for name, value in given.items():
        if value and arguments.to is None:
            raise UsageError(f"{name} needs --to, the type to convert to")


def _options(arguments: argparse.Namespace) -> ConvertOptions:
    kept = itertools.chain(*arguments.keep_ops)
    return ConvertOptions(
        dtype=arguments.to,
        keep_io_types=arguments.keep_io_types,
        op_block_list=frozenset((*kept, *(() if arguments.convert_all_ops else KEPT))),
        node_block_list=frozenset(itertools.chain(*arguments.keep_nodes)),
        min_positive=arguments.min,
        max_finite=arguments.max,
        opset=arguments.opset,
        dims=merged(arguments.dims),
        shapes=merged(arguments.shapes),
        external_data=False if arguments.embed else arguments.external_data,
    )


def _print(arguments: argparse.Namespace, done: Converted, seconds: float) -> None:
    half, sizes = done.half, {path: os.path.getsize(path) for path in done.files}
    if arguments.json:
        facts: dict[str, Any] = {"model": arguments.model, "opset": done.opset, "files": sizes}
        if half is not None:
            facts["converted_nodes"], facts["kept_nodes"] = half.n_converted, half.n_kept
            facts["added_casts"] = half.n_casts
            facts["lowered_weights"] = half.rounding.n_lowered
            facts["raised_weights"] = half.rounding.n_raised
        print(json.dumps({**facts, "seconds": seconds}, indent=2))
        return
    if half is not None:
        say(
            f"{count(half.n_converted, 'node')} in {arguments.to}, {half.n_kept} in float32, "
            f"{count(half.n_casts, 'Cast')} added"
        )
        rounding = half.rounding
        if rounding.n_lowered:
            note(f"{count(rounding.n_lowered, 'weight')} too large for the type became its largest")
        if rounding.n_raised:
            note(f"{count(rounding.n_raised, 'weight')} too small for the type became its smallest")
    for path, size in sizes.items():
        say(f"{printable(path)}: {format_bytes(size)}, opset {done.opset}")
    say(f"in {format_seconds(seconds)}")
