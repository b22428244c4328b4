"""How long `import sardonyx` takes beyond numpy, in fresh processes.

python bench/import_time.py [--repeats 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CODE = """
import time
started = time.perf_counter()
import numpy
between = time.perf_counter()
import sardonyx
print(between - started, time.perf_counter() - between)
"""


def once() -> tuple[float, float]:
    """Seconds that numpy takes, and then sardonyx."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    numpy, sardonyx = map(float, done.stdout.split())
    return numpy, sardonyx


def main() -> None:
    """Prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="processes (default 20)")
    repeats = parser.parse_args().repeats
    once()  # compiles the modules and brings them into the page cache
    times = [once() for _ in range(repeats)]
    numpy, sardonyx = (statistics.median(t[i] for t in times) * 1e3 for i in range(2))
    best = min(t[1] for t in times) * 1e3
    print(f"import sardonyx: {sardonyx:.2f} ms beyond numpy (median of {repeats}, best {best:.2f})")
    print(f"import numpy:    {numpy:.2f} ms")


if __name__ == "__main__":
    main()
