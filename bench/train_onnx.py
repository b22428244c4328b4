"""Training steps of ONNX models that torch exports: eager torch and `sardonyx.train.TrainingStep`.

    pip install transformers
    python -m bench.train_onnx                       # time, engines interleaved in one process
    python -m bench.train_onnx --memory              # peak memory of a step, one process per engine
    python -m bench.train_onnx --losses              # losses of 50 steps against torch in float64
    python -m bench.train_onnx --models bert mlp --engines eager sardonyx

A step is forward, backward and AdamW. Engines alternate every 5 steps, after 50 ms of steps that do
not count: for some milliseconds the threads of the other engine, such as those of OpenMP, still
spin. Both have the same weights and batches; models are exported in training mode, without dropout,
so that losses can be compared. Memory is the growth of the peak resident set over steps, with
parameters and optimizer state made before.

The losses of the convnet depend on rounding: where a ReLU or MaxPool decides otherwise, they jump.
So all engines are compared with torch in float64, eager torch in float32 among them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.train_steps import Batch, Classifier, residual_network

THREADS = 2
LR = 1e-4
BLOCK = 5  # counted steps of an engine in a row
SETTLING_S = 0.05  # before them: longer than idle threads spin


class Bert(nn.Module):
    """BERT of 4 layers, width 256, with its loss."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        config = BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.network = BertForSequenceClassification(config)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.network(input_ids=ids, attention_mask=mask).logits
        return nn.functional.cross_entropy(scores, labels)


def bert() -> tuple[nn.Module, Batch]:
    """8 sequences of 128 tokens."""
    ids = torch.randint(0, 30522, (8, 128))
    return Bert(), {"ids": ids, "mask": torch.ones_like(ids), "labels": torch.randint(0, 2, (8,))}


def convnet() -> tuple[nn.Module, Batch]:
    """ResNet-18 with batch norms of half its width; 8 images of 96 x 96."""
    batch = {"x": torch.randn(8, 3, 96, 96), "labels": torch.randint(0, 100, (8,))}
    return Classifier(residual_network((32, 64, 128, 256), 100)), batch


class Tagger(nn.Module):
    """An embedding, an LSTM of two layers and a classifier of the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.lstm = nn.LSTM(256, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(x))
        scores: torch.Tensor = self.head(states[:, -1])
        return scores


def lstm() -> tuple[nn.Module, Batch]:
    """16 sequences of 64 tokens."""
    batch = {"x": torch.randint(0, 10_000, (16, 64)), "labels": torch.randint(0, 10, (16,))}
    return Classifier(Tagger()), batch


def mlp() -> tuple[nn.Module, Batch]:
    """Four layers of 256 over 64 columns of a table; 256 rows."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((64, 256), (256, 256), (256, 256)):
        layers += [nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU()]
    batch = {"x": torch.randn(256, 64), "labels": torch.randint(0, 4, (256,))}
    return Classifier(nn.Sequential(*layers, nn.Linear(256, 4))), batch


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "bert": bert, "convnet": convnet, "lstm": lstm, "mlp": mlp,
}  # fmt: skip
ENGINES = ("eager", "sardonyx", "sardonyx-layers")


def exported(module: nn.Module, batch: Batch) -> bytes:
    """The module in training mode as an ONNX model; its output is the loss."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, tuple(batch.values()), buffer, dynamo=False, opset_version=20,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=list(batch), output_names=["loss"],
        )  # fmt: skip
    return buffer.getvalue()


class Eager:
    """Steps of torch."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        module, batch = MODELS[name]()
        self.module = module.train().to(dtype)
        self.batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        self._optimizer = torch.optim.AdamW(self.module.parameters(), LR)

    def run(self) -> float:
        """Run one step and return the loss."""
        self._optimizer.zero_grad()
        result = self.module(**self.batch)
        loss = result[0] if isinstance(result, tuple) else result
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())


