"""Peaks of orders by family of tasks, and what the search takes: `python -m bench.orders`."""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections.abc import Sequence

from sardonyx._native import least_peak, order_peak
from tests.order_problems import FAMILIES, Net


def reverse_depth_first(net: Net) -> list[int]:
    """From the last task back, each after all that it reads."""
    read = {p for t in net.tasks for p in t[0]}
    order: list[int] = []
    is_done = [False] * len(net.tasks)
    stack = [(t, False) for t in reversed(net.order) if t not in read]
    while stack:
        t, is_left = stack.pop()
        if is_done[t]:
            continue
        if is_left:
            is_done[t] = True
            order.append(t)
            continue
        stack.append((t, True))
        stack.extend((p, False) for p in reversed(net.tasks[t][0]) if not is_done[p])
    return order


def breadth_first(net: Net) -> list[int]:
    """By distance from the sources."""
    depth = [0] * len(net.tasks)
    for t, (preds, *_) in enumerate(net.tasks):
        depth[t] = max((depth[p] + 1 for p in preds), default=0)
    return sorted(net.order, key=lambda t: (depth[t], t))


class Exact:
    """The least peak over sets of tasks that are done, lowest first; gives up after some."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.preds = [sum(1 << p for p in t[0]) for t in net.tasks]
        self.users = [0] * len(net.sizes)
        for t, (_, touches, *_) in enumerate(net.tasks):
            for b in touches:
                self.users[b] |= 1 << t

    def cost(self, done: int, t: int) -> tuple[int, int]:
        """What a task needs above the level, and how it changes it."""
        _, touches, pairs, scratch = self.net.tasks[t]
        sizes, users, me = self.net.sizes, self.users, 1 << t
        made = sum(sizes[b] for b in touches if not users[b] & done)
        freed = sum(sizes[b] for b in touches if users[b] & ~done == me)
        shared, used = 0, set()
        for i, o in pairs:
            if users[i] & ~done != me or users[o] & done or sizes[i] != sizes[o]:
                continue
            if (i, 0) not in used and (o, 1) not in used:
                used |= {(i, 0), (o, 1)}
                shared += sizes[o]
        return made + scratch - shared, made - freed

    def settle(self, done: int, level: int, peak: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Does what costs nothing; what is done, the level, and what else is ready."""
        while True:
            ready = []
            for t in self.net.order:
                if done >> t & 1 or self.preds[t] & ~done:
                    continue
                rise, change = self.cost(done, t)
                if change <= 0 and level + rise <= peak:
                    done, level = done | 1 << t, level + change
                    break
                ready.append((t, level + rise))
            else:
                return done, level, ready

    def least(self, upper: int, states: int) -> int | None:
        """The least peak, or None if there are too many sets."""
        full = (1 << len(self.net.tasks)) - 1
        heap = [(0, 0, 0, 0)]
        best = {0: 0}
        for _ in range(states):
            if not heap:
                return upper
            peak, _, done, level = heapq.heappop(heap)
            if peak > best.get(done, peak):
                continue
            done, level, ready = self.settle(done, level, peak)
            if done == full:
                return peak
            for t, need in ready:
                reached, after = max(peak, need), done | 1 << t
                if reached < upper and reached < best.get(after, reached + 1):
                    best[after] = reached
                    change = self.cost(done, t)[1]
                    heapq.heappush(heap, (reached, -after.bit_count(), after, level + change))
        return None


def measure(net: Net, given: Sequence[int], effort: int) -> tuple[int, float]:
    """The peak that the search finds, and its microseconds per task."""
    calls: list[float] = []
    fixed: list[float] = []  # what converting the arguments takes
    order: list[int] = []
    for _ in range(5 if len(given) < 1000 else 2):
        start = time.perf_counter()
        order = least_peak(net.sizes, net.tasks, given, effort)
        searched = time.perf_counter()
        order_peak(net.sizes, net.tasks, given)
        calls.append(searched - start)
        fixed.append(time.perf_counter() - searched)
    spent = max(0.0, min(calls) - min(fixed))
    return order_peak(net.sizes, net.tasks, order), spent * 1e6 / len(given)


def main() -> None:
    """Prints a line per family and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[24, 48, 300])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--states", type=int, default=20_000, help="of the exact search")
    parser.add_argument("--efforts", type=int, default=3, help="how many, from 0 on")
    args = parser.parse_args()
    efforts = range(args.efforts)
    columns = "".join(f"{f'effort {e}':>10}" for e in efforts) + "".join(
        f"{f'us/task {e}':>10}" for e in efforts
    )
    print(f"{'family':<16}{'tasks':>6}{'rev. dfs':>10}{'breadth':>10}{'least':>10}{columns}")
    for name in args.families:
        for size in args.sizes:
            for seed in range(args.seeds):
                net = FAMILIES[name](size, random.Random(seed))
                given = reverse_depth_first(net)
                depth, breadth = (
                    order_peak(net.sizes, net.tasks, o) for o in (given, breadth_first(net))
                )
                found = [measure(net, given, e) for e in efforts]
                upper = min(p for p, _ in found)
                exact = Exact(net).least(upper, args.states) if len(given) <= 100 else None
                print(
                    f"{name:<16}{len(given):>6}{depth:>10}{breadth:>10}"
                    f"{'?' if exact is None else exact:>10}"
                    + "".join(f"{p:>9}{' ' if exact in (None, p) else '!'}" for p, _ in found)
                    + "".join(f"{t:>10.2f}" for _, t in found),
                    flush=True,
                )


if __name__ == "__main__":
    main()
