"""Training steps by one and by several processes: torch's own scaling, and that of `wrap`.

    pip install transformers
    python bench/train_distributed.py                       # DDP and FSDP2, 1 and 2 processes
    python bench/train_distributed.py --processes 1 2 4 8 --kinds ddp --models gpt2
    python bench/train_distributed.py --links 1gbit 10gbit  # two nodes, as root

Every process has one thread and a whole batch of its own (weak scaling), and gradients are reduced
by gloo over the loopback interface. A step is forward, backward and `AdamW.step`. Eager and wrapped
steps alternate within a group of processes; the figures are medians over the steps of rank 0.
"scaling" is the time of a step of one process divided by that of several: 1.00 is ideal, and what
is missing is communication, or memory bandwidth that processes share.

`--links` also runs two nodes of one process each: network namespaces that a pair of virtual
interfaces connects, limited to the given rates by tc (token bucket filter).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(sys.path[0])
from bench.train_steps import MODELS, Batch

ENGINES = ("eager", "sardonyx")
KINDS = ("ddp", "fsdp")
WARM_UP_STEPS = 2
NODES = ("sardonyx-0", "sardonyx-1")  # network namespaces; interfaces have the same names
MASTER = "10.77.0.1"  # an address within the namespaces


def sharded(module: nn.Module) -> nn.Module:
    """Shard every block of the largest list of blocks, and the rest as one unit."""
    lists = [m for m in module.modules() if isinstance(m, nn.ModuleList)]
    for block in max(lists, key=len, default=()):
        fully_shard(block)
    fully_shard(module)
    return module


class Worker:
    """A model of this rank under one engine."""

    def __init__(self, model: str, kind: str, engine: str) -> None:
        torch.manual_seed(0)
        module, self.batch = MODELS[model]()
        module.train()
        if kind == "fsdp":
            module = sharded(module)
        if engine == "sardonyx":
            from sardonyx.train import wrap

            wrap(module)
        self.call: Callable[..., Any] = module
        if kind == "ddp":
            self.call = DistributedDataParallel(module)
        self.optimizer = torch.optim.AdamW(module.parameters(), 1e-4)
        torch.manual_seed(1 + dist.get_rank())

    def step(self) -> float:
        """Run one step; its seconds, from when all ranks begin."""
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss_of(self.call, self.batch).backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def loss_of(call: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """The loss of a batch."""
    result = call(**batch)
    return result[0] if isinstance(result, tuple) else result.loss  # type: ignore[no-any-return]


def work(model: str, kind: str, n_steps: int) -> None:
    """Measure as one of the processes; rank 0 prints the medians by engine."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workers = {engine: Worker(model, kind, engine) for engine in ENGINES}
    times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for step in range(WARM_UP_STEPS + n_steps):
        for engine, worker in workers.items():
            seconds = worker.step()
            if step >= WARM_UP_STEPS:
                times[engine].append(seconds)
    if dist.get_rank() == 0:
        print(json.dumps({engine: statistics.median(times[engine]) for engine in ENGINES}))
    dist.destroy_process_group()


def in_group(model: str, kind: str, n_processes: int, n_steps: int) -> dict[str, float]:
    """The seconds of a step by engine, in a group of processes."""
    launcher = ["--standalone", f"--nproc-per-node={n_processes}"]
    with _started(launcher, model, kind, n_steps) as group:
        return _medians(group)


def on_two_nodes(model: str, kind: str, link: str, n_steps: int) -> dict[str, float]:
    """The seconds of a step by engine, of two nodes with one process each."""
    with two_nodes(link):
        groups = []
        for rank, node in enumerate(NODES):
            launcher = ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1"]
            launcher += [f"--master-addr={MASTER}", "--master-port=29577"]
            groups.append(_started(launcher, model, kind, n_steps, node))
        with groups[0] as first, groups[1] as second:
            seconds = _medians(first)
            second.communicate()
            return seconds


def _started(
    launcher: list[str], model: str, kind: str, n_steps: int, node: str | None = None
) -> subprocess.Popen[str]:
    """torchrun with this program as the worker, in a network namespace if one is given."""
    options = ["--work", "--models", model, "--kinds", kind, "--steps", str(n_steps)]
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, __file__, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if node is not None:
        command = ["ip", "netns", "exec", node, *command]
        environment["GLOO_SOCKET_IFNAME"] = node
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _medians(group: subprocess.Popen[str]) -> dict[str, float]:
    """Return the medians that rank 0 prints last."""
    printed, _ = group.communicate()
    if group.returncode:
        raise SystemExit(f"a group of processes ended with status {group.returncode}")
    return json.loads(printed.splitlines()[-1])  # type: ignore[no-any-return]


@contextmanager
def two_nodes(link: str) -> Iterator[None]:
    """Two network namespaces, connected at a rate such as 1gbit in each direction."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        for node in NODES:
            ip("netns", "add", node)
        pair = ("link", "add", NODES[0], "netns", NODES[0], "type", "veth")
        ip(*pair, "peer", "name", NODES[1], "netns", NODES[1])
        for i, node in enumerate(NODES):
            ip("-n", node, "address", "add", f"10.77.0.{i + 1}/24", "dev", node)
            for interface in ("lo", node):
                ip("-n", node, "link", "set", interface, "up")
            limit = f"tc qdisc add dev {node} root tbf rate {link} burst 1mb latency 50ms"
            ip("netns", "exec", node, *limit.split())
        yield
    finally:
        for node in NODES:
            subprocess.run(["ip", "netns", "delete", node], stderr=subprocess.DEVNULL, check=False)


def table(args: argparse.Namespace) -> Iterable[str]:
    """The lines of the table."""
    yield "model     kind   processes engine          step  scaling  of eager"
    for model in args.models:
        for kind in args.kinds:
            single: dict[str, float] = {}
            for group in (*args.processes, *args.links):
                is_link = isinstance(group, str)
                seconds = (on_two_nodes if is_link else in_group)(model, kind, group, args.steps)
                single = single or seconds
                for engine in ENGINES:
                    scaling = single[engine] / seconds[engine]
                    ratio = seconds["eager"] / seconds[engine]
                    name = f"2, {group}" if is_link else str(group)
                    yield (
                        f"{model:9} {kind:5} {name:>10} {engine:9} {seconds[engine] * 1e3:7.1f} ms "
                        f"{scaling:8.2f} {ratio:8.2f}x"
                    )


def main() -> None:
    """Print a table by model, kind and number of processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["bert", "gpt2"], choices=list(MODELS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--links", nargs="+", default=[], metavar="RATE", help="of the link between two nodes"
    )
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)  # as a process
    args = parser.parse_args()
    if args.work:
        work(args.models[0], args.kinds[0], args.steps)
        return
    for line in table(args):
        print(line, flush=True)


if __name__ == "__main__":
    main()
