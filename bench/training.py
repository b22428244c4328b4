"""Memory and time of training steps by order and recompute: a transformer's gradient graph.

    python -m bench.training [--layers 12] [--width 256] [--heads 4] [--words 2000]
                             [--batch 4] [--length 128] [--rounds 5]

Each row is a fresh process. "plan" is the arena that the program plans for values between nodes,
"least" the most that is alive in any step of that order; "anon" is by how much the first run raises
the process's anonymous memory, the gradients that it hands out included.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

import sardonyx
from sardonyx.program.native import NativeSegment
from sardonyx.train import gradient
from tests.train.models import transformer

MB = 1 << 20
ORDERS = ("reverse_depth_first", "priority_based", "memory_efficient", "least_peak")
SIZES = {"layers": 12, "width": 256, "heads": 4, "words": 2000, "batch": 4, "length": 128}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", nargs=2, metavar=("ORDER", "RECOMPUTE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(arguments, *arguments.worker)))
        return
    given = ", ".join(f"{name} {getattr(arguments, name)}" for name in SIZES)
    print(f"{given}; {sardonyx.get_device()}\n")
    heads = " ".join(f"{name:>9}" for name in ("plan", "least", "anon", "run"))
    print(f"{'order':<20} {'recompute':<10} {heads}  steps  in Python")
    for recompute in ("none", "layers"):
        for order in ORDERS:
            row = in_new_process(order, recompute)
            sizes = " ".join(f"{row[k] / MB:6.1f} MB" for k in ("plan", "least", "anon"))
            print(
                f"{order:<20} {recompute:<10} {sizes} {row['seconds'] * 1e3:6.0f} ms  "
                f"{row['steps']:5}  {', '.join(row['fallbacks']) or 0}",
                flush=True,
            )


def in_new_process(order: str, recompute: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.training", *sys.argv[1:], "--worker", order, recompute]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace, order: str, recompute: str) -> dict[str, Any]:
    """One order's figures."""
    proto, _ = transformer(**{name: getattr(arguments, name) for name in SIZES})
    model = gradient(proto, "loss", recompute=None if recompute == "none" else recompute)
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.execution_order", order)
    session = sardonyx.InferenceSession(model, options)
    rng = np.random.default_rng(0)
    shape = (arguments.batch, arguments.length)
    feeds = {n: rng.integers(0, arguments.words, shape) for n in ("tokens", "labels")}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that the run does not live on what was freed before it
    before = anonymous()
    outputs = session.run(None, feeds)
    anon = anonymous() - before
    del outputs
    return {
        **planned(session),
        "anon": anon,
        "seconds": min(timed(session, feeds) for _ in range(arguments.rounds)),
    }


def planned(session: Any) -> dict[str, Any]:
    """Return the planned memory of the program; all sizes are fixed, so it needs no feed."""
    program = session._compiled.program
    parts: list[dict[str, Any]] = []
    for segment in program.segments:
        if isinstance(segment, NativeSegment):
            assert segment._runnable is not None
            parts += segment._runnable.memory([])
    others = sorted({node.op.name for node, provider, _ in program.nodes() if provider != "cpu"})
    return {
        "plan": sum(p["arena_bytes"] for p in parts),
        "least": max((p["lower_bound"] for p in parts), default=0),
        "steps": sum(len(p["steps"]) for p in parts),
        "fallbacks": others,
    }


def timed(session: Any, feeds: dict[str, Any]) -> float:
    started = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - started


def anonymous() -> int:
    """Anonymous memory of the process, in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
