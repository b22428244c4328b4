"""The time of a case here and in other runtimes, interleaved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

import sardonyx
from bench.sweep.case import Array, Case
from bench.sweep.draw import MOST_ELEMENTS
from sardonyx.cli.bench_worker import shortest

ROUNDS: Final = 5
ROUND_S: Final = 0.006  # per runtime and round, at least one run
SLOW_S: Final = 2.0  # a case is measured in fewer rounds if one takes longer
_TOLERANCE: Final = {"float16": 2e-2, "bfloat16": 1e-1}

Run = Callable[[], Any]


@dataclass
class Result:
    """Milliseconds per runtime; None where one has no kernel for the case."""

    key: str
    name: str
    op: str
    source: str
    threads: int
    times: dict[str, float | None]
    python_steps: int = 0
    differs: float = 0.0  # from onnxruntime, relative to the largest element
    error: str = ""

    def ratio(self, rival: str) -> float | None:
        """Return how many times as fast as a rival it runs here."""
        ours, theirs = self.times.get("sardonyx"), self.times.get(rival)
        return None if not ours or not theirs else theirs / ours

    def record(self) -> dict[str, Any]:
        """Return what a line of the results file has."""
        return asdict(self)


def measure(case: Case, threads: int, rivals: list[str]) -> Result:
    """Time a case in all runtimes that can run it."""
    result = Result(case.key, case.name, case.op, case.source, threads, {})
    model, feed = case.model(), case.feed()
    runs: dict[str, Run] = {}
    try:
        session = _onnx_session(sardonyx, model, threads)
        if _is_too_large(session):
            result.error = f"an output has more than {MOST_ELEMENTS} elements"
            return result
        runs["sardonyx"] = lambda: session.run(None, feed)
        ours = runs["sardonyx"]()
    except sardonyx.SardonyxError as error:
        result.error = str(error).splitlines()[0][:160]
        return result
    result.python_steps = session._compiled.program.python_steps
    for rival in rivals:
        run = _rival(rival, model, feed, threads)
        if run is not None:
            runs[rival] = run
    if "onnxruntime" in runs:
        result.differs = _difference(ours, runs["onnxruntime"]())
    best = dict.fromkeys(runs, math.inf)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            best[name] = min(best[name], shortest(run, ROUND_S))
        if time.perf_counter() - began > SLOW_S:
            break
    result.times = {r: best[r] * 1e3 if r in best else None for r in ("sardonyx", *rivals)}
    return result


def _onnx_session(module: Any, model: bytes, threads: int) -> Any:
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return module.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _is_too_large(session: Any) -> bool:
    shapes = [value.shape for value in session.get_outputs()]
    known = (s for s in shapes if s is not None and all(isinstance(n, int) for n in s))
    return any(math.prod(shape) > MOST_ELEMENTS for shape in known)


def _rival(name: str, model: bytes, feed: Mapping[str, Array], threads: int) -> Run | None:
    """Return a call that runs the model in another runtime; None if that cannot."""
    try:
        run = {"onnxruntime": _onnxruntime, "openvino": _openvino, "torch": _torch}[name](
            model, feed, threads
        )
        run()
    except ImportError:
        raise
    except Exception:  # each runtime has its own exceptions for cases without a kernel
        return None
    return run


def _onnxruntime(model: bytes, feed: Mapping[str, Array], threads: int) -> Run:
    import onnxruntime  # type: ignore[import-untyped]

    session = _onnx_session(onnxruntime, model, threads)
    return lambda: session.run(None, feed)


def _openvino(model: bytes, feed: Mapping[str, Array], threads: int) -> Run:
    import openvino  # type: ignore[import-untyped]

    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(
        openvino.Core().read_model(model), "CPU", config
    ).create_infer_request()
    return lambda: request.infer(feed)


def _torch(model: bytes, feed: Mapping[str, Array], threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    options = {"device": "cpu", "use_cuda_graphs": "0"}
    session = sardonyx.InferenceSession(model, providers=[("TorchExecutionProvider", options)])
    return lambda: session.run(None, feed)


def _difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the largest difference beyond what the type allows, over the largest element."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(a, np.ndarray) or a.dtype.kind in "OUS" or not a.size:
            continue
        if a.shape != b.shape:
            return math.inf
        x, y = a.astype(np.float64), np.asarray(b).astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return math.inf
        gap = np.abs(x - y)[finite].max(initial=0.0) / max(
            np.abs(y[finite]).max(initial=0.0), 1e-30
        )
        worst = max(worst, gap if gap > _TOLERANCE.get(a.dtype.name, 1e-3) else 0.0)
    return float(worst)
