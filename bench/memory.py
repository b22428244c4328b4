"""What runs take in memory: against onnxruntime, against the plan, and over thousands of shapes.

    python bench/memory.py FOLDER [--batch 8] [--only NAME...] [--changing NAME --dim sequence]

FOLDER has models as NAME.onnx with inputs as NAME.npz beside them. Three tables, every figure
anonymous memory (RssAnon) of a fresh process:
runs   what one run adds to a session, its outputs included, here and in onnxruntime;
plans  what a run at --batch adds after one at the batch of the inputs, against what the plan says;
shapes what --runs runs of the model --changing, with lengths of --dim from 1 to --length, add.
Inputs are repeated along their first dim, where the model leaves it open, up to --batch.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MB = 1 << 20
COUNTED_MB = 5  # runs for which onnxruntime needs less are not in the mean
LEAST_RATIO = 0.01  # in the mean: a run may add next to nothing


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        asked = json.loads(sys.argv[2])
        print(json.dumps(TASKS[asked["task"]](asked)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=3, help="processes for each figure")
    parser.add_argument("--changing", help="the model that runs with changing shapes")
    parser.add_argument("--dim", default="sequence")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--runs", type=int, default=10_000)
    given = parser.parse_args()
    models = [
        path
        for path in sorted(given.folder.glob("*.onnx"))
        if path.with_suffix(".npz").exists() and (not given.only or path.stem in given.only)
    ]
    print_runs(models, given)
    if given.batch > 1:
        print_plans(models, given)
    if given.changing:
        print_shapes(given.folder / f"{given.changing}.onnx", given)


def ask(task: str, model: Path, given: Any, **more: Any) -> dict[str, Any]:
    """Return the results of a new process, or the reason of its failure."""
    asked = {k: getattr(given, k) for k in ("batch", "threads", "dim", "length", "runs")}
    text = json.dumps({**asked, "task": task, "model": str(model), **more})
    done = subprocess.run(
        [sys.executable, __file__, "--worker", text], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it died"])[-1][:100]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_runs(models: list[Path], given: Any) -> None:
    """Memory of one run in both runtimes, and the mean of the ratios."""
    print(f"runs at batch {given.batch}: MB that one adds, and MB of all with the session")
    print(f"{'':26}{'onnxruntime':>22}{'sardonyx':>22}{'ratio':>8}")
    ratios = []
    for model in models:
        rows = []
        for runtime in ("onnxruntime", "sardonyx"):
            found = [ask("run", model, given, runtime=runtime) for _ in range(given.starts)]
            wrong = next((f["error"] for f in found if "error" in f), None)
            if wrong is not None:
                print(f"{model.stem:26}{runtime}: {wrong}")
                break
            rows.append({k: statistics.median(f[k] for f in found) for k in ("run", "all")})
        else:
            theirs, ours = rows
            ratio = ours["run"] / theirs["run"] if theirs["run"] > 0.5 else math.nan
            if theirs["run"] > COUNTED_MB:
                ratios.append(max(ratio, LEAST_RATIO))
            figures = "".join(f"{row['run']:11.1f}{row['all']:11.1f}" for row in rows)
            print(f"{model.stem:26}{figures}{ratio:8.2f}", flush=True)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"geometric mean {mean:.3f}, worst {max(ratios):.3f}, of {len(ratios)} models")


def print_plans(models: list[Path], given: Any) -> None:
    """Print what a larger run adds after a smaller one, planned and measured."""
    print(f"\nplans: MB that a run at batch {given.batch} adds after a smaller one")
    print(f"{'':26}{'planned':>11}{'measured':>11}{'off by':>11}{'allowed':>11}")
    for model in models:
        found = ask("growth", model, given)
        if "error" in found:
            print(f"{model.stem:26}{found['error']}")
            continue
        planned, measured = found["planned"], found["measured"]
        allowed = 0.02 * planned + 4
        off = measured - planned
        mark = "" if abs(off) <= allowed else "  above" if off > 0 else "  below"
        print(
            f"{model.stem:26}{planned:11.1f}{measured:11.1f}{off:+11.2f}{allowed:11.2f}{mark}",
            flush=True,
        )


def print_shapes(model: Path, given: Any) -> None:
    """Memory over many runs."""
    print(f"\nshapes: {given.runs} runs of {model.stem}, {given.dim} from 1 to {given.length}")
    found = ask("shapes", model, given)
    print(found.get("error") or ", ".join(f"{k} {v:.1f} MB" for k, v in found.items()))


def anonymous_mb() -> float:
    """RssAnon of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def start(module: Any, asked: dict[str, Any], **entries: str) -> Any:
    """A session."""
    options = module.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    options.intra_op_num_threads = asked["threads"]
    options.log_severity_level = 4
    return module.InferenceSession(asked["model"], options, providers=["CPUExecutionProvider"])


