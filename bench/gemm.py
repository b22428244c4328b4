"""Matrix products against the FMA issue limit of one core, and against ONNX Runtime and numpy.

    python bench/gemm.py [--isa avx2,avx512] [--rivals]

The limit is measured on the same core in turns with the products, by multiplications in registers
that wait for nothing. Only products of 64 rows or more are held against it: with fewer, memory is
the limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.cli.limits import Multiplying

ROWS = (1, 4, 16, 49, 64, 128, 197, 256, 384, 512, 1024)
WEIGHTS = ((768, 768), (768, 3072), (3072, 768))
OTHERS = (
    (512, 512, 512),
    (64, 64, 64),
    (384, 64, 384),
    (384, 384, 64),
    (49, 512, 2048),
    (100, 333, 500),
    (127, 257, 129),
    (1000, 100, 1000),
    (256, 2304, 768),
)
LEAST = 64  # rows of a product that is held against the limit
PANEL = 32


def tensor(array: Any) -> tuple[int, int, list[int], list[int]]:
    """An array as native calls take it."""
    onnx = {"float32": 1, "uint8": 2}[array.dtype.name]
    strides = [s // array.itemsize for s in array.strides]
    return (array.ctypes.data, onnx, list(array.shape), strides)


def best(run: Callable[[], Any], seconds: float = 0.15, least: int = 5) -> float:
    """The shortest of many runs, in seconds of this thread alone."""
    shortest, end, n = float("inf"), time.perf_counter() + seconds, 0
    while n < least or time.perf_counter() < end:
        begin = time.thread_time()
        run()
        shortest = min(shortest, time.thread_time() - begin)
        n += 1
    return shortest


def limit(isa: str) -> float:
    """GFLOP/s of multiplications and additions that wait for nothing."""
    return Multiplying("float32", 1, isa).turn() / 1e9


def packed(b: Any, isa: str) -> Any:
    k, n = b.shape
    out = np.empty(-(-n // PANEL) * PANEL * k * 4, np.uint8)
    error = native.call("matmul_pack", [tensor(b)], [tensor(out)], [0], [], 1, isa)
    assert not error, error
    return out


def product(m: int, k: int, n: int, isa: str) -> float:
    """GFLOP/s of a product with a packed right side."""
    rng = np.random.default_rng(m + k + n)
    a, b = (rng.standard_normal(s, np.float32) for s in ((m, k), (k, n)))
    y, right = np.empty((m, n), np.float32), packed(b, isa)
    ints = [0, 0, 0, 2, k, n, 0, 0]
    given = ([tensor(a), tensor(right)], [tensor(y)], ints, [1.0], 1, isa)
    seconds = best(lambda: native.call("matmul_packed", *given))
    np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)
    return 2 * m * k * n / seconds / 1e9


def rivals(m: int, k: int, n: int) -> dict[str, float]:
    """GFLOP/s of ONNX Runtime and of numpy, one thread each."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(m + k + n)
    a, b = (rng.standard_normal(s, np.float32) for s in ((m, k), (k, n)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, (m, k))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (m, n))],
        [numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), options)
    flop = 2 * m * k * n / 1e9
    return {
        "onnxruntime": flop / best(lambda: session.run(None, {"a": a})),
        "numpy": flop / best(lambda: np.matmul(a, b)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    wanted = [isa for isa in native.isas if isa != "base"]
    parser.add_argument("--isa", default=",".join(wanted), help="ISAs, by commas")
    parser.add_argument("--rivals", action="store_true", help="also onnxruntime and numpy")
    given = parser.parse_args()
    shapes = [(m, k, n) for k, n in WEIGHTS for m in ROWS] + list(OTHERS)
    for isa in given.isa.split(","):
        low = 1.0
        for m, k, n in shapes:
            top, speed = limit(isa), product(m, k, n, isa)
            top = max(top, limit(isa))
            line = f"{isa:<10} {m:>5} x {k:>4} x {n:<4} {speed:7.1f} GFLOP/s  {speed / top:5.3f}"
            if given.rivals:
                line += "".join(f"  {k} {speed / v:.2f}x" for k, v in rivals(m, k, n).items())
            if m >= LEAST:
                low = min(low, speed / top)
            print(f"{line}{'' if m >= LEAST else '  (memory)'}", flush=True)
        print(
            f"{isa}: limit {limit(isa):.1f} GFLOP/s, at least {low:.3f} of it from {LEAST} rows on"
        )


if __name__ == "__main__":
    main()
