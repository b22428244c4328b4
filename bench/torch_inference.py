"""Inference of torch modules: `torch.compile(backend="sardonyx")` against their exported models.

    python -m bench.torch_inference [NAMES...] [--zoo FOLDER] [--work FOLDER]
    python -m bench.torch_inference resnet50 bert_base --freeze versions --rounds 15

For each network of the zoo, the ONNX model in an InferenceSession ("session") and the compiled
module ("module") run the same inputs, interleaved, in their own process. "CPU" is the median of
the process's CPU time over the rounds, "wall" that of the time, both in ms; "ratio" is the module's
CPU time over the session's; "differs" is the largest difference between their outputs, relative to
the largest value. "first" is the module's first call, in seconds. zoo_nets.py and export_zoo.py in
--zoo define the networks; exports are kept in --work. NAMES may be shell patterns.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sardonyx
from bench.devices import build, export, script

OPSET = 20
WARM_UP = 4  # rounds before those that count: parameters that stay are watched after three calls


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["*"], metavar="NAMES")
    parser.add_argument("--zoo", type=Path, default=Path("models"), help="folder of zoo_nets.py")
    parser.add_argument(
        "--work", type=Path, default=Path("build/zoo"), help="the folder that keeps exports"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--freeze", choices=["yes", "no", "versions"], default="yes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # a child process
    return parser.parse_args()


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall time of a call, in ms."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


@torch.no_grad()
def measure(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """The figures of one network."""
    torch.set_num_threads(given.threads)
    network = build(given.zoo, name, torch.float32, torch.device("cpu"))
    path = given.work / f"{name}.onnx"
    export(given.zoo, network, path, OPSET)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = given.threads
    session = sardonyx.InferenceSession(str(path), options)
    inputs = network.inputs(1)
    feed = {key: tensor.numpy() for key, tensor in inputs.items()}
    freeze = {"yes": True, "no": False}.get(given.freeze, given.freeze)
    module = torch.compile(network.module, backend="sardonyx", options={"freeze": freeze})
    calls: dict[str, Callable[[], Any]] = {
        "session": lambda: session.run(None, feed),
        "module": lambda: module(*inputs.values()),
    }
    expected = [torch.from_numpy(array) for array in calls["session"]()]
    begin = time.perf_counter()
    found = calls["module"]()
    row: dict[str, Any] = {"name": name, "first": time.perf_counter() - begin}
    pairs = list(zip(found, expected, strict=True))
    row["differs"] = max(float((f - e).abs().max() / e.abs().max()) for f, e in pairs)
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in calls}
    for _ in range(WARM_UP + given.rounds):
        for key, call in calls.items():
            times[key].append(timed(call))
    for key, values in times.items():
        cpu, wall = map(statistics.median, zip(*values[WARM_UP:], strict=True))
        row |= {f"{key}_cpu": cpu, f"{key}_wall": wall}
    row["ratio"] = row["module_cpu"] / row["session_cpu"]
    return row


def in_process(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """The figures of a network, measured in a new process."""
    command = [sys.executable, "-m", "bench.torch_inference", name, "--one"]
    command += ["--zoo", str(given.zoo), "--work", str(given.work), "--rounds", str(given.rounds)]
    command += ["--threads", str(given.threads), "--freeze", given.freeze]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"name": name, "failed": done.returncode}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def show(row: dict[str, Any]) -> None:
    """Print a line of the table."""
    if "failed" in row:
        print(f"{row['name']:22} failed with status {row['failed']}", flush=True)
        return
    figures = "".join(
        f" {row[f'{key}_{kind}']:9.1f}" for key in ("session", "module") for kind in ("cpu", "wall")
    )
    print(
        f"{row['name']:22}{figures} {row['ratio']:6.2f} {row['differs']:8.0e} {row['first']:6.1f}",
        flush=True,
    )


def main() -> None:
    """Print the table; the last line is the geometric mean of the ratios."""
    given = arguments()
    if given.one:
        print(json.dumps(measure(given, given.names[0])))
        return
    known = script(given.zoo, "zoo_nets").networks()
    names = [n for n in known if any(fnmatch.fnmatch(n, pattern) for pattern in given.names)]
    if not names:
        raise SystemExit(f"the zoo has none of {' '.join(given.names)}; it has {', '.join(known)}")
    print(
        f"{'network':20} session CPU      wall module CPU     wall  ratio  differs  first",
        flush=True,
    )
    rows = []
    for name in names:
        rows.append(in_process(given, name))
        show(rows[-1])
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        print(f"{'geometric mean':62} {math.exp(statistics.fmean(map(math.log, ratios))):6.2f}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
