"""Families of scheduling problems, and their least peak of memory by exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Task = tuple[list[int], list[int], list[tuple[int, int]], int]


@dataclass
class Net:
    """Tasks in the making: each buffer has a writer, or several."""

    sizes: list[int] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    writers: list[list[int]] = field(default_factory=list)

    def buffer(self, size: int) -> int:
        """A buffer without writers yet."""
        self.sizes.append(size)
        self.writers.append([])
        return len(self.sizes) - 1

    def write(self, to: int, inputs: Sequence[int], scratch: int = 0, shares: bool = False) -> int:
        """A task that reads buffers and writes one; the buffer written."""
        preds = sorted({w for i in inputs for w in self.writers[i]})
        touches = list(dict.fromkeys([*inputs, to]))
        pairs = [(i, to) for i in dict.fromkeys(inputs) if i != to] if shares else []
        self.writers[to].append(len(self.tasks))
        self.tasks.append((preds, touches, pairs, scratch))
        return to

    def op(self, size: int, *inputs: int, scratch: int = 0, shares: bool = False) -> int:
        """A task that reads buffers and makes one."""
        return self.write(self.buffer(size), inputs, scratch, shares)

    @property
    def order(self) -> list[int]:
        """The order in which the tasks were made."""
        return list(range(len(self.tasks)))


def simulate(sizes: Sequence[int], tasks: Sequence[Task], order: Sequence[int]) -> int:
    """The peak of an order, from the definition."""
    peak = 0
    for at, t in enumerate(order):
        past = {b for u in order[:at] for b in tasks[u][1]}
        future = {b for u in order[at + 1 :] for b in tasks[u][1]}
        _, touches, pairs, scratch = tasks[t]
        alive = sum(sizes[b] for b in (past & future) | set(touches))
        used: set[tuple[str, int]] = set()
        for i, o in pairs:
            if i in future or o in past or sizes[i] != sizes[o]:
                continue
            if not used & {("from", i), ("to", o)}:
                used |= {("from", i), ("to", o)}
                alive -= sizes[o]
        peak = max(peak, alive + scratch)
    return peak


def least(sizes: Sequence[int], tasks: Sequence[Task]) -> int:
    """The least peak of all orders: over sets of tasks that are done, no step left out."""
    preds = [sum(1 << p for p in set(t[0])) for t in tasks]
    touchers = [sum(1 << t for t, k in enumerate(tasks) if b in k[1]) for b in range(len(sizes))]
    rows: dict[int, int] = {0: 0}
    for _ in tasks:
        following: dict[int, int] = {}
        for done, peak in rows.items():
            for t, (_, touches, pairs, scratch) in enumerate(tasks):
                if done >> t & 1 or preds[t] & ~done:
                    continue
                after = done | 1 << t
                need = scratch
                for b, mask in enumerate(touchers):
                    if b in touches or (mask & done and mask & ~done):
                        need += sizes[b]
                used: set[tuple[str, int]] = set()
                for i, o in pairs:
                    fits = not touchers[i] & ~after and not touchers[o] & done
                    if not fits or sizes[i] != sizes[o] or used & {("from", i), ("to", o)}:
                        continue
                    used |= {("from", i), ("to", o)}
                    need -= sizes[o]
                reached = max(peak, need)
                if reached < following.get(after, reached + 1):
                    following[after] = reached
        rows = following
    return rows[(1 << len(tasks)) - 1]


def inception(n: int, rng: random.Random) -> Net:
    """Modules of parallel branches of different lengths and widths, written into one buffer."""
    net = Net()
    x = net.op(64)
    while len(net.tasks) < n:
        joined = net.buffer(rng.randint(100, 300))
        for length in (1, 2, 3, 2):
            y = x
            for _ in range(length - 1):
                y = net.op(rng.randint(8, 128), y, scratch=rng.choice((0, 0, 40)))
            net.write(joined, [y])
        x = joined
    return net


def joined_branches(n: int, rng: random.Random) -> Net:
    """As inception, but a task copies the branches' ends together."""
    net = Net()
    x = net.op(64)
    while len(net.tasks) < n:
        ends = []
        for length in rng.sample((1, 2, 3, 4, 5), 4):
            y = x
            for _ in range(length):
                y = net.op(rng.randint(8, 128), y, shares=rng.random() < 0.3)
            ends.append(y)
        x = net.op(sum(net.sizes[e] for e in ends), *ends)
    return net


def densenet(n: int, rng: random.Random) -> Net:
    """Each layer reads all before it."""
    net = Net()
    made = [net.op(rng.randint(8, 64))]
    while len(net.tasks) < n:
        y = net.op(rng.randint(50, 200), *made[-12:])
        made.append(net.op(rng.randint(8, 64), y))
    return net


