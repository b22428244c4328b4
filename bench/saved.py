#!/usr/bin/env python3
"""Saves models as optimized, and runs what was saved in onnxruntime against the originals.

    saved.py MODEL.onnx... [--level all] [--keep FOLDER]

Each model is saved twice, whole and with its weights in a file of their own, in a process of its
own so that memory is bounded. "differs" is the largest difference of any output from onnxruntime's
result for the original, relative to the largest value there; inf where types, shapes or texts do
not match. Inputs come from MODEL.npz beside the model, or are made up from the declared shapes
(free dims become 1).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

TYPES = {"float": "float32", "double": "float64"}
LEVELS = ("disable_all", "basic", "extended", "layout", "all")
DATA_FILE = "session.optimized_model_external_initializers_file_name"


def make_inputs(model: pathlib.Path, session: Any) -> dict[str, Any]:
    """The inputs saved beside the model, or made-up ones."""
    saved = model.with_suffix(".npz")
    if saved.exists():
        with np.load(saved, allow_pickle=False) as arrays:
            return {k: a.astype(object) if a.dtype.kind == "U" else a for k, a in arrays.items()}
    rng, feeds = np.random.default_rng(0), {}
    for declared in session.get_inputs():
        shape = [d if isinstance(d, int) and d > 0 else 1 for d in declared.shape]
        name = declared.type.removeprefix("tensor(").removesuffix(")")
        if name == "string":
            feeds[declared.name] = np.full(shape, "a", object)
        elif name in ("float", "double", "float16"):
            feeds[declared.name] = rng.standard_normal(shape).astype(TYPES.get(name, name))
        else:
            feeds[declared.name] = rng.integers(0, 2, shape).astype(name)
    return feeds


def difference(want: Any, got: Any) -> float:
    """The largest difference relative to the largest value; inf where the two are not alike."""
    if type(want) is not type(got):
        return float("inf")
    if isinstance(want, dict):
        if want.keys() != got.keys():
            return float("inf")
        return difference(list(want.values()), [got[k] for k in want])
    if isinstance(want, (list, tuple)):
        pairs = [difference(w, g) for w, g in zip(want, got, strict=False)]
        return max(pairs, default=0.0) if len(want) == len(got) else float("inf")
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype or want.shape != got.shape:
        return float("inf")
    if want.dtype.kind not in "fiu" or np.array_equal(want, got):
        return 0.0 if np.array_equal(want, got) else float("inf")
    a, b = want.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    return float(np.abs(a - b).max(initial=0) / max(np.abs(a).max(initial=0), 1e-30))


def measure(model: pathlib.Path, level: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    """One row for the whole file, one for the file with its weights beside it."""
    import onnx
    import onnxruntime

    import sardonyx

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = make_inputs(model, session)
    want = session.run(None, feeds)
    rows = []
    for data_file in (None, f"{model.stem}.data"):
        path = folder / f"{model.stem}{'' if data_file is None else '.external'}.onnx"
        options = sardonyx.SessionOptions()
        options.optimized_model_filepath = str(path)
        name = f"ORT_ENABLE_{level.upper()}" if level != "disable_all" else "ORT_DISABLE_ALL"
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel[name]
        if data_file is not None:
            options.add_session_config_entry(DATA_FILE, data_file)
        sardonyx.InferenceSession(model, options)
        onnx.checker.check_model(path)
        saved = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        header = onnx.load(path, load_external_data=False)
        opsets = {o.domain or "onnx": o.version for o in header.opset_import}
        data = folder / (data_file or "")
        rows.append(
            {
                "weights": "inside" if data_file is None else "beside",
                "opset": " ".join(f"{k} {v}" for k, v in sorted(opsets.items(), reverse=True)),
                "ir": header.ir_version,
                "bytes": path.stat().st_size + (data.stat().st_size if data.is_file() else 0),
                "differs": difference(want, saved.run(None, feeds)),
            }
        )
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--level", choices=LEVELS, default="all")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the saved models")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.models[0], args.level, args.keep)))
        return
    print(f"{'model':<34} {'weights':<7} {'ir':>2} {'MB':>8} {'differs':>9}  opset")
    worst, failed = 0.0, 0
    for model in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.keep or scratch
            command = [
                sys.executable,
                __file__,
                "--one",
                "--level",
                args.level,
                "--keep",
                str(folder),
            ]
            done = subprocess.run(
                [*command, str(model)], capture_output=True, text=True, check=False
            )
        if done.returncode:
            failed += 1
            lines = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
            print(f"{model.stem:<34} {(lines or ['the process died'])[-1][:160]}", flush=True)
            continue
        for row in json.loads(done.stdout.splitlines()[-1]):
            worst = max(worst, row["differs"])
            print(
                f"{model.stem:<34} {row['weights']:<7} {row['ir']:>2} {row['bytes'] / 1e6:>8.2f} "
                f"{row['differs']:>9.1e}  {row['opset']}",
                flush=True,
            )
    print(f"largest difference {worst:.1e}; {failed} of {len(args.models)} models failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
