"""Times the Triton kernels in captured graphs: products by shape, attention, whole tokens, chains.

    python bench/gpu_kernels.py            # on a machine with a GPU

Weights are random and differ from launch to launch, so that the cache does not hold them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sardonyx.providers.torch.kernels import attention_decode, nbits_matmul
from sardonyx.providers.torch.kernels.nbits_matmul import FixedPointRows, PackedWeights
from sardonyx.providers.torch.kernels.normalize import normalize

BLOCK = 32
# hidden, inner, heads, shared heads, layers, vocabulary
SIZES = {"1b": (2048, 8192, 32, 8, 16, 32064), "phi3-mini": (3072, 8192, 32, 32, 32, 32064)}
CONTEXT = 4096


def weights(k: int, n: int) -> PackedWeights:
    """Random weights of 4 bits in blocks of 32, float32 scales, zero points of 4 bits."""
    q = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32, device="cuda")
    scale = torch.rand(n, k // BLOCK, device="cuda") * (0.5 / math.sqrt(k))
    zero = torch.randint(0, 255, (n, k // BLOCK // 2), dtype=torch.uint8, device="cuda")
    return PackedWeights(q, scale, zero, 8, k, 1)


def size_bytes(w: PackedWeights) -> int:
    return sum(t.nbytes for t in (w.q, w.scale, w.zero) if t is not None)


def graph_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of all calls, captured in one graph: the median of seven."""
    stream = torch.cuda.Stream()
    kept = []
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept.extend(call() for call in calls)
    graph.replay()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def show(name: str, us: float, n_bytes: int) -> None:
    print(f"{name:34} {us:9.2f} us {n_bytes / us / 1e6:6.2f} TB/s", flush=True)


def products(name: str) -> None:
    hidden, inner, heads, shared, _, vocab = SIZES[name]
    head = hidden // heads
    gain = (torch.rand(hidden, device="cuda") + 0.5, 1e-5)
    x, h = torch.randn(1, hidden, device="cuda"), torch.randn(1, inner, device="cuda")
    few, many = nbits_matmul.fixed_point(x), nbits_matmul.fixed_point(h)
    shapes: dict[str, tuple[int, int, Callable[[PackedWeights], Any]]] = {
        "norm + qkv": (hidden, (heads + 2 * shared) * head,
                       lambda w: nbits_matmul.nbits_gemv(x, w, norm=gain, next_waits=True)),
        "o + residual": (hidden, hidden,
                         lambda w: nbits_matmul.nbits_gemv(few, w, residual=x, next_waits=True)),
        "norm + gate, up": (hidden, 2 * inner,
                            lambda w: nbits_matmul.nbits_gemv_fixed_point(
                                x, w, norm=gain, gated=True, next_waits=True)),
        "down + residual": (inner, hidden,
                            lambda w: nbits_matmul.nbits_gemv(many, w, residual=x,
                                                               next_waits=True)),
        "norm + lm_head": (hidden, vocab,
                           lambda w: nbits_matmul.nbits_gemv(x, w, norm=gain, next_waits=True)),
    }  # fmt: skip
    for what, (k, n, call) in shapes.items():
        count = max(2, min(40, 400_000_000 // (k * n * 5 // 8)))
        sets = [weights(k, n) for _ in range(count)]
        us = graph_us([lambda w=w, call=call: call(w) for w in sets]) / count  # type: ignore[misc]
        show(f"{name} {what} {k}x{n}", us, size_bytes(sets[0]))


def tokens(name: str) -> None:
    """One token through all layers: five launches each."""
    hidden, inner, n_heads, shared, layers, vocab = SIZES[name]
    head = hidden // n_heads
    shapes = ((hidden, (n_heads + 2 * shared) * head), (hidden, hidden), (hidden, 2 * inner))
    stack = [[weights(*s) for s in (*shapes, (inner, hidden))] for _ in range(layers)]
    last = weights(hidden, vocab)
    shape = (1, shared, CONTEXT, head)
    caches = [tuple(torch.randn(shape, device="cuda") for _ in "kv") for _ in range(layers)]
    angles = torch.randn(CONTEXT, head // 2, device="cuda")
    rotary = attention_decode.Rotary(angles.cos(), angles.sin())
    heads = attention_decode.HeadParameters(n_heads, shared, 1 / math.sqrt(head))
    workspace = attention_decode.new_workspace(caches[0][0], n_heads, 1)
    gain = (torch.rand(hidden, device="cuda") + 0.5, 1e-5)
    x = torch.randn(1, hidden, device="cuda")
    n_bytes = sum(size_bytes(w) for layer in stack for w in layer) + size_bytes(last)

    def attention(q: torch.Tensor, cache: Any, seqlens: torch.Tensor) -> FixedPointRows:
        parts = attention_decode.split_packed(q.view(1, 1, -1), heads)
        y = attention_decode.attend_fixed_point(
            parts, cache, seqlens, heads, rotary, workspace, next_waits=True
        )
        assert isinstance(y, FixedPointRows)
        return FixedPointRows(y.words, y.value.view(1, -1))

    def token(seqlens: torch.Tensor) -> torch.Tensor:
        s = x
        for (qkv, o, both, down), cache in zip(stack, caches, strict=True):
            q = nbits_matmul.nbits_gemv(s, qkv, norm=gain, next_waits=True)
            s = nbits_matmul.nbits_gemv(
                attention(q, cache, seqlens), o, residual=s, next_waits=True
            )
            h = nbits_matmul.nbits_gemv_fixed_point(s, both, norm=gain, gated=True, next_waits=True)
            s = nbits_matmul.nbits_gemv(h, down, residual=s, next_waits=True)
        return nbits_matmul.nbits_gemv(s, last, norm=gain)

    packed = torch.randn(1, shapes[0][1], device="cuda")
    for length in (30, 128, 512, 2048):
        seqlens = torch.tensor([length], dtype=torch.int32, device="cuda")
        calls = [lambda c=c, at=seqlens: attention(packed, c, at) for c in caches]  # type: ignore[misc]
        us = graph_us(calls) / layers
        show(f"{name} attention over {length}", us, 2 * 4 * shared * head * length)
        show(f"{name} token at {length}", graph_us([lambda at=seqlens: token(at)]), n_bytes)


def norms() -> None:
    x, other = (torch.randn(4096, 3072, device="cuda") for _ in "ab")
    gain = torch.rand(3072, device="cuda")
    us = graph_us([lambda: normalize(x, gain, None, 1e-5, skip=other, is_rms=True)] * 4) / 4
    show("norm with residual 4096x3072", us, 4 * x.nbytes)


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU here")
        return
    for name in SIZES:
        products(name)
        tokens(name)
    norms()


if __name__ == "__main__":
    main()
