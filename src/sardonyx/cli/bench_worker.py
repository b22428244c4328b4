"""A process that measures one runtime. `bench` runs this script, which does not import sardonyx.

Requests and answers are JSON objects, one per line, on standard input and output:

    {"do": "start", "model": PATH, "inputs": NPZ, "types": {NAME: DTYPE},
     "providers": [[NAME, {OPTION: VALUE}]]}
        -> {"seconds": S, "start_bytes": N, "run_bytes": N}
    {"do": "outputs", "file": NPZ}  -> {}
    {"do": "time", "seconds": S}    -> {"best": S}

A request that fails is answered with {"error": MESSAGE}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np


def unused(session: Any, requested: Sequence[tuple[str, Any]]) -> str:
    """Return a message about a requested provider that a session does not use, or nothing."""
    in_use = session.get_providers()
    missing = [name for name, *_ in requested if name not in in_use]
    return f"{missing[0]} is not in use, but {', '.join(in_use)}" if missing else ""


def shortest(call: Callable[[], Any], seconds: float) -> float:
    """Call repeatedly for `seconds` and return the shortest time: noise only adds."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return best


def anonymous_bytes() -> int | None:
    """Return the anonymous memory of this process, or None if the system does not report it."""
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"RssAnon"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value as named arrays of numpy's own types; elements of sequences are numbered."""
    if isinstance(value, (list, tuple)):
        for i, element in enumerate(value):
            yield from flat(f"{name}.{i}", element)
    elif isinstance(value, dict):
        yield from flat(f"{name}.keys", np.array(list(value)))
        yield from flat(f"{name}.values", list(value.values()))
    elif value is not None:
        array = np.asarray(value)
        if array.dtype == object:
            array = array.astype(str)
        elif array.dtype.type.__module__ == "ml_dtypes":
            array = array.astype(np.int8 if "int" in array.dtype.name else np.float32)
        yield name, array


def write_arrays(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write a .npz file."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            append_array(archive, name, array)


def append_array(archive: zipfile.ZipFile, name: str, array: Any) -> None:
    """Append an array to a .npz file; numpy.savez does not accept every name."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str, types: Mapping[str, str]) -> dict[str, Any]:
    """Read inputs from a .npz file; `types` are those that .npz cannot express."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            arrays[name] = array.astype(object)
        if name in types:
            arrays[name] = array.view(getattr(importlib.import_module("ml_dtypes"), types[name]))
    return arrays


class OnnxRuntimeLike:
    """A module with onnxruntime's interface."""

    def __init__(self, module: str, threads: int) -> None:
        self._module = importlib.import_module(module)
        if not hasattr(self._module, "InferenceSession"):
            raise RuntimeError(
                f"{module} does not have onnxruntime's interface: no InferenceSession"
            )
        self._threads = threads
        self._session: Any = None

    def start(self, model: str, providers: list[list[Any]]) -> None:
        """Create the session."""
        options = self._module.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 4
        requested = [tuple(pair) for pair in providers] or [("CPUExecutionProvider", {})]
        self._session = self._module.InferenceSession(model, options, providers=requested)
        if what := unused(self._session, requested):
            raise RuntimeError(what)

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Return all outputs."""
        outputs: list[Any] = self._session.run(None, feed)
        return outputs


class OpenVino:
    """OpenVINO on the CPU, in float32: its default is bfloat16 where a CPU supports that."""

    def __init__(self, module: str, threads: int) -> None:
        self._core: Any = importlib.import_module(module).Core()
        self._hints = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._request: Any = None
        self._names: list[set[str]] = []

    def start(self, model: str, providers: list[list[Any]]) -> None:
        """Compile the model and create an inference request."""
        if providers:
            raise RuntimeError("it is measured only on the CPU")
        compiled = self._core.compile_model(self._core.read_model(model), "CPU", self._hints)
        self._names = [set(i.get_names()) for i in compiled.inputs]
        self._request = compiled.create_infer_request()

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Return all outputs; OpenVINO removes unused inputs from the graph."""
        inputs = {i: feed[n] for i, names in enumerate(self._names) for n in names if n in feed}
        results = self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return list(results.values())


ADAPTERS = {"openvino": OpenVino}  # others have onnxruntime's interface


class BenchSession:
    """One session of one runtime."""

    def __init__(self, module: str, threads: int) -> None:
        self._runtime = ADAPTERS.get(module, OnnxRuntimeLike)(module, threads)
        self._feed: dict[str, Any] = {}

    def start(
        self, model: str, inputs: str, types: dict[str, str], providers: list[list[Any]]
    ) -> dict[str, Any]:
        """Create the session and run it once."""
        self._feed = read_arrays(inputs, types)
        # The inputs were read before: only the session and its run are counted.
        before, began = anonymous_bytes(), time.perf_counter()
        self._runtime.start(model, providers)
        seconds, started = time.perf_counter() - began, anonymous_bytes()
        self._runtime.run(self._feed)
        ran = anonymous_bytes()
        return {
            "seconds": seconds,
            "start_bytes": None if started is None or before is None else started - before,
            "run_bytes": None if ran is None or before is None else ran - before,
        }

    def outputs(self, file: str) -> dict[str, Any]:
        """Write the outputs of a run."""
        results = self._runtime.run(self._feed)
        arrays = dict(pair for i, r in enumerate(results) for pair in flat(str(i), r))
        with open(file, "wb") as target:
            write_arrays(target, arrays)
        return {}

    def time(self, seconds: float) -> dict[str, Any]:
        """Run for `seconds` and return the best time."""
        return {"best": shortest(lambda: self._runtime.run(self._feed), seconds)}


def main(module: str, threads: int) -> None:
    """Answer requests until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to standard error, not between the answers
    worker: BenchSession | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or BenchSession(module, threads)
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # a runtime may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
