"""Steps of optimizers on the parameters of GPT-2 (124M), against torch.optim's, interleaved.

python -m bench.optimizers [NAMES] [--threads 2] [--rounds 7] [--dtype float32] [--small]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from sardonyx.train import optim

WIDTH, LAYERS, WORDS, POSITIONS = 768, 12, 50257, 1024


def gpt2_shapes(width: int, layers: int) -> list[tuple[int, ...]]:
    """The shapes of GPT-2's parameters; the output layer shares the embedding's."""
    norm: list[tuple[int, ...]] = [(width,), (width,)]
    attention: list[tuple[int, ...]] = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    mlp: list[tuple[int, ...]] = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *mlp]
    return [(WORDS * width // WIDTH, width), (POSITIONS, width), *layer * layers, *norm]


def make(cls: Any, shapes: list[tuple[int, ...]], dtype: torch.dtype, **options: Any) -> Any:
    """An optimizer over random parameters with gradients."""
    params = [torch.nn.Parameter(torch.randn(shape, dtype=dtype) * 0.02) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return cls(params, **options)


def clipped(optimizer: Any) -> Callable[[], None]:
    """A step of torch after torch's clipping."""
    params = optimizer.param_groups[0]["params"]

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    return step


RIVALS: dict[str, dict[str, Callable[..., Callable[[], Any]]]] = {
    "AdamW": {
        "sardonyx": lambda *a: make(optim.AdamW, *a).step,
        "torch fused": lambda *a: make(torch.optim.AdamW, *a, fused=True).step,
        "torch foreach": lambda *a: make(torch.optim.AdamW, *a, foreach=True).step,
    },
    "AdamW max_norm=1": {
        "sardonyx": lambda *a: make(optim.AdamW, *a, max_norm=1.0).step,
        "torch fused": lambda *a: clipped(make(torch.optim.AdamW, *a, fused=True)),
    },
    "SGD momentum=0.9": {
        "sardonyx": lambda *a: make(optim.SGD, *a, momentum=0.9).step,
        "torch fused": lambda *a: make(torch.optim.SGD, *a, momentum=0.9, fused=True).step,
        "torch foreach": lambda *a: make(torch.optim.SGD, *a, momentum=0.9, foreach=True).step,
    },
    "Adafactor": {
        "sardonyx": lambda *a: make(optim.Adafactor, *a).step,
        "torch": lambda *a: make(torch.optim.Adafactor, *a).step,
    },
    "Lion": {"sardonyx": lambda *a: make(optim.Lion, *a).step},
}


def measure(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least seconds of each, interleaved; the first round warms up and creates state."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if i > 0:
                times[name].append(time.perf_counter() - begin)
    return {name: min(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of optimizers; all if not given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--small", action="store_true", help="width 32: the cost per parameter")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = gpt2_shapes(32 if options.small else WIDTH, LAYERS)
    for title, rivals in RIVALS.items():
        if options.names and not any(name in title for name in options.names):
            continue
        made = {k: f(shapes, getattr(torch, options.dtype)) for k, f in rivals.items()}
        times = measure(made, options.rounds)
        for name, seconds in times.items():
            ratio = seconds / times["sardonyx"]
            print(f"{title:<18} {name:<14} {seconds * 1e3:9.3f} ms  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
