"""Latency of networks on a device against torch, eager and compiled: the same modules, exported.

    python -m bench.gpu [--models resnet50,bert_base,gpt2,vit_base] [--batches 1,32]
                        [--dtypes float32,float16] [--zoo FOLDER] [--work FOLDER] [--tf32 0|1]
    python -m bench.gpu --profile gpt2 --batches 1 --dtypes float16
    python -m bench.gpu --device cpu --models minilm_l6 --batches 1 --dtypes float32 --rivals eager

--zoo is the folder of zoo_nets.py and export_zoo.py, which build the networks; their exports are
kept in --work. Before anything is measured, one process for each network and type exports it and
compiles the rivals, so that the caches of torch.compile are warm.

All read inputs on the device and are timed by one call with a wait at its end, interleaved:
the figures are medians, in milliseconds. "graph" is a session with enable_cuda_graph through an
IOBinding, "bound" the same without graphs, "numpy" is run() with arrays (--numpy). "ratio" is the
better torch.compile over the better of ours. "differs" is the largest difference of ours from eager
torch relative to the largest value.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import sardonyx
from bench.devices import (
    Bound,
    Network,
    add_arguments,
    build,
    difference,
    elsewhere,
    export,
    milliseconds,
    provider,
    said,
    synchronize,
)
from bench.gpu_profile import show

MODELS = "resnet50,bert_base,gpt2,vit_base"
MODES = {"compile": "default", "reduce": "reduce-overhead"}
RIVALS = ("eager", *MODES)
OURS = ("graph", "bound")
WARM_CALLS = 5  # the last of them replays whatever was recorded
Calls = dict[str, Callable[[], Any]]


@dataclass
class Row:
    """The results of one network, type and batch."""

    model: str
    dtype: str
    batch: int
    ms: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    differs: float = math.nan
    elsewhere: dict[str, int] = field(default_factory=dict)  # nodes that the device does not run

    @property
    def ratio(self) -> float:
        """The better torch.compile over ours; nan where one of them is missing."""
        rivals = [self.ms[name] for name in MODES if name in self.ms]
        ours = [self.ms[name] for name in OURS if name in self.ms]
        return min(rivals) / min(ours) if rivals and ours else math.nan


def main() -> None:
    given = arguments()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    allow_tf32(given.tf32)
    if given.prepare:
        prepare(given)
        return
    began = time.perf_counter()
    prepare_all(given)
    progress(began, "prepared")
    rows = []
    for model, dtype in given.pairs:
        if time.perf_counter() - began > given.budget:
            progress(began, f"left out, as --budget is spent: {model} {dtype}")
            continue
        network = build(given.zoo, model, getattr(torch, dtype), given.device)
        for batch in given.batches:
            if given.profile:
                show_kernels(given, network, Row(model, dtype, batch))
                continue
            rows.append(measure(given, network, Row(model, dtype, batch)))
            progress(began, line(rows[-1], given))
    if not given.profile:
        report(rows, given)


def arguments() -> argparse.Namespace:
    """Return the arguments, with lists split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--models", default=MODELS, help="names of zoo_nets.networks()")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="eager, compile, reduce")
    parser.add_argument("--tf32", type=int, choices=(0, 1), default=1, help="for all alike")
    parser.add_argument("--numpy", action="store_true", help="times run() with arrays as well")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each call in a round")
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--budget", type=float, default=420, help="seconds to begin networks in")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--profile", metavar="MODEL", help="shows kernels in place of latencies")
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.device = torch.device(given.device)
    given.models = [given.profile] if given.profile else given.models.split(",")
    given.dtypes, given.rivals = given.dtypes.split(","), [r for r in given.rivals.split(",") if r]
    given.batches = [int(b) for b in given.batches.split(",")]
    given.pairs = [(model, dtype) for model in given.models for dtype in given.dtypes]
    if unknown := sorted({*given.rivals} - {*RIVALS}):
        parser.error(f"there is no rival {', '.join(unknown)}; there are {', '.join(RIVALS)}")
    return given


