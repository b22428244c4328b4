"""`sardonyx pack`: a model's weights as kernels read them, in a file that later loads map."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any, Final

from sardonyx.base.records import replace
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.term import Progress, clean, duration, say, size
from sardonyx.compile import Options, given_bytes, settings_of
from sardonyx.compile.pack_model import Request, Written, pack, standalone
from sardonyx.errors import Fail
from sardonyx.ort.enums import GraphOptimizationLevel as Level
from sardonyx.pack.errors import Broken
from sardonyx.pack.lookup import SUFFIX, PackOptions
from sardonyx.pack.read import read
from sardonyx.passes.options import PRECISIONS, PassOptions
from sardonyx.providers import resolve

LEVELS: Final = {
    "none": Level.ORT_DISABLE_ALL,
    "basic": Level.ORT_ENABLE_BASIC,
    "extended": Level.ORT_ENABLE_EXTENDED,
    "all": Level.ORT_ENABLE_ALL,
}


def command(arguments: argparse.Namespace) -> int:
    """Packs MODEL, or checks the pack that it has."""
    level = LEVELS[arguments.optimization_level]
    precision = PRECISIONS[arguments.precision]
    passes = replace(PassOptions(level=level), **precision)
    options = Options(resolve(None, None)[1], passes=passes)
    if arguments.verify:
        return _verify(arguments, options)
    path = _target(arguments)
    started = time.monotonic()
    shown = clean(os.path.basename(arguments.model))
    with Progress(f"packing {shown}") as progress:
        make = standalone if arguments.standalone else pack
        written = make(arguments.model, options, Request(path, report=progress.show))
    _tell(arguments, written, time.monotonic() - started)
    return 0


def _target(arguments: argparse.Namespace) -> str:
    """Where to write: beside the model, or where the user says."""
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


def _tell(arguments: argparse.Namespace, written: Written, seconds: float) -> None:
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
        say(json.dumps(facts, indent=2))
        return
    say(f"{clean(written.path)}: {size(written.size_bytes)} in {duration(seconds)}")
    for row in doubled if arguments.standalone else ():
        dims = "x".join(map(str, row["shape"]))
        say(f"  {row['type']} {dims} is in it in two forms: {size(row['extra_bytes'])} more")


def _verify(arguments: argparse.Namespace, options: Options) -> int:
    """Reads every byte of a pack that is there."""
    path = os.fspath(arguments.output or arguments.model + SUFFIX)
    if not os.path.exists(path):
        raise Fail(f"there is no pack {path}", hint=f"sardonyx pack {arguments.model} makes it")
    try:
        given = given_bytes(arguments.model, options)
        found = read(path, given, settings_of(options), PackOptions(verify=True))
    except Broken as error:
        raise Fail(f"the pack {path} cannot be used: {error}") from None
    if arguments.json:
        facts = {"is_sound": True, "is_standalone": found.is_standalone}
        say(json.dumps({"pack": path, "bytes": os.path.getsize(path), **facts}))
    else:
        what = " of a standalone model" if found.is_standalone else ""
        say(f"{clean(path)}: {size(os.path.getsize(path))}{what}, every byte as it was written")
    return 0
