"""How long compiling takes, by stage and per node.

    python bench/compile.py MODEL.onnx... | FOLDER [--repeats 5] [--json FILE]

Each model is compiled in a process of its own: once cold, with the imports that it needs, then
--repeats times warm. The figures are microseconds per node of the loaded graph, medians of the warm
runs; the last line says which total is the worst.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

STAGES = ("load", "infer", "optimize", "lower", "place", "schedule", "memory", "program")
NETWORK = 32  # nodes of a model that counts as a network


def measure(path: str, repeats: int) -> dict[str, Any]:
    """Compiles one model in this process: first cold, then warm."""
    started = time.perf_counter()
    from sardonyx.compile import Options, compile
    from sardonyx.load import load
    from sardonyx.providers import resolve

    imports = time.perf_counter() - started
    options = Options(providers=resolve(None, None)[1])
    runs = [_once(compile, path, options) for _ in range(repeats + 1)]
    warm = runs[1:] or runs
    return {
        "nodes": sum(1 for _ in load(path).graph.all_nodes()),
        "imports_s": imports,
        "cold_s": runs[0]["total"],
        "total_s": statistics.median(r["total"] for r in warm),
        "stages_s": {s: statistics.median(r[s] for r in warm) for s in STAGES},
    }


def _once(compile: Any, path: str, options: Any) -> dict[str, float]:
    started = time.perf_counter()
    compiled = compile(path, options)
    total = time.perf_counter() - started  # before the result is freed
    seconds: dict[str, float] = compiled.stages.seconds()
    return {**dict.fromkeys(STAGES, 0.0), **seconds, "total": total}


def in_process(path: pathlib.Path, repeats: int) -> dict[str, Any]:
    """The same in a fresh process; an error is its last line."""
    command = [sys.executable, __file__, str(path), "--repeats", str(repeats), "--one"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def row(name: str, found: dict[str, Any], width: int) -> str:
    """One line of the table."""
    if "error" in found:
        return f"{name:<{width}}  {found['error'][:100]}"
    n_nodes = max(1, found["nodes"])
    stages = "".join(f"{found['stages_s'][s] / n_nodes * 1e6:>9.1f}" for s in STAGES)
    total = found["total_s"] / n_nodes * 1e6
    times = f"{found['total_s'] * 1e3:>9.1f}{found['cold_s'] * 1e3:>9.1f}"
    return f"{name:<{width}}{n_nodes:>7}{stages}{total:>9.1f}{times}"


def worst(results: dict[str, dict[str, Any]]) -> str:
    """The model that takes longest per node."""
    costs = {n: r["total_s"] / max(1, r["nodes"]) * 1e6 for n, r in results.items()}
    if not costs:
        return "none"
    name = max(costs, key=lambda n: costs[n])
    return f"{costs[name]:.1f} µs per node ({name})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path, help="model files or folders")
    parser.add_argument("--repeats", type=int, default=5, help="warm runs (default 5)")
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures to this file")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(str(arguments.models[0]), arguments.repeats)))
        return
    paths = [p for m in arguments.models for p in (sorted(m.glob("*.onnx")) if m.is_dir() else [m])]
    width = max((len(p.stem) for p in paths), default=5) + 2
    heads = "".join(f"{s:>9}" for s in (*STAGES, "total"))
    print(f"{'µs per node':<{width}}{'nodes':>7}{heads}{'ms':>9}{'cold ms':>9}")
    results = {}
    for path in paths:
        results[path.stem] = found = in_process(path, arguments.repeats)
        print(row(path.stem, found, width), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2))
    ran = {n: r for n, r in results.items() if "nodes" in r}
    print(f"{len(ran)} of {len(paths)} models compiled")
    # A forest is one node of any size: what it takes says nothing of the cost of a node.
    networks = {n: r for n, r in ran.items() if r["nodes"] >= NETWORK}
    print(f"worst: {worst(networks)} of models with {NETWORK} nodes or more; {worst(ran)} of all")


if __name__ == "__main__":
    main()
