"""Every network of the zoo on a device against our CPU provider: how much outputs differ.

    python -m bench.gpu_zoo [NAMES...] [--zoo FOLDER] [--work FOLDER] [--tf32 0,1]
    python -m bench.gpu_zoo minilm_l6 espcn_x3 --device cpu --tf32 0 --work FOLDER_OF_EXPORTS

export_zoo.py in --zoo exports the networks and their int8 and float16 variants into --work, those
that are not there. NAMES may be shell patterns. Both sides run the inputs that were saved beside
the network. "differs" is the largest difference of an output, relative to the largest value of that
output by the CPU provider; it must not be above "within":

  float32 1e-4 with tf32 0, 2e-2 with tf32 1, float16 3e-2. Networks of int8 round to steps of their
  scales, and a last bit decides where a sum between two steps falls, which later layers enlarge:
  the CPU provider differs by up to 7e-2 from itself with its optimizations off, so 1e-1 here.

"CPU" are the nodes that the device leaves to the CPU. The exit status is 1 when a network is above
its tolerance or fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sardonyx
from bench.devices import add_arguments, difference, elsewhere, provider, said, script

FLOAT16, INT8 = 3e-2, 1e-1
FLOAT32 = {0: 1e-4, 1: 2e-2}  # by tf32
FAILED = float("inf")


@dataclass
class Row:
    """One network on the device, in one setting."""

    network: str
    tf32: int
    differs: float = FAILED
    nodes: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)
    failed: str = ""

    @property
    def within(self) -> float:
        """The tolerance."""
        if self.network.endswith("int8"):
            return INT8
        return FLOAT16 if self.network.endswith("fp16") else FLOAT32[self.tf32]

    @property
    def is_good(self) -> bool:
        return self.differs <= self.within


def main() -> None:
    given = arguments()
    names = chosen(given)
    write_networks(given, names)
    print(f"\n{'network':<26} {'tf32':>4} {'differs':>8} {'within':>8} {'':5} {'nodes':>5}  CPU")
    rows: list[Row] = []
    for name in names:
        for row in compare(given, name):
            show(row)
            rows.append(row)
    bad = [row for row in rows if not row.is_good]
    print(f"{len(rows) - len(bad)} of {len(rows)} within tolerance", flush=True)
    if given.json:
        listed = [{**vars(r), "within": r.within, "is_good": r.is_good} for r in rows]
        given.json.write_text(json.dumps(listed, indent=1))
    sys.exit(1 if bad else 0)


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAMES")
    add_arguments(parser)
    parser.add_argument("--tf32", default="0,1", help="settings of use_tf32, each of them compared")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    given = parser.parse_intermixed_args()
    given.device = torch.device(given.device)
    given.tf32 = [int(t) for t in given.tf32.split(",")]
    return given


def chosen(given: argparse.Namespace) -> list[str]:
    """Networks and variants of networks that have one of the names."""
    known = [*script(given.zoo, "zoo_nets").networks()]
    known += script(given.zoo, "export_zoo").VARIANTS
    patterns = given.names or ["*"]
    found = [name for name in known if any(fnmatch.fnmatch(name, p) for p in patterns)]
    if not found:
        raise SystemExit(f"no network has such a name; there are {', '.join(known)}")
    return found


def write_networks(given: argparse.Namespace, names: list[str]) -> None:
    """Exports what is missing; a network and what is made of it come from one process."""
    variants = script(given.zoo, "export_zoo").VARIANTS
    groups: dict[str, list[str]] = {}
    for name in names:
        if not (given.work / f"{name}.npz").exists():
            groups.setdefault(variants[name][0] if name in variants else name, []).append(name)
    environment = {"OMP_NUM_THREADS": "2", **os.environ}
    waiting, running = list(groups.values()), list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < given.jobs:
            command = [sys.executable, str(given.zoo / "export_zoo.py"), str(given.work)]
            running.append(subprocess.Popen([*command, *waiting.pop(0)], env=environment))
        time.sleep(0.1)


def compare(given: argparse.Namespace, name: str) -> list[Row]:
    """The rows of one network."""
    path = given.work / f"{name}.onnx"
    rows = [Row(name, tf32) for tf32 in given.tf32]
    try:
        feeds = inputs(path)
        want = sardonyx.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception as error:
        for row in rows:
            row.failed = f"on the CPU: {said(error)}"
        return rows
    for row in rows:
        try:
            run(given, path, row, (feeds, want))
        except Exception as error:
            row.failed = said(error)
    gc.collect()
    return rows


def inputs(path: Path) -> dict[str, Any]:
    """Return the inputs that were saved with the network."""
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        return dict(arrays)


def run(
    given: argparse.Namespace, path: Path, row: Row, example: tuple[dict[str, Any], list[Any]]
) -> None:
    """Fills a row."""
    device = provider(given.device, use_tf32=row.tf32)
    session = sardonyx.InferenceSession(path, providers=[device, "CPUExecutionProvider"])
    row.nodes = sum(1 for _ in session._compiled.program.nodes())
    row.elsewhere = elsewhere(session)
    row.differs = difference(session.run(None, example[0]), example[1])


def show(row: Row) -> None:
    verdict = "" if row.is_good else "ABOVE"
    left = ", ".join(f"{count} {op}" for op, count in row.elsewhere.items()) or "-"
    print(
        f"{row.network:<26} {row.tf32:>4} {row.differs:>8.1e} {row.within:>8.0e} {verdict:5} "
        f"{row.nodes:>5}  {row.failed or left}",
        flush=True,
    )


if __name__ == "__main__":
    main()