def allow_tf32(allows: int) -> None:
    """Whether torch's own products of float32 may round their operands."""
    torch.backends.cuda.matmul.allow_tf32 = bool(allows)
    torch.backends.cudnn.allow_tf32 = bool(allows)


def progress(began: float, text: str) -> None:
    print(f"[{time.perf_counter() - began:5.0f} s] {text}", flush=True)


def path_of(given: argparse.Namespace, model: str, dtype: str) -> Path:
    path: Path = given.work / f"{model}.{dtype}.opset{given.opset}.onnx"
    return path


def prepare_all(given: argparse.Namespace) -> None:
    """Exports, and compiles the rivals, each network and type in a process of its own."""
    waiting = list(given.pairs)
    running: list[tuple[str, str, subprocess.Popen[bytes]]] = []
    environment = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2", **os.environ}
    while waiting or running:
        while waiting and len(running) < given.jobs:
            model, dtype = waiting.pop(0)
            command = [sys.executable, "-m", "bench.gpu", *sys.argv[1:], "--prepare"]
            command += ["--models", model, "--dtypes", dtype]
            running.append((model, dtype, subprocess.Popen(command, env=environment)))
        for entry in [e for e in running if e[2].poll() is not None]:
            running.remove(entry)
            if entry[2].returncode:
                print(f"{entry[0]} {entry[1]}: could not be prepared", flush=True)
        time.sleep(0.1)


def prepare(given: argparse.Namespace) -> None:
    """One network in one type: its export, and its rivals for each batch."""
    (model,), (dtype,) = given.models, given.dtypes
    export(
        given.zoo,
        build(given.zoo, model, getattr(torch, dtype), torch.device("cpu")),
        path_of(given, model, dtype),
        given.opset,
    )
    if given.device.type == "cpu":
        return  # the processor is busy with exports as it is
    network = build(given.zoo, model, getattr(torch, dtype), given.device)
    for batch in given.batches:
        row = Row(model, dtype, batch)
        warmed(rivals(given, network, batch), row, given.device)
        torch.compiler.reset()


def rivals(given: argparse.Namespace, network: Network, batch: int) -> Calls:
    """Torch's ways to run the network."""
    inputs = tuple(network.inputs(batch).values())
    modules: dict[str, Any] = {}
    for name in given.rivals:
        modules[name] = network.module
        if name in MODES:
            modules[name] = torch.compile(network.module, mode=MODES[name], dynamic=False)

    def call(module: Any) -> Any:
        with torch.inference_mode():
            return module(*inputs)

    return {name: partial(call, module) for name, module in modules.items()}


def ours(given: argparse.Namespace, network: Network, row: Row, want: list[torch.Tensor]) -> Calls:
    """Our ways to run the export, into tensors like those that torch makes."""
    graph = {"enable_cuda_graph": 1} if given.device.type == "cuda" else {}
    chosen = provider(given.device, use_tf32=given.tf32, **graph)
    session = sardonyx.InferenceSession(
        path_of(given, row.model, row.dtype), providers=[chosen, "CPUExecutionProvider"]
    )
    row.elsewhere = elsewhere(session)
    feeds = network.inputs(row.batch)
    names = [output.name for output in session.get_outputs()]

    def outputs() -> dict[str, torch.Tensor]:
        made = [torch.full(w.shape, math.nan, dtype=w.dtype, device=w.device) for w in want]
        return dict(zip(names, made, strict=True))

    calls: Calls = {"bound": Bound(session, feeds, outputs(), gpu_graph_id="-1")}
    if graph:
        calls["graph"] = Bound(session, feeds, outputs())
    if given.numpy:
        arrays = {name: tensor.cpu().numpy() for name, tensor in feeds.items()}
        calls["numpy"] = lambda: session.run(None, arrays)
    return calls


