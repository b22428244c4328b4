"""Speed and accuracy of `sardonyx.precision`, network by network.

    python -m bench.precision MODEL.onnx ... [--precision bf16] [--threads 2] [--seconds 2]

Each model runs, interleaved, exact and with the precision, on the inputs in the .npz beside it; the
best run of each counts. The error is that of all real outputs together, by their roots of mean
squares, and the largest of any number by the largest number; both are fractions. "weights" is what
the forms of weights take, in MB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx
from sardonyx.reports.weights import weight_layouts_of

KEY = "sardonyx.precision"


def _session(model: Path, precision: str, threads: int) -> Any:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry(KEY, precision)
    return sardonyx.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _errors(exact: Sequence[Any], found: Sequence[Any]) -> tuple[float, float]:
    """By roots of mean squares, and the largest; of all real outputs."""
    squares = total = largest = most = 0.0
    for a, b in zip(exact, found, strict=True):
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f" or not a.size:
            continue
        wide, apart = a.astype(np.float64), a.astype(np.float64) - b
        squares, total = squares + float((apart**2).sum()), total + float((wide**2).sum())
        largest, most = max(largest, float(abs(apart).max())), max(most, float(abs(wide).max()))
    return (squares / total) ** 0.5 if total else 0.0, largest / most if most else 0.0


def _weight_mb(session: Any) -> float:
    """Return the megabytes of weights in layouts of the session's own."""
    found = weight_layouts_of(session._compiled.program).values()
    forms = {form.memory_key: form.own_bytes for of_one in found for form in of_one}
    return sum(forms.values()) / 1e6


def compare(model: Path, precision: str, threads: int, seconds: float) -> str:
    """One row of the table."""
    with np.load(model.with_suffix(".npz"), allow_pickle=False) as arrays:
        feeds = {k: a.astype(object) if a.dtype.kind == "U" else a for k, a in arrays.items()}
    sessions = [_session(model, p, threads) for p in ("exact", precision)]
    errors = _errors(*(s.run(None, feeds) for s in sessions))
    best = [float("inf")] * 2
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, session in enumerate(sessions):
            began = time.perf_counter()
            session.run(None, feeds)
            best[i] = min(best[i], time.perf_counter() - began)
    times = " | ".join(f"{1e3 * b:.2f}" for b in best)
    sizes = " | ".join(f"{_weight_mb(s):.1f}" for s in sessions)
    return (
        f"| {model.stem} | {times} | {best[0] / best[1]:.2f} | {sizes} | "
        f"{errors[0]:.1e} | {errors[1]:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    a = parser.parse_args()
    print(f"| network | exact ms | {a.precision} ms | times as fast | exact MB | {a.precision} MB |"
          " error | largest |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for model in a.models:
        print(compare(model, a.precision, a.threads, a.seconds), flush=True)


if __name__ == "__main__":
    main()
