"""A runtime in a process of its own, which loads and runs one model after the other.

Requests and answers are pickled: the path of a model, answered with its inputs as (name, type,
shape); then feeds, each answered with the outputs. A string is the message of an error.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

SECONDS: Final = 60.0  # for a request
ROOT: Final = Path(__file__).resolve().parents[1]


class Refused(str):
    """The message of a model or feed that was refused, or the runtime died of."""

    __slots__ = ()


class Runtime:
    """Runs models on one runtime, elsewhere; a process that died is replaced."""

    def __init__(self, module: str, optimizes: bool = True) -> None:
        self._arguments = [module, "" if optimizes else "plain"]
        self._process: subprocess.Popen[bytes] | None = None
        self._path: Path | None = None

    def load(self, path: Path) -> Any:
        """Return the declared inputs of a model, or Refused."""
        answer = self._ask(str(path))
        self._path = None if isinstance(answer, Refused) else path
        return answer

    def run(self, feed: dict[str, Any]) -> Any:
        """Return the outputs of the model that was loaded last, or Refused."""
        if self._process is None and self._path is not None:
            self._ask(str(self._path))  # the process died of another feed
        return self._ask(feed)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, request: Any) -> Any:
        process = self._process = self._process or _start(self._arguments)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            answer = _answer(process.stdout)
        except TimeoutError:
            self.stop()
            return Refused(f"no answer within {SECONDS:g} s")
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.stop()
            return Refused(f"died with {process.returncode}")
        return Refused(answer) if isinstance(answer, str) else answer


def _answer(pipe: IO[bytes]) -> Any:
    if not select.select([pipe], [], [], SECONDS)[0]:
        raise TimeoutError
    return pickle.load(pipe)


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )


def serve(name: str, level: str) -> None:
    """Answer requests on standard input, one after the other, until it is closed."""
    import importlib

    runtime: Any = importlib.import_module(name)
    runtime.set_default_logger_severity(4)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    session: Any = None
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if isinstance(request, str):
                session = None
                session = _session(runtime, request, level)
                inputs = [(i.name, i.type, i.shape) for i in session.get_inputs()]
                answer: Any = inputs
            else:
                answer = _run(runtime, session, request)
        except Exception as error:  # its classes share no base
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, out)
        out.flush()


def _session(runtime: Any, path: str, level: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if level == "plain":
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(runtime: Any, session: Any, feed: dict[str, Any]) -> list[Any]:
    """Return the outputs; numpy's types only, since a reader may have no others."""
    end = time.monotonic() + SECONDS
    if any(_is_small_float(v) for v in feed.values()):
        values = {k: _ort_value(runtime, v) for k, v in feed.items()}
        names = [o.name for o in session.get_outputs()]
        found = [v.numpy() for v in session.run_with_ort_values(names, values)]
    else:
        found = session.run(None, feed)
    assert time.monotonic() < end
    return [_dense(x) for x in found]


def _is_small_float(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "type", type).__module__ == "ml_dtypes"


_ONNX: Final = {
    "bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19,
    "float8_e5m2fnuz": 20, "uint4": 21, "int4": 22, "float4_e2m1fn": 23, "float8_e8m0fnu": 24,
    "uint2": 25, "int2": 26,
}  # fmt: skip


def _ort_value(runtime: Any, value: Any) -> Any:
    if not _is_small_float(value):
        return runtime.OrtValue.ortvalue_from_numpy(value)
    bits = value.view("uint16" if value.dtype.itemsize == 2 else "uint8")
    make = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type
    return make(bits, _ONNX[value.dtype.name])


def _dense(value: Any) -> Any:
    """Return a value as it is; a sparse tensor as a list of its arrays."""
    if type(value).__name__ != "SparseTensor":
        return value
    kind = value.format() if callable(getattr(value, "format", None)) else value.format
    return [str(kind), list(value.dense_shape()), value.values()]


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