def warmed(calls: Calls, row: Row, device: torch.device) -> Calls:
    """The calls that work; why the others do not goes to the row."""
    working: Calls = {}
    for name, call in calls.items():
        try:
            for _ in range(WARM_CALLS):
                call()
            synchronize(device)
            working[name] = call
        except Exception as error:
            row.failed[name] = said(error)
    return working


def measure(given: argparse.Namespace, network: Network, row: Row) -> Row:
    """Fills a row."""
    calls, want = candidates(given, network, row)
    for name in (name for name in (*OURS, "numpy") if name in calls):
        differs = difference(calls[name](), want)
        row.differs = differs if math.isnan(row.differs) else max(row.differs, differs)
    row.ms = milliseconds(calls, given.device, given.rounds, given.seconds)
    del calls
    forget(given.device)
    return row


def candidates(
    given: argparse.Namespace, network: Network, row: Row
) -> tuple[Calls, list[torch.Tensor]]:
    """All calls that work, and what eager torch answers."""
    with torch.inference_mode():
        want = list(network.module(*network.inputs(row.batch).values()))
    calls = warmed(rivals(given, network, row.batch), row, given.device)
    try:
        calls |= warmed(ours(given, network, row, want), row, given.device)
    except Exception as error:
        row.failed["ours"] = said(error)
    return calls, want


def forget(device: torch.device) -> None:
    """Frees what the last configuration took."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def show_kernels(given: argparse.Namespace, network: Network, row: Row) -> None:
    """Prints the kernels of ours and of the rivals, all without graphs."""
    calls, _ = candidates(given, network, row)
    for name, reason in row.failed.items():
        print(f"{name} failed: {reason}")
    shown: Calls = {name: calls[name] for name in ("bound", "compile", "eager") if name in calls}
    show(f"{row.model} {row.dtype} batch {row.batch}", shown, given.device)
    del calls, shown
    forget(given.device)


def columns(given: argparse.Namespace) -> list[str]:
    shown = [*OURS] if given.device.type == "cuda" else ["bound"]
    return [*given.rivals, *shown, *(["numpy"] if given.numpy else [])]


def line(row: Row, given: argparse.Namespace) -> str:
    times = " ".join(
        f"{row.ms[name]:>9.3f}" if name in row.ms else f"{'-':>9}" for name in columns(given)
    )
    return (
        f"{row.model:<18} {row.dtype:<8} {row.batch:>5} {times} {row.ratio:>6.2f} "
        f"{row.differs:>8.1e}"
    )


def report(rows: list[Row], given: argparse.Namespace) -> None:
    """The table, its mean and its worst row."""
    place = given.device
    if place.type == "cuda":
        place = torch.cuda.get_device_name(place)
    print(f"\ntorch {torch.__version__} on {place}, tf32 {given.tf32}, milliseconds")
    heads = " ".join(f"{name:>9}" for name in columns(given))
    print(f"{'model':<18} {'dtype':<8} {'batch':>5} {heads} {'ratio':>6} {'differs':>8}")
    for row in rows:
        print(line(row, given))
    for row in rows:
        for name, reason in row.failed.items():
            print(f"{row.model} {row.dtype} {row.batch}: {name} failed: {reason}")
        if row.elsewhere:
            print(f"{row.model} {row.dtype} {row.batch}: nodes left to the CPU: {row.elsewhere}")
    ratios = [row.ratio for row in rows if not math.isnan(row.ratio)]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        worst = min((row for row in rows if row.ratio in ratios), key=lambda row: row.ratio)
        print(
            f"ratio: geometric mean {mean:.2f}, worst {worst.ratio:.2f} "
            f"({worst.model} {worst.dtype} {worst.batch})"
        )
    if given.json:
        given.json.write_text(json.dumps([{**vars(r), "ratio": r.ratio} for r in rows], indent=1))


if __name__ == "__main__":
    main()
