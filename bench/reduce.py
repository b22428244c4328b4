"""Reductions, softmax, normalizations and TopK against onnxruntime, kernel by kernel.

    python bench/reduce.py [NAME...] [--repeats 30]

Each op is a model of one node in onnxruntime with one thread, and one kernel call here. Both take
turns in one process; a figure is the least time of many runs, less that of a call on one element,
which is what calling costs. NAME keeps the rows whose name contains one of the words.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import helper, numpy_helper

import sardonyx._native as native
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.program.call import Call
from sardonyx.providers.cpu import lowered

Array = np.ndarray[Any, np.dtype[Any]]
BURST_S = 0.002  # of runs between two turns


@dataclass(frozen=True)
class Row:
    """An op on a shape; `constants` are its further inputs."""

    op: str
    shape: tuple[int, ...]
    constants: tuple[Any, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def __str__(self) -> str:
        given = [f"{k}={v}" for k, v in self.attrs.items()]
        axes = [f"axes={c.tolist()}" for c in self.constants if c.dtype == np.int64]
        return " ".join((self.op, "x".join(map(str, self.shape)), *given, *axes))


def _axes(*axes: int) -> tuple[Array]:
    return (np.array(axes, np.int64),)


def _floats(*counts: int) -> tuple[Array, ...]:
    return tuple(np.linspace(0.5, 1.5, n, dtype=np.float32) for n in counts)


ROWS = (
    Row("Softmax", (1536, 128)),
    Row("Softmax", (12, 1024, 1024)),
    Row("Softmax", (3072, 49)),
    Row("Softmax", (1, 1000)),
    Row("Softmax", (1, 16, 8400), attrs={"axis": 1}),
    Row("LogSoftmax", (128, 1000)),
    Row("LayerNormalization", (512, 768), _floats(768, 768)),
    Row("LayerNormalization", (3136, 96), _floats(96, 96)),
    Row("RMSNormalization", (512, 768), _floats(768)),
    Row("ReduceMean", (1, 7, 7, 2048), _axes(1, 2)),
    Row("ReduceMean", (1, 2048, 7, 7), _axes(2, 3)),
    Row("ReduceMean", (1, 56, 56, 96), _axes(1, 2)),
    Row("ReduceMean", (512, 768), _axes(-1)),
    Row("ReduceSum", (64, 512, 256), _axes(1)),
    Row("ReduceSum", (1000000,), _axes(0)),
    Row("ReduceSum", (4096, 256), _axes(0)),
    Row("ReduceSum", (100000, 3), _axes(1)),
    Row("ReduceSum", (32, 64, 28, 28), _axes(0, 2, 3)),
    Row("ReduceMax", (512, 768), _axes(-1)),
    Row("ReduceMax", (64, 512, 256), _axes(1)),
    Row("ReduceL2", (512, 512), _axes(-1)),
    Row("ReduceProd", (512, 512), _axes(-1)),
    Row("ReduceLogSumExp", (512, 512), _axes(-1)),
    Row("ArgMax", (1, 50257), attrs={"axis": -1}),
    Row("ArgMax", (1, 21, 128, 128), attrs={"axis": 1}),
    Row("CumSum", (256, 1024), (np.array(1, np.int64),)),
    Row("BatchNormalization", (1, 64, 56, 56), _floats(64, 64, 64, 64)),
    Row("InstanceNormalization", (1, 64, 56, 56), _floats(64, 64)),
    Row("GroupNormalization", (1, 320, 32, 32), _floats(320, 320), {"num_groups": 32}),
    Row("LpNormalization", (512, 512)),
    Row("LRN", (1, 96, 27, 27), attrs={"size": 5}),
    Row("TopK", (1, 8400), (np.array([300], np.int64),), outputs=2),
    Row("TopK", (100, 1000), (np.array([5], np.int64),), outputs=2),
)  # fmt: skip


def model_of(row: Row, shape: tuple[int, ...]) -> bytes:
    """The row as a model; the output's dims are left to inference."""
    names = [f"c{i}" for i in range(len(row.constants))]
    outputs = [f"y{i}" for i in range(row.outputs)]
    node = helper.make_node(row.op, ["x", *names], outputs, **row.attrs)
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    constants = [numpy_helper.from_array(c, n) for c, n in zip(row.constants, names, strict=True)]
    infos = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph([node], "row", [value], infos, constants)
    opsets = [helper.make_opsetid("", 24)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def theirs(model: bytes, x: Array) -> tuple[Callable[[], Any], list[Array]]:
    """A run of onnxruntime with everything bound beforehand, and its results."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    results = session.run(None, {"x": x})
    for info, result in zip(session.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(info.name, ort.OrtValue.ortvalue_from_numpy(result))
    return lambda: session.run_with_iobinding(binding), results


def ours(model: bytes, x: Array, likes: list[Array]) -> tuple[Callable[[], Any], list[Array]]:
    """A call of the kernel, and what it writes."""
    graph: Graph = load(model).graph
    infer(graph)
    (node,) = graph.nodes
    call = lowered(node)
    assert isinstance(call, Call), call
    arrays = [None if v is None else x if v.const is None else v.const.read() for v in call.inputs]
    outputs = [np.empty_like(a) for a in likes]
    tensors = [(0, 0, [], []) if a is None else _tensor(a) for a in arrays]
    targets = [_tensor(a) for a in outputs]
    arguments = (call.row, tensors, targets, list(call.ints), list(call.floats))
    kept = (arrays, outputs)

    def run() -> Any:
        assert kept
        return native.call(*arguments)

    return run, outputs


def _tensor(array: Array) -> tuple[int, int, list[int], list[int]]:
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.ctypes.data, dtype, list(array.shape), [s // array.itemsize for s in array.strides]


def least(runs: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The least seconds of each, in turns of short bursts."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            end = time.perf_counter() + BURST_S
            while True:
                started = time.perf_counter()
                run()
                now = time.perf_counter()
                best[i] = min(best[i], now - started)
                if now > end:
                    break
    return best


def measure(row: Row, repeats: int) -> tuple[float, float]:
    """Seconds here and there."""
    rng = np.random.default_rng(0)
    runs = []
    for shape in (row.shape, tuple(1 for _ in row.shape)):
        small = shape != row.shape
        given = Row("ReduceSum", shape) if small else row
        model = model_of(given, shape)
        x = rng.standard_normal(shape).astype(np.float32)
        their, expected = theirs(model, x)
        our, found = ours(model, x, expected)
        our()
        if not small:
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        runs += [our, their]
    here, there, here_call, there_call = least(runs, repeats)
    return here - here_call, there - there_call


def main() -> None:
    """Prints one line for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    for row in ROWS:
        title = str(row)
        if options.names and not any(n in title for n in options.names):
            continue
        here, there = measure(row, options.repeats)
        print(f"{title:55} {here * 1e6:9.1f} us {there * 1e6:9.1f} us {there / here:6.2f}x")


if __name__ == "__main__":
    main()
