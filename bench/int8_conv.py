"""8-bit convolutions of every type and zero point, as whole models beside onnxruntime, in turns.

python -m bench.int8_conv [WORDS] [--threads 1,2]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

import sardonyx
from bench.int8 import random_bytes
from bench.steps import Made, one

ROUNDS, ROUND_S = 6, 0.02
# onnxruntime has no convolution of signed activations by unsigned weights.
TYPES = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))


class Layer(NamedTuple):
    """A convolution; size, kernel, stride and dilation are equal along its axes."""

    name: str
    size: int
    channels: int
    maps: int
    group: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    axes: int = 2


LAYERS = (
    Layer("depthwise", 56, 128, 128, 128),
    Layer("depthwise /2", 56, 128, 128, 128, stride=2),
    Layer("depthwise dilated", 28, 96, 96, 96, dilation=2),
    Layer("depthwise 5x5", 28, 120, 120, 120, kernel=5),
    Layer("depthwise 1d", 1000, 64, 64, 64, kernel=9, axes=1),
    Layer("depthwise 3d", 14, 64, 64, 64, axes=3),
    Layer("depthwise x2", 28, 64, 128, 64),
    Layer("32 groups of 4", 56, 128, 128, 32),
    Layer("32 groups of 8", 28, 256, 256, 32),
    Layer("32 groups of 16", 14, 512, 512, 32),
    Layer("10 groups of 24", 14, 240, 240, 10),
    Layer("8 groups, 16 to 4", 28, 128, 32, 8),
    Layer("4 groups, 1x1", 28, 240, 240, 4, kernel=1),
    Layer("one group", 28, 64, 64, 1),
    Layer("one group, 1x1", 28, 128, 128, 1, kernel=1),
)


def _zero(kind: Any, maps: int, which: str) -> Any:
    info = np.iinfo(kind)
    if which == "middle":
        return np.array((info.min + info.max + 1) // 2, kind)
    if which == "one":
        return np.array(info.min + 100, kind)
    return np.arange(maps).astype(kind)


def _made(layer: Layer, types: tuple[Any, Any], zero: str) -> Made:
    kind, w_kind = types
    x = random_bytes(kind, 1, layer.channels, *[layer.size] * layer.axes)
    w = random_bytes(
        w_kind, layer.maps, layer.channels // layer.group, *[layer.kernel] * layer.axes
    )
    w_zero = _zero(w_kind, layer.maps, zero)
    w_scale = np.full(w_zero.shape, 0.001, np.float32)
    y_zero = np.array(9, kind)
    constants = (np.float32(0.02), np.array(7, kind), w, w_scale, w_zero, np.float32(0.5), y_zero)
    attrs: dict[str, Any] = {
        "pads": [layer.kernel // 2 * layer.dilation] * 2 * layer.axes,
        "strides": [layer.stride] * layer.axes,
        "dilations": [layer.dilation] * layer.axes,
        "group": layer.group,
    }
    return one("QLinearConv", {"x": x}, lambda i: constants, **attrs)


def _best(run: Callable[[], Any], best: float) -> float:
    end = time.perf_counter() + ROUND_S
    while True:
        began = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return best


def _measure(made: Made, threads: int) -> tuple[float, float]:
    """Milliseconds here and in onnxruntime."""
    runs = []
    for module in (sardonyx, onnxruntime):
        options = module.SessionOptions()
        options.intra_op_num_threads = threads
        session = module.InferenceSession(made.model, options, providers=["CPUExecutionProvider"])
        runs.append(lambda session=session: session.run(None, made.feed))
    ours, theirs = (run()[0].astype(int) for run in runs)
    # Results half way between two codes may be rounded either way.
    assert np.abs(ours - theirs).max() <= 1
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        best = [_best(run, b) for run, b in zip(runs, best, strict=True)]
    return best[0] * 1e3, best[1] * 1e3


def _rows(words: list[str], threads: list[int]) -> Iterator[tuple[Any, ...]]:
    for layer, types, zero in itertools.product(LAYERS, TYPES, ("middle", "one", "channels")):
        kinds = "".join("us"[t is np.int8] + "8" for t in types)
        name = f"{layer.name}, {kinds}, zero {zero}"
        if (zero == "channels" and types[1] is np.uint8) or not all(w in name for w in words):
            continue  # onnxruntime needs equal zero points of unsigned weights
        for n in threads:
            yield name, n, *_measure(_made(layer, types, zero), n)


def main() -> None:
    """Prints a row per convolution, and how many are slower than 1.2 times onnxruntime's speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    ratios = []
    for name, threads, ours, theirs in _rows(args.words, [int(n) for n in args.threads.split(",")]):
        ratios.append(theirs / ours)
        print(f"{name:44} {threads} {ours:8.3f} ms {theirs:8.3f} ms {ratios[-1]:6.2f}x", flush=True)
    slow = sum(r < 1.2 for r in ratios)
    print(
        f"{len(ratios)} cases, {slow} below 1.2x, median {np.median(ratios):.2f}x, "
        f"least {min(ratios):.2f}x"
    )


if __name__ == "__main__":
    main()
