"""Training steps of torch modules: eager, `torch.compile` (inductor) and `sardonyx.train.wrap`.

    pip install transformers
    python bench/train_steps.py                      # time, engines interleaved in one process
    python bench/train_steps.py --memory             # peak memory of a step, one process per engine
    python bench/train_steps.py --first              # first steps, with an empty cache and again
    python bench/train_steps.py --models bert gpt2 --engines eager sardonyx

A step is forward, backward and `AdamW.step`. Times are medians over the steps, interleaved, so that
the ratios stay meaningful on a noisy machine; each model has a process of its own, as TorchDynamo
limits how often functions that models share are compiled. Memory is the growth of the peak resident
set from just before the first step to the end, with parameters and optimizer state made before.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

if sys.path[0].endswith("bench"):
    sys.path.pop(0)  # bench/kernels.py would shadow the package that transformers looks for
Batch = dict[str, torch.Tensor]
THREADS = 2


def bert() -> tuple[nn.Module, Batch]:
    """BERT of 4 layers, width 256; 8 sequences of 128 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    ids = torch.randint(0, config.vocab_size, (8, 128))
    labels = torch.randint(0, 2, (8,))
    mask = torch.ones_like(ids)
    return BertForSequenceClassification(config), {
        "input_ids": ids, "attention_mask": mask, "labels": labels,
    }  # fmt: skip


def gpt2() -> tuple[nn.Module, Batch]:
    """GPT-2 of 124M parameters; 2 sequences of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(0, 50257, (2, 128))
    return GPT2LMHeadModel(GPT2Config()), {"input_ids": ids, "labels": ids}


def vit() -> tuple[nn.Module, Batch]:
    """ViT-S/16; 4 images."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    labels = torch.randint(0, 1000, (4,))
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(4, 3, 224, 224), "labels": labels,
    }  # fmt: skip


class Classifier(nn.Module):
    """A network with its cross entropy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        return (nn.functional.cross_entropy(self.network(x), labels),)


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.skip = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def residual_network(widths: tuple[int, ...], n_classes: int) -> nn.Module:
    """ResNet-18, with the widths of its four stages."""
    width = widths[0]
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
    for n_out, stride in zip(widths, (1, 2, 2, 2), strict=True):
        layers += [Residual(width, n_out, stride), Residual(n_out, n_out, 1)]
        width = n_out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, n_classes)]
    return nn.Sequential(*layers)


def resnet18() -> tuple[nn.Module, Batch]:
    """ResNet-18; 8 images of 224 x 224."""
    batch = {"x": torch.randn(8, 3, 224, 224), "labels": torch.randint(0, 1000, (8,))}
    return Classifier(residual_network((64, 128, 256, 512), 1000)), batch


class Tagger(nn.Module):
    """An embedding, two LSTM layers and a classifier of the last state."""

    def __init__(self, n_tokens: int = 10_000, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


def lstm() -> tuple[nn.Module, Batch]:
    """A two-layer LSTM of width 256; 16 sequences of 64 tokens."""
    batch = {"x": torch.randint(0, 10_000, (16, 64)), "labels": torch.randint(0, 10, (16,))}
    return Classifier(Tagger()), batch


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "bert": bert, "gpt2": gpt2, "vit": vit, "resnet18": resnet18, "lstm": lstm,
}  # fmt: skip
ENGINES = (
    "eager", "inductor", "sardonyx", "sardonyx-0.4", "sardonyx-adamw", "sardonyx-0.4-adamw",
    "sardonyx-0.2-adamw", "sardonyx-0.1-adamw",
)  # fmt: skip


def engaged(module: nn.Module, engine: str) -> Callable[..., Any]:
    """The module as an engine runs it; a number in its name is a memory budget.

    Those with "adamw" use `sardonyx.train.optim.AdamW`, all others torch's.
    """
    if engine == "eager":
        return module
    if engine == "inductor":
        return torch.compile(module)
    from sardonyx.train import wrap

    budget = re.search(r"\d\.\d", engine)
    return wrap(module, memory_budget=float(budget[0]) if budget else None)


class Trainer:
    """One model under one engine."""

    def __init__(self, name: str, engine: str) -> None:
        torch.manual_seed(0)
        self.module, self.batch = MODELS[name]()
        self.module.train()
        self.call = engaged(self.module, engine)
        self.optimizer: torch.optim.Optimizer
        if engine.endswith("adamw"):
            from sardonyx.train import optim

            self.optimizer = optim.AdamW(self.module.parameters(), 1e-4)
        else:
            self.optimizer = torch.optim.AdamW(self.module.parameters(), 1e-4)

    def step(self) -> float:
        """Run one step; the seconds it took."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        result = self.call(**self.batch)
        loss = result[0] if isinstance(result, tuple) else result.loss
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes: VmRSS is the resident set, VmHWM its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def _cached_bytes() -> int:
    """Memory that our sessions keep for the next run: it belongs to the step."""
    native = sys.modules.get("sardonyx._native")
    return 0 if native is None else native.cached_bytes()