def feeds(session: Any, asked: dict[str, Any], batch: int) -> dict[str, Any]:
    """The saved inputs, repeated along open first dims."""
    with np.load(Path(asked["model"]).with_suffix(".npz"), allow_pickle=False) as saved:
        made = {k: a.astype(object) if a.dtype.kind == "U" else a for k, a in saved.items()}
    for spec in session.get_inputs():
        array = made[spec.name]
        is_open = bool(spec.shape) and not isinstance(spec.shape[0], int)
        if is_open and array.ndim and array.shape[0] == 1:
            made[spec.name] = np.concatenate([array] * batch)
    return made


def run(asked: dict[str, Any]) -> dict[str, float]:
    """Memory of one run, and with that of the session."""
    module = importlib.import_module(asked["runtime"])
    before = anonymous_mb()
    session = start(module, asked)
    started = anonymous_mb()
    inputs = feeds(session, asked, asked["batch"])
    fed = anonymous_mb()
    outputs = session.run(None, inputs)
    added = anonymous_mb() - fed
    del outputs
    return {"run": added, "all": started - before + added}


def growth(asked: dict[str, Any]) -> dict[str, float]:
    """What a larger run adds after a smaller one, whose outputs stay; planned and measured."""
    import sardonyx

    # The reserved rows of caches are planned, and not touched.
    session = start(sardonyx, asked, **{"sardonyx.grow_in_place": "0"})
    small, large = (feeds(session, asked, n) for n in (1, asked["batch"]))
    held = session.run(None, small)
    # What is made for sizes that are new to a session is not memory of runs.
    (arena_of_small, _), (arena_of_large, outputs) = (planned(session, f) for f in (small, large))
    gc.collect()
    before = anonymous_mb()
    more = session.run(None, large)
    added = anonymous_mb() - before
    del held, more
    return {"planned": (arena_of_large - arena_of_small + outputs) / MB, "measured": added}


def planned(session: Any, inputs: dict[str, Any]) -> tuple[int, int]:
    """Bytes of the largest arena, and of all outputs, by the plan."""
    from sardonyx.program.native import NativeSegment
    from sardonyx.program.run import bind

    program = session._compiled.program
    if not all(isinstance(s, NativeSegment) for s in program.segments):
        raise SystemExit("has steps in Python")
    sizes, arenas, outputs = bind(program, inputs), [0], 0
    for segment in program.segments:
        names = [sizes.get(name, -1) for name in segment.names]
        parts = segment._runnable.memory(names)
        if len(parts) < len(segment.items):
            raise SystemExit("has sizes that only a run tells")
        arenas += [part["arena_bytes"] for part in parts]
        outputs += sum(size for part in parts for _, size in part["exports"])
    return max(arenas), outputs


def shapes(asked: dict[str, Any]) -> dict[str, float]:
    """Memory after a first round of shapes and after many runs, in an order that is random."""
    import sardonyx
    import sardonyx._native as native

    session, rng = start(sardonyx, asked), random.Random(0)
    lengths = range(1, asked["length"] + 1)
    made = {n: fed_at(session, asked["dim"], n) for n in lengths}
    for n in lengths:
        session.run(None, made[n])
    gc.collect()
    after_first = anonymous_mb()
    for _ in range(asked["runs"]):
        session.run(None, made[rng.choice(lengths)])
    gc.collect()
    after_all, kept = anonymous_mb(), native.cached_bytes() / MB
    del session
    gc.collect()
    found = {"after the first": after_first, "added by the others": after_all - after_first}
    return {**found, "kept": kept, "kept without the session": native.cached_bytes() / MB}


def fed_at(session: Any, dim: str, length: int) -> dict[str, Any]:
    """Inputs with the dim at this length, other open dims at 1: ones, and noise for floats."""
    rng, made = np.random.default_rng(length), {}
    for spec in session.get_inputs():
        shape = [d if isinstance(d, int) else length if d == dim else 1 for d in spec.shape]
        floats = "float" in spec.type
        made[spec.name] = (
            rng.standard_normal(shape).astype(np.float32) if floats else np.ones(shape, np.int64)
        )
    return made


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "run": run,
    "growth": growth,
    "shapes": shapes,
}


if __name__ == "__main__":
    main()
