"""Products with weights of few bits by their kernels against onnxruntime, on all threads.

    python -m bench.nbits [--rows 1,2,8,64] [--sizes 3072x3072,3072x9216] [--bits 4] [--block 32]

Both run in turns over so many copies of the weights that none is found in a cache, and the best of
several rounds counts. GB/s are those of weights, scales and zero points read once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

import sardonyx._native as native
from sardonyx.graph.build import Builder, constant
from sardonyx.graph.dtype import F32, DType, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.ops.declare import INTERNAL
from sardonyx.program.call import Call, Stored
from sardonyx.providers.cpu import lowered
from sardonyx.weights.const import Ref, Source
from tests.kernels import tensor

Array = np.ndarray[Any, np.dtype[Any]]
CACHE_BYTES = 160 << 20  # of all copies together, at least


@dataclass(frozen=True)
class Case:
    """One shape: rows, depth, columns, and how weights are stored."""

    m: int
    k: int
    n: int
    bits: int
    block: int
    level: int
    layout: str  # "ms" as com.microsoft has it, "kn" as DequantizeLinear

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @property
    def size_bytes(self) -> int:
        weights = self.n * self.blocks * self.block * self.bits // 8
        return weights + self.n * self.blocks * 4 + self.n * self.blocks * self.bits // 8


def weights(case: Case, seed: int) -> tuple[Array, Array, Array]:
    """Steps, scales and zero points in com.microsoft's form."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 256, (case.n, case.blocks, case.block * case.bits // 8), np.uint8)
    scale = rng.uniform(0.01, 0.02, case.n * case.blocks).astype(np.float32)
    zero = rng.integers(0, 256, (case.n, -(-case.blocks * case.bits // 8)), np.uint8)
    return q, scale, zero


def ours(case: Case, x: Array, q: Array, scale: Array, zero: Array) -> Callable[[], Any]:
    """The kernel on the same bytes in either layout, though they mean other weights in each."""
    is_k_major = case.layout == "kn"
    narrow, u8 = by_name(f"u{case.bits}"), by_name("u8")
    types: list[tuple[DType, tuple[int, ...]]] = [
        (u8, q.shape),
        (F32, scale.shape),
        (u8, zero.shape),
    ]
    if is_k_major:
        grid = (case.blocks, case.n)
        types = [(narrow, (case.k, case.n)), (F32, grid), (narrow, grid)]
    values = [Value("x", Fact(F32, x.shape))]
    for array, (dtype, shape) in zip((q, scale, zero), types, strict=True):
        source = Source(memoryview(array).cast("B"), "bench")
        values.append(constant(Ref(source, 0, array.nbytes, dtype, shape)))
    graph = Graph()
    build = Builder(graph, graph.scope)
    node = build.node(
        "MatMulNBits", *values, domain=INTERNAL, K=case.k, N=case.n, bits=case.bits,
        block_size=case.block, k_major=int(is_k_major), level=case.level,
    )  # fmt: skip
    call = lowered(node)
    assert isinstance(call, Call), call
    assert isinstance(call.inputs[1], Stored)
    y = np.empty((case.m, case.n), np.float32)
    inputs = (x, q.reshape(-1), scale, zero.reshape(-1))
    arguments = [tensor(a) for a in inputs], [tensor(y)], list(call.ints), list(call.floats)

    def run(_: Any = (inputs, y)) -> Any:
        wrong = native.call(call.row, *arguments, splits=0)
        assert not wrong, wrong
        return y

    return run


def theirs(case: Case, x: Array, made: list[tuple[Array, Array, Array]]) -> Callable[[], Any]:
    """All copies by one session of onnxruntime, whose threads would else wait for each other."""
    nodes, constants = [], []
    for i, arrays in enumerate(made):
        names = [f"{name}{i}" for name in "qsz"]
        constants += [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
        nodes.append(
            helper.make_node(
                "MatMulNBits", ["x", *names], [f"y{i}"], domain="com.microsoft", K=case.k,
                N=case.n, bits=case.bits, block_size=case.block, accuracy_level=case.level,
            )
        )  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(len(made))],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = native.usable_cpus()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]


def best(sets: list[list[Callable[[], Any]]], copies: int, rounds: int) -> list[float]:
    """The shortest mean time of one product of each set, taken in turns."""
    found = [float("inf")] * len(sets)
    for _ in range(rounds):
        for i, runs in enumerate(sets):
            time.sleep(0.05)  # threads of the other, which stay awake for a while, fall asleep
            began = time.perf_counter()
            for run in runs:
                run()
            found[i] = min(found[i], (time.perf_counter() - began) / copies)
    return found


def show(case: Case, rounds: int, rival: bool) -> None:
    """One line: speeds of both, and how much faster."""
    x = np.random.default_rng(1).normal(size=(case.m, case.k)).astype(np.float32)
    copies = max(1, -(-CACHE_BYTES // case.size_bytes)) if case.m < 32 else 2
    made = [weights(case, i) for i in range(copies)]
    sets = [[ours(case, x, *w) for w in made]]
    if rival and case.layout == "ms":
        sets.append([theirs(case, x, made)])
        gap = np.abs(sets[0][0]() - sets[1][0]()).max() / np.abs(sets[0][0]()).max()
        assert gap < (0.05 if case.level == 4 else 1e-4), gap
    times = best(sets, copies, rounds)
    flops, size = 2 * case.m * case.k * case.n, case.size_bytes
    text = "   ".join(f"{size / t / 1e9:6.1f} GB/s {flops / t / 1e9:7.1f} GFLOP/s" for t in times)
    ratio = f"{times[1] / times[0]:6.2f}x" if len(times) > 1 else ""
    name = f"{case.layout} level {case.level}: {case.m} x {case.k} x {case.n}"
    print(f"{name:34} {text} {ratio}", flush=True)


def main() -> None:
    """All shapes that the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,2,4,8,64")
    parser.add_argument("--sizes", default="3072x3072,3072x9216,8192x3072,3072x32064")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--levels", default="0,4")
    parser.add_argument("--layouts", default="ms,kn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without onnxruntime")
    args = parser.parse_args()
    print(f"{native.isa}: sardonyx, onnxruntime")
    for layout in args.layouts.split(","):
        for level in map(int, args.levels.split(",")):
            for size in args.sizes.split(","):
                for m in map(int, args.rows.split(",")):
                    k, n = map(int, size.split("x"))
                    case = Case(m, k, n, args.bits, args.block, level, layout)
                    show(case, args.rounds, not args.alone)


if __name__ == "__main__":
    main()
