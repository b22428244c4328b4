"""How long `import sardonyx` takes beyond numpy, in fresh processes, and a record class to define.

python bench/import_time.py [--repeats 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.base.records import frozen

CODE = """
import time
started = time.perf_counter()
import numpy
between, cpu = time.perf_counter(), time.thread_time()
import sardonyx
print(between - started, time.perf_counter() - between, time.thread_time() - cpu)
"""
CLASSES = 200  # defined in a row, to time one


def once() -> list[float]:
    """Seconds that numpy takes, then sardonyx, and the CPU time of the latter."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def definition_us(decorator: Callable[[type], type]) -> float:
    """Microseconds to define a class of two fields."""

    def define() -> type:
        return decorator(type("Pair", (), {"__annotations__": {"x": int, "y": int}}))

    return min(timeit.repeat(define, number=CLASSES)) / CLASSES * 1e6


def main() -> None:
    """Prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="processes (default 20)")
    repeats = parser.parse_args().repeats
    once()  # compiles the modules and brings them into the page cache
    times = [once() for _ in range(repeats)]
    numpy, sardonyx = (statistics.median(t[i] for t in times) * 1e3 for i in range(2))
    best, cpu = (min(t[i] for t in times) * 1e3 for i in (1, 2))
    print(f"import sardonyx: {sardonyx:.2f} ms beyond numpy (median of {repeats}, best {best:.2f})")
    print(f"CPU time of it:  {cpu:.2f} ms (best)")
    print(f"import numpy:    {numpy:.2f} ms")
    ours, theirs = definition_us(frozen), definition_us(dataclass(frozen=True, slots=True))
    print(f"define a class:  {ours:.0f} us with records.frozen, {theirs:.0f} us as a dataclass")


if __name__ == "__main__":
    main()
