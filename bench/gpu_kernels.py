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
from sardonyx.providers.torch.kernels.nbits_matmul import Digits, Weights
from sardonyx.providers.torch.kernels.normalize import normed

BLOCK = 32
# hidden, inner, heads, shared heads, layers, vocabulary
SIZES = {"1b": (2048, 8192, 32, 8, 16, 32064), "phi3-mini": (3072, 8192, 32, 32, 32, 32064)}
CONTEXT = 4096


def weights(k: int, n: int) -> Weights:
    """Random weights of 4 bits in blocks of 32, float32 scales, zero points of 4 bits."""
    q = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32, device="cuda")
    scale = torch.rand(n, k // BLOCK, device="cuda") * (0.5 / math.sqrt(k))
    zero = torch.randint(0, 255, (n, k // BLOCK // 2), dtype=torch.uint8, device="cuda")
    return Weights(q, scale, zero, 8, k, 1)


def size_bytes(w: Weights) -> int:
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
    few, many = nbits_matmul.digits(x), nbits_matmul.digits(h)
    shapes: dict[str, tuple[int, int, Callable[[Weights], Any]]] = {
        "norm + qkv": (hidden, (heads + 2 * shared) * head,
                       lambda w: nbits_matmul.rows_product(x, w, norm=gain, leads=True)),
        "o + residual": (hidden, hidden,
                         lambda w: nbits_matmul.rows_product(few, w, residual=x, leads=True)),
        "norm + gate, up": (hidden, 2 * inner,
                            lambda w: nbits_matmul.rows_digits(
                                x, w, norm=gain, gated=True, leads=True)),
        "down + residual": (inner, hidden,
                            lambda w: nbits_matmul.rows_product(many, w, residual=x, leads=True)),
        "norm + lm_head": (hidden, vocab,
                           lambda w: nbits_matmul.rows_product(x, w, norm=gain, leads=True)),
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
    heads = attention_decode.Heads(n_heads, shared, 1 / math.sqrt(head))
    room = attention_decode.workspace(caches[0][0], n_heads, 1)
    gain = (torch.rand(hidden, device="cuda") + 0.5, 1e-5)
    x = torch.randn(1, hidden, device="cuda")
    n_bytes = sum(size_bytes(w) for layer in stack for w in layer) + size_bytes(last)

    def attention(q: torch.Tensor, cache: Any, lasts: torch.Tensor) -> Digits:
        parts = attention_decode.split_packed(q.view(1, 1, -1), heads)
        made = attention_decode.attend_digits(parts, cache, lasts, heads, rotary, room, leads=True)
        assert isinstance(made, Digits)
        return Digits(made.words, made.value.view(1, -1))

    def token(lasts: torch.Tensor) -> torch.Tensor:
        s = x
        for (qkv, o, both, down), cache in zip(stack, caches, strict=True):
            q = nbits_matmul.rows_product(s, qkv, norm=gain, leads=True)
            s = nbits_matmul.rows_product(attention(q, cache, lasts), o, residual=s, leads=True)
            h = nbits_matmul.rows_digits(s, both, norm=gain, gated=True, leads=True)
            s = nbits_matmul.rows_product(h, down, residual=s, leads=True)
        return nbits_matmul.rows_product(s, last, norm=gain)

    packed = torch.randn(1, shapes[0][1], device="cuda")
    for length in (30, 128, 512, 2048):
        lasts = torch.tensor([length], dtype=torch.int32, device="cuda")
        calls = [lambda c=c, at=lasts: attention(packed, c, at) for c in caches]  # type: ignore[misc]
        us = graph_us(calls) / layers
        show(f"{name} attention over {length}", us, 2 * 4 * shared * head * length)
        show(f"{name} token at {length}", graph_us([lambda at=lasts: token(at)]), n_bytes)


def norms() -> None:
    x, other = (torch.randn(4096, 3072, device="cuda") for _ in "ab")
    gain = torch.rand(3072, device="cuda")
    us = graph_us([lambda: normed(x, gain, None, 1e-5, skip=other, is_rms=True)] * 4) / 4
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