def unet(n: int, rng: random.Random) -> Net:
    """A way down, a way up, and skips between them that take a step on the way."""
    net = Net()
    depth = max(2, n // 7)
    x, skips = net.op(1 << 12), []
    for level in range(depth):
        x = net.op(max(16, (1 << 12) >> level), x, shares=True)
        skips.append(net.op(max(16, (1 << 11) >> level), x))
        x = net.op(max(8, (1 << 10) >> level), x, scratch=rng.randint(0, 99))
    for level in reversed(range(depth)):
        x = net.op(max(16, (1 << 11) >> level), x)
        gate = net.op(max(16, (1 << 11) >> level), skips.pop(), shares=True)
        x = net.op(max(16, (1 << 12) >> level), x, gate)
        x = net.op(max(16, (1 << 12) >> level), x, shares=True)
    return net


def wide(n: int, rng: random.Random) -> Net:
    """Many branches of one source, summed up at the end."""
    net = Net()
    x, ends = net.op(50), []
    for _ in range(max(2, n // 4)):
        a = net.op(rng.randint(1, 300), x)
        b = net.op(rng.randint(1, 300), a, scratch=rng.randint(0, 60))
        ends.append(net.op(rng.randint(1, 40), b, a))
    net.op(10, *ends)
    return net


def series_parallel(n: int, rng: random.Random) -> Net:
    """Random nesting of sequences and parallel branches."""
    net = Net()

    def grow(x: int, size: int) -> int:
        if size <= 1:
            return net.op(rng.randint(1, 100), x, shares=rng.random() < 0.3)
        if rng.random() < 0.5:
            cut = rng.randint(1, size - 1)
            return grow(grow(x, cut), size - cut)
        k = min(size - 1, rng.randint(2, 4))
        if k < 2:
            return grow(x, 1)
        ends = [grow(x, max(1, (size - 1) // k)) for _ in range(k)]
        return net.op(rng.randint(1, 100), *ends)

    x = net.op(rng.randint(1, 100))
    while len(net.tasks) < n:
        x = grow(x, min(n - len(net.tasks), 24))
    return net


def transformer(n: int, rng: random.Random) -> Net:
    """Blocks of attention and two products, each with a residual."""
    net = Net()
    d = 64
    x = net.op(d)
    while len(net.tasks) < n:
        h = net.op(d, x)
        q, k, v = (net.op(d, net.op(d, h), shares=True) for _ in range(3))
        scores = net.op(rng.choice((32, 256)), q, k)
        mixed = net.op(d, net.op(net.sizes[scores], scores, shares=True), v)
        x = net.op(d, net.op(d, mixed), x, shares=True)
        h = net.op(d, x)
        up = net.op(4 * d, net.op(4 * d, h), shares=True)
        gate = net.op(4 * d, h)
        x = net.op(d, net.op(d, net.op(4 * d, up, gate, shares=True)), x, shares=True)
    return net


def training(n: int, rng: random.Random) -> Net:
    """A chain whose values are kept for a chain back; gradients of weights leave the graph."""
    net = Net()
    layers = max(2, n // 5)
    kept = [net.op(rng.randint(20, 100))]
    for _ in range(layers):
        y = net.op(rng.randint(20, 100), kept[-1])
        kept.append(net.op(net.sizes[y], y))
    g = net.op(net.sizes[kept[-1]], kept[-1])
    for x in reversed(kept[:-1]):
        d = net.op(rng.randint(20, 100), g, x, shares=True)
        net.op(0, d, x, scratch=rng.randint(0, 40))
        g = net.op(net.sizes[x], d)
    return net


def updates(n: int, rng: random.Random) -> Net:
    """Training with an optimizer: gradients of weights are buffers until their step."""
    net = Net()
    layers = max(2, n // 6)
    kept = [net.op(rng.randint(20, 100))]
    for _ in range(layers):
        kept.append(net.op(rng.randint(20, 100), kept[-1]))
    g = net.op(net.sizes[kept[-1]], kept[-1])
    norm = []
    for x in reversed(kept[:-1]):
        w = net.op(rng.randint(5, 60), g, x)
        norm.append(net.op(1, w))
        net.op(0, w, scratch=rng.randint(0, 30))
        g = net.op(net.sizes[x], g, x, shares=True)
    net.op(0, *norm)
    return net


def scattered(n: int, rng: random.Random) -> Net:
    """Tasks that read some of the latest values."""
    net = Net()
    for _ in range(n):
        recent = range(max(0, len(net.sizes) - 8), len(net.sizes))
        inputs = rng.sample(recent, min(len(recent), rng.randint(0, 3)))
        net.op(rng.randint(1, 100), *inputs, shares=rng.random() < 0.3)
    return net


FAMILIES: dict[str, Callable[[int, random.Random], Net]] = {
    f.__name__: f
    for f in (
        inception,
        joined_branches,
        densenet,
        unet,
        wide,
        series_parallel,
        transformer,
        training,
        updates,
        scattered,
    )
}
