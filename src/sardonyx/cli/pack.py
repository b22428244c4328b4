"""`sardonyx pack`: writes and verifies packs, files with the prepacked weights of a model."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from sardonyx.base.records import replace
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.console import activity, printable, say
from sardonyx.compile import Options, pack_settings, read_source
from sardonyx.compile.pack_model import Request, Written, pack, standalone
from sardonyx.errors import Fail
from sardonyx.pack.errors import InvalidPack
from sardonyx.pack.lookup import SUFFIX, PackOptions
from sardonyx.pack.read import read_pack
from sardonyx.passes.options import LEVELS, PRECISIONS, PassOptions
from sardonyx.providers import resolve


def command(arguments: argparse.Namespace) -> int:
    """Pack MODEL, or verify its pack."""
    level = LEVELS[arguments.optimization_level]
    precision = PRECISIONS[arguments.precision]
    passes = replace(PassOptions(level=level), **precision)
    options = Options(resolve(None, None)[1], passes=passes)
    if arguments.verify:
        return _verify(arguments, options)
    path = _target(arguments)
    started = time.monotonic()
    name = printable(os.path.basename(arguments.model))
    with activity(f"packing {name}") as line:
        write = standalone if arguments.standalone else pack
        written = write(arguments.model, options, Request(path, report=line.update))
    _print(arguments, written, time.monotonic() - started)
    return 0


def _target(arguments: argparse.Namespace) -> str:
    """Return the path to write to: --output, else beside the model."""
    model, path = os.fspath(arguments.model), arguments.output
    if arguments.standalone:
        if path is None:
            raise UsageError("--standalone needs -o, the name of the new model")
        path = os.fspath(path)
        if os.path.exists(path) and os.path.exists(model) and os.path.samefile(path, model):
            raise UsageError(f"{path} is the model itself: choose another name")
    path = model + SUFFIX if path is None else str(path)
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UsageError(f"there is no folder {os.path.dirname(path)} to write to")
    return path


def _print(arguments: argparse.Namespace, written: Written, seconds: float) -> None:
    doubled: list[dict[str, Any]] = [
        {"type": c.dtype.ort_name, "shape": list(c.shape), "extra_bytes": extra}
        for c, extra in written.doubled
    ]
    if arguments.json:
        facts: dict[str, Any] = {
            "pack": written.path,
            "bytes": written.size_bytes,
            "seconds": seconds,
            "doubled": doubled,
        }
        print(json.dumps(facts, indent=2))
        return
    size = format_bytes(written.size_bytes)
    say(f"{printable(written.path)}: {size} in {format_seconds(seconds)}")
    for weight in doubled if arguments.standalone else ():
        dims, extra = "x".join(map(str, weight["shape"])), format_bytes(weight["extra_bytes"])
        say(f"  {weight['type']} {dims} is stored in two layouts: {extra} more")


def _verify(arguments: argparse.Namespace, options: Options) -> int:
    """Verify every byte of an existing pack."""
    path = os.fspath(arguments.output or arguments.model + SUFFIX)
    if not os.path.exists(path):
        raise Fail(f"there is no pack {path}", hint=f"sardonyx pack {arguments.model} creates it")
    try:
        model = read_source(arguments.model, options)
        opened = read_pack(path, model, pack_settings(options), PackOptions(verify=True))
    except InvalidPack as error:
        raise Fail(f"the pack {path} cannot be used: {error}") from None
    if arguments.json:
        facts = {"is_sound": True, "is_standalone": opened.is_standalone}
        print(json.dumps({"pack": path, "bytes": os.path.getsize(path), **facts}))
    else:
        what = " of a standalone model" if opened.is_standalone else ""
        say(f"{printable(path)}: {format_bytes(os.path.getsize(path))}{what}, every byte verified")
    return 0
