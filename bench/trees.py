"""Tree ensembles against onnxruntime, one thread each: `python bench/trees.py zoo`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]

import sardonyx._native as native
from sardonyx.graph.dim import evaluate
from sardonyx.graph.dtype import by_numpy
from sardonyx.graph.graph import Node
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered

Array = np.ndarray[Any, np.dtype[Any]]


def tensor(array: Array | None) -> tuple[int, int, list[int], list[int]]:
    """An array as native calls take it."""
    if array is None:
        return (0, 0, [], [])
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    strides = [s // array.itemsize for s in array.strides]
    return (array.ctypes.data, dtype.onnx, list(array.shape), strides)


def runner(node: Node, call: Call, x: Array) -> tuple[Callable[[], None], list[Array]]:
    """A function that runs the kernel of a forest, and the arrays that it fills."""
    dims = {str(d): n for d, n in zip(call.inputs[0].tensor.dims, x.shape, strict=True)}  # type: ignore[union-attr]
    arrays = [x, *(None if v is None else v.const.read() for v in call.inputs[1:])]  # type: ignore[union-attr]
    facts = [v.tensor for v in node.outputs]
    outs = [np.empty([evaluate(d, dims) for d in f.dims], f.dtype.np) for f in facts]
    given, made = [tensor(a) for a in arrays], [tensor(a) for a in outs]
    ints = [evaluate(i, dims) for i in call.ints]

    def run() -> None:
        assert arrays
        error = native.call(call.row, given, made, ints, list(call.floats))
        assert not error, error

    return run, outs


def best(run: Callable[[], Any], seconds: float) -> float:
    """The shortest of many runs, in milliseconds."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def compare(path: Path, rows: int, seconds: float) -> str:
    """One line: milliseconds of both, and how far results are apart."""
    graph = load(str(path)).graph
    infer(graph)
    node = next(n for n in graph.nodes if n.op.name.startswith("TreeEnsemble"))
    call = lowered(node)
    if isinstance(call, No) or not isinstance(call, Call):
        return f"{path.stem:34} {call}"
    (name, x), *_ = np.load(path.with_suffix(".npz")).items()
    x = np.ascontiguousarray(np.resize(x, (rows, x.shape[1])))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options)
    run, outs = runner(node, call, x)
    theirs = best(lambda: session.run(None, {name: x}), seconds)
    ours = best(run, seconds)
    theirs = min(theirs, best(lambda: session.run(None, {name: x}), seconds))
    expected = session.run(None, {name: x})
    gap = max(
        float(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30))
        for a, b in zip(outs, expected, strict=True)
    )
    times = f"{ours:8.3f} ms, onnxruntime {theirs:8.3f} ms: {theirs / ours:5.1f}x"
    return f"{path.stem:34} rows {rows:5}  {times}, gap {gap:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="models with their inputs in .npz beside them")
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args()
    prefixes = ("lightgbm", "sklearn_random", "sklearn_gradient", "xgboost")
    for path in sorted(options.folder.glob("*.onnx")):
        if path.stem.startswith(prefixes):
            for rows in (1, 16, 256):
                print(compare(path, rows, options.seconds), flush=True)


if __name__ == "__main__":
    main()
