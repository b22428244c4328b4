"""Runs one program of this folder and prints what it found, as JSON, and how long it took.

    python run.py use_magika ROUNDS     at least as many rounds of its work, more if they are short

A program is `make`, which opens what the package has, and `use`, which works on a made-up input.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

MARK = "result: "


def plain(value: Any) -> Any:
    """Return the result of a package in the types of JSON."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be compared: {value!r}")


def runtime() -> dict[str, Any]:
    """Return the file of the imported onnxruntime, and whether its native library is loaded."""
    found = sys.modules["onnxruntime"]
    maps = Path("/proc/self/maps").read_text()
    return {"file": found.__file__, "has_library": "libonnxruntime" in maps}


def main() -> None:
    name, rounds = sys.argv[1], int(sys.argv[2])
    program = importlib.import_module(name)
    thing = program.make()
    found = plain(program.use(thing))
    times: list[float] = []
    while len(times) < rounds or (sum(times) < 0.5 and len(times) < 50):
        start = time.perf_counter()
        program.use(thing)
        times.append(time.perf_counter() - start)
    said = {"found": found, "run": min(times), "later": sum(times), "runtime": runtime()}
    print(f"\n{MARK}{json.dumps(said)}")


if __name__ == "__main__":
    main()
