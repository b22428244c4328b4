"""Models whose weights are stored where a test wants them, and how their sessions hold them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx

ROWS = np.random.default_rng(7).standard_normal((512, 48)).astype(np.float32)  # 96 KB
SQUARE = np.random.default_rng(8).standard_normal((192, 192)).astype(np.float32)  # 144 KB


def external(name: str, array: Any, location: str, offset: int = 0) -> onnx.TensorProto:
    """An initializer whose bytes are in a file."""
    tensor = TensorProto(
        name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
    )
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(array.nbytes)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def info(name: str, shape: Any, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A declared input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: Any, inputs: Any, outputs: Any, weights: Any) -> onnx.ModelProto:
    """A model of opset 21."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def lookup(weight: onnx.TensorProto) -> onnx.ModelProto:
    """y = rows i of a table, which is read in place."""
    return model(
        [helper.make_node("Gather", [weight.name, "i"], ["y"])],
        [info("i", ["N"], TensorProto.INT64)],
        [info("y", None, weight.data_type)],
        [weight],
    )


def product(weight: onnx.TensorProto | None = None) -> onnx.ModelProto:
    """y = x @ w, whose weight is packed."""
    weight = weight or numpy_helper.from_array(SQUARE, "w")
    return model(
        [helper.make_node("MatMul", ["x", weight.name], ["y"])],
        [info("x", ["N", weight.dims[0]])],
        [info("y", ["N", weight.dims[1]])],
        [weight],
    )


def settled(path: Path, made: onnx.ModelProto) -> Path:
    """Writes a model, and waits until its times tell it from a later one."""
    path.write_bytes(made.SerializeToString())
    settle()
    return path


def settle() -> None:
    """Until files that were just written have times of the past."""
    time.sleep(0.03)


def forms(session: sardonyx.InferenceSession) -> dict[Any, np.ndarray]:
    """The arrays that a session reads, by the row that made them and their size."""
    held = session._compiled.program.layouts._arrays
    return {(want.kind, array.nbytes): array for want, array in held.items()}


def large(session: sardonyx.InferenceSession) -> np.ndarray:
    """The one array of at least 64 KB."""
    (array,) = (a for a in forms(session).values() if a.nbytes >= 1 << 16)
    return array


def apart(code: str, **given: Any) -> Mapping[str, Any]:
    """Run code in a new process; return its last line, as JSON. `mb()` is its anonymous memory."""
    head = """
        import gc, json, mmap, os, sys
        import numpy as np
        import sardonyx, sardonyx.session
        from sardonyx.cli.bench_worker import anonymous_bytes
        given = json.loads(sys.argv[1])
        def mb():
            gc.collect()
            return anonymous_bytes() / 1e6
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text, json.dumps(given, default=str)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