class Onnx:
    """Steps of a TrainingStep."""

    def __init__(self, name: str, recompute: str | None) -> None:
        import sardonyx
        from sardonyx.train import AdamW, TrainingStep

        torch.manual_seed(0)
        module, batch = MODELS[name]()
        module.train()
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = THREADS
        self._step = TrainingStep(
            exported(module, batch),
            parameters=[n for n, _ in module.named_parameters()] if name != "bert" else None,
            optimizer=AdamW(LR),
            recompute=recompute,
            sess_options=options,
        )
        self._feeds = {key: tensor.numpy() for key, tensor in batch.items()}

    def run(self) -> float:
        """Run one step and return the loss."""
        return float(self._step.run(self._feeds)["loss"])


def engine_of(name: str, engine: str) -> Eager | Onnx:
    if engine == "eager":
        return Eager(name)
    return Onnx(name, "layers" if engine == "sardonyx-layers" else None)


def timed(name: str, engines: list[str], n_steps: int) -> dict[str, float]:
    """Per engine: the median time of a step, in seconds."""
    trainers = {engine: engine_of(name, engine) for engine in engines}
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    for block in range(-(-n_steps // BLOCK) + 1):
        for engine, trainer in trainers.items():
            end = time.perf_counter() + SETTLING_S
            while time.perf_counter() < end:
                trainer.run()
            for _ in range(BLOCK):
                begin = time.perf_counter()
                trainer.run()
                if block:  # the first one warms up
                    times[engine].append(time.perf_counter() - begin)
    return {engine: statistics.median(each) for engine, each in times.items()}


def memory_of(name: str, engine: str) -> float:
    """Peak memory of a step in this process, in MB, beyond parameters and optimizer state."""
    trainer = engine_of(name, engine)
    trainer.run()
    if isinstance(trainer, Eager):
        trainer._optimizer.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    native = sys.modules.get("sardonyx._native")
    before = _status("VmRSS") - (0 if native is None else native.cached_bytes())
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    for _ in range(3):
        trainer.run()
    return (_status("VmHWM") - before) / 1e6


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes: VmRSS is the resident set, VmHWM its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def difference(name: str, engines: list[str], n_steps: int) -> dict[str, float]:
    """Per engine: the largest difference of a loss from that of torch in float64."""
    exact = Eager(name, torch.float64)
    expected = [exact.run() for _ in range(n_steps)]
    trainers = {engine: engine_of(name, engine) for engine in engines}
    return {e: max(abs(t.run() - loss) for loss in expected) for e, t in trainers.items()}


def in_process(mode: str, name: str, engines: list[str], n_steps: int) -> Any:
    """Return the measurements of a mode in a new process."""
    command = [sys.executable, "-m", "bench.train_onnx", "--one", mode, "--models", name]
    command += ["--engines", *engines, "--steps", str(n_steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(args: argparse.Namespace, mode: str, name: str) -> dict[str, float]:
    if mode == "memory":
        return {e: in_process(mode, name, [e], args.steps) for e in args.engines}
    found: dict[str, float] = in_process(mode, name, args.engines, args.steps)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--losses", action="store_true", help="losses instead of time")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the mode of a child process
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    if args.one is not None:
        name = args.models[0]
        modes: dict[str, Callable[[], Any]] = {
            "time": lambda: timed(name, args.engines, args.steps),
            "memory": lambda: memory_of(name, args.engines[0]),
            "losses": lambda: difference(name, args.engines, args.steps),
        }
        print(json.dumps(modes[args.one]()))
        return
    mode = "memory" if args.memory else "losses" if args.losses else "time"
    if args.losses:
        args.steps = 50
    ratios: dict[str, list[float]] = {}
    for name in args.models:
        rows = measured(args, mode, name)
        base = rows[args.engines[0]]
        for engine, number in rows.items():
            if mode == "losses":
                print(f"{name:9} {engine:16} {number:.1e}", flush=True)
                continue
            ratio = base / number if mode == "time" else number / base
            ratios.setdefault(engine, []).append(ratio)
            shown = f"{number * 1e3:8.1f} ms" if mode == "time" else f"{number:8.1f} MB"
            print(f"{name:9} {engine:16} {ratio:6.2f}x  {shown}", flush=True)
    for engine, values in ratios.items():
        print(f"{'geomean':9} {engine:16} {math.exp(statistics.fmean(map(math.log, values))):.2f}")


if __name__ == "__main__":
    main()
