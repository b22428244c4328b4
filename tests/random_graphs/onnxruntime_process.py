"""onnxruntime in a process of its own, so that a crash of it ends nothing else."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

SECONDS = 60.0


class OrtError(Exception):
    """onnxruntime refused a model, or a run, or died of it."""


class OrtProcess:
    """Runs models on onnxruntime, elsewhere; a process that died is replaced."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, model: bytes, feeds: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """The outputs for each of the inputs, in one session."""
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((model, list(feeds)), process.stdin)
            process.stdin.flush()
            answer = _answer(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.stop()
            raise OrtError(f"died with {process.returncode}") from None
        if isinstance(answer, str):
            raise OrtError(answer)
        found: list[list[Any]] = answer
        return found

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _answer(pipe: IO[bytes]) -> Any:
    if not select.select([pipe], [], [], SECONDS)[0]:
        raise EOFError
    return pickle.load(pipe)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.random_graphs.onnxruntime_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"},
    )


def serve() -> None:
    """Answers requests on standard input, one after the other, until it is closed."""
    import onnxruntime  # type: ignore[import-untyped]  # here only, where it may crash

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    while True:
        try:
            model, feeds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
            answer: Any = [session.run(None, f) for f in feeds]
        except Exception as error:  # its classes share no base
            answer = str(error)
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    serve()
