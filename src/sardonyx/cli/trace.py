"""`sardonyx trace`: saves the values that the nodes of a model compute in a run."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.cli import inputs as feeds
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.bench_worker import append_array, flat
from sardonyx.cli.compare.search import group_limit, groups, value_bytes
from sardonyx.cli.compare.sides import ComparedModel, Key, SardonyxSide, SideOptions
from sardonyx.cli.console import activity, format_shape, heading, printable, say, table

_CHUNK: Final = 1 << 20  # elements of which statistics are computed at a time
_LONGEST: Final = 200  # bytes of a name; file systems allow 255, with suffixes
_UNSAFE: Final = re.compile(r"[^\w.\-]+")  # characters of a name that a file's name does not get

Write = Callable[[str, Any], None]  # a name and an array


@frozen
class _Traced:
    """A value that is computed, under a unique name."""

    name: str
    op: str
    key: Key
    n_bytes: int | None


def command(arguments: argparse.Namespace) -> int:
    """Run MODEL, write its values to OUT, and print their statistics."""
    path = pathlib.Path(arguments.model)
    is_archive = arguments.output is not None and arguments.output.suffix == ".npz"
    loaded = ComparedModel(arguments.model)
    if arguments.output is not None and not is_archive and arguments.output.is_file():
        raise UsageError(f"{arguments.output} is a file: name a folder, or a file ending in .npz")
    if is_archive:
        read = [*feeds.input_files(arguments), *loaded.bytes.files.states()]
        feeds.check_outputs([arguments.output], read)
    feed, source = feeds.chosen(arguments, path, loaded.model.inputs)
    side = SardonyxSide(loaded, _options(arguments))
    values = [v for v in _values(loaded, arguments.nodes, feed) if side.can_compute(v.key)]
    if not values:
        raise UsageError("--nodes matches no node and no value")
    rows: list[dict[str, Any]] = []
    title = f"tracing {printable(path.name)}"
    with activity(title) as line, _target(arguments.output, is_archive) as write:
        for group in groups(values, group_limit(loaded)):
            arrays = side.compute([v.key for v in group], feed)
            for value in group:
                for name, array in flat(value.name, arrays.pop(0)):
                    write(name, array)
                    rows.append({"name": name, "op": value.op, **statistics(array)})
            line.update(len(rows), len(values), f"{len(rows)} of {len(values)} values")
    _print(arguments, rows, source)
    return 0


def _options(arguments: argparse.Namespace) -> SideOptions:
    return SideOptions(
        arguments.model,
        level=arguments.level,
        precision=arguments.precision,
        providers=tuple(arguments.provider),
        threads=arguments.threads,
    )


def _values(loaded: ComparedModel, patterns: Sequence[str] | None, feed: Any) -> list[_Traced]:
    """Return the values of the nodes that match a pattern, all without one."""
    sizes = value_bytes(loaded, feed)
    found: dict[str, _Traced] = {}
    for position, node in enumerate(loaded.nodes):
        for value in node.outputs:
            name = value.name or f"{node.name or node.op.name}.{value.index}"
            names = (name, node.name)
            if patterns and not any(fnmatch.fnmatchcase(n, p) for n in names for p in patterns):
                continue
            unique = name if name not in found else f"{name}#{position}"
            key = position, value.index
            found[unique] = _Traced(unique, node.op.name, key, sizes.get(key))
    return list(found.values())


@contextlib.contextmanager
def _target(output: pathlib.Path | None, is_archive: bool) -> Iterator[Write]:
    """Yield a function that writes an array: to a .npz file, to a folder, or nowhere."""
    if output is None:
        yield lambda name, array: None
    elif is_archive:
        with writing(os.fspath(output)) as file, zipfile.ZipFile(file, "w") as archive:
            yield partial(append_array, archive)
    else:
        output.mkdir(exist_ok=True)
        taken: set[str] = set()

        def save(name: str, array: Any) -> None:
            safe = _UNSAFE.sub("_", name).encode()[-_LONGEST:].decode(errors="ignore")
            base = stem = safe.strip(".") or "value"
            for i in itertools.count(1):
                if base not in taken:
                    break
                base = f"{stem}_{i}"
            taken.add(base)
            with writing(os.fspath(output / f"{base}.npy")) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)

        yield save


def statistics(array: Any) -> dict[str, Any]:
    """Return type, shape, NaNs, infinities, and range and mean of the finite elements."""
    facts: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.dtype.kind not in "fiub":
        return facts
    least, most, total, n_finite, n_nan = np.inf, -np.inf, 0.0, 0, 0
    elements = array.reshape(-1)
    for i in range(0, elements.size, _CHUNK):
        chunk = elements[i : i + _CHUNK].astype(np.float64)
        n_nan += int(np.isnan(chunk).sum())
        finite = chunk[np.isfinite(chunk)]
        n_finite += finite.size
        total += float(finite.sum())
        least, most = finite.min(initial=least), finite.max(initial=most)
    facts.update(nan=n_nan, inf=int(elements.size) - n_finite - n_nan)
    if n_finite:
        facts.update(min=float(least), max=float(most), mean=total / n_finite)
    return facts


def _print(arguments: argparse.Namespace, rows: Sequence[dict[str, Any]], source: str) -> None:
    output = None if arguments.output is None else str(arguments.output)
    if arguments.json:
        facts = {"model": arguments.model, "inputs_from": source, "output": output}
        print(json.dumps({**facts, "values": rows}, indent=2))
        return
    heading("values", f"inputs: {printable(source)}")
    header = ["name", "op", "type", "shape", "min", "max", "mean", "NaN", "inf"]
    table([header, *map(_row, rows)], right=(4, 5, 6, 7, 8), styles={0: "cyan"})
    if output is not None:
        say(f"written to {printable(output)}")


def _row(facts: dict[str, Any]) -> list[str]:
    figures = [f"{facts[k]:.4g}" if k in facts else "" for k in ("min", "max", "mean")]
    counts = [str(facts[k]) if facts.get(k) else "" for k in ("nan", "inf")]
    shape = format_shape(facts["shape"])
    return [printable(facts["name"]), facts["op"], facts["type"], shape, *figures, *counts]