def memory_of(name: str, engine: str) -> dict[str, float]:
    """Peak memory of a step in this process, in MB, beyond parameters and optimizer state.

    A step with a batch of one comes first, so that what compilers load and keep is not counted.
    """
    torch._dynamo.config.automatic_dynamic_shapes = False
    trainer = Trainer(name, engine)
    whole = trainer.batch
    trainer.batch = {key: tensor[:1] for key, tensor in whole.items()}
    trainer.step()
    trainer.optimizer.zero_grad()
    gc.collect()
    trainer.batch = whole
    first = trainer.step()
    trainer.optimizer.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS") - _cached_bytes()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    steps = [trainer.step() for _ in range(3)]
    return {"memory_mb": (_status("VmHWM") - before) / 1e6, "step_s": min(steps), "first_s": first}


def first_step(name: str, engine: str) -> dict[str, float]:
    """Seconds of the first step in this process, and CPU seconds of its thread, which compiles."""
    trainer = Trainer(name, engine)
    begin = time.thread_time()
    return {"first_s": trainer.step(), "cpu_s": time.thread_time() - begin}


def timed(name: str, engines: list[str], n_steps: int) -> dict[str, tuple[float, float]]:
    """Per engine: seconds of the first step, and the median of the later ones."""
    trainers = {engine: Trainer(name, engine) for engine in engines}
    first = {engine: trainer.step() for engine, trainer in trainers.items()}
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(n_steps):
        for engine, trainer in trainers.items():
            times[engine].append(trainer.step())
    return {e: (first[e], statistics.median(times[e])) for e in engines}


def in_process(mode: str, name: str, engines: list[str], n_steps: int, folder: str = "") -> Any:
    """What a mode measures in a new process; torch keeps its caches in `folder`."""
    command = [sys.executable, __file__, "--one", mode, "--models", name, "--engines", *engines]
    environment = {**os.environ, **({"TORCHINDUCTOR_CACHE_DIR": folder} if folder else {})}
    command += ["--steps", str(n_steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def measured(args: argparse.Namespace, mode: str, name: str) -> dict[str, tuple[float, str]]:
    """Per engine: the number that engines are compared by, and the line of all figures."""
    rows: dict[str, tuple[float, str]] = {}
    if mode == "time":
        for engine, (first, median) in in_process(mode, name, args.engines, args.steps).items():
            rows[engine] = 1 / median, f"{median * 1e3:8.1f} ms  first {first:.2f} s"
        return rows
    for engine in args.engines:
        if mode == "memory":
            row = in_process(mode, name, [engine], args.steps)
            figures = f"{row['memory_mb']:8.0f} MB  step {row['step_s']:.3f} s"
            rows[engine] = row["memory_mb"], figures
            continue
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (in_process(mode, name, [engine], 0, folder) for _ in range(2))
        rows[engine] = (
            cold["first_s"],
            (
                f"{cold['first_s']:6.2f} s (CPU {cold['cpu_s']:.2f})  "
                f"again {warm['first_s']:6.2f} s (CPU {warm['cpu_s']:.2f})"
            ),
        )
    return rows


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES[:3]), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--first", action="store_true", help="first steps instead of later ones")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the mode of a child process
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    if args.one is not None:
        name, engine = args.models[0], args.engines[0]
        modes: dict[str, Callable[[], Any]] = {
            "time": lambda: timed(name, args.engines, args.steps),
            "memory": lambda: memory_of(name, engine),
            "first": lambda: first_step(name, engine),
        }
        print(json.dumps(modes[args.one]()))
        return
    mode = "memory" if args.memory else "first" if args.first else "time"
    ratios: dict[str, list[float]] = {}
    for name in args.models:
        rows = measured(args, mode, name)
        base = rows[args.engines[0]][0]
        for engine, (number, figures) in rows.items():
            ratios.setdefault(engine, []).append(number / base)
            print(f"{name:9} {engine:13} {number / base:6.2f}x  {figures}", flush=True)
    for engine, values in ratios.items():
        print(f"{'geomean':9} {engine:13} {math.exp(statistics.fmean(map(math.log, values))):.2f}")


if __name__ == "__main__":
    main()
