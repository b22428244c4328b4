"""Matmuls with n-bit weights, as they are stored.

    python -m bench.nbits [--rows 1,2,8,64] [--sizes 3072x3072,3072x9216] [--bits 4] [--block 32]

Layouts are "ms", as com.microsoft's MatMulNBits has it, and "kn", that of DequantizeLinear. Bytes
are those of weights, scales and zero points read once.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bench.steps import Array, Case, Made, copies_of, floats, main, one, parser, serialized

FEW = 16  # rows for which reading the weights takes most of the time
_TYPES = {2: TensorProto.UINT2, 4: TensorProto.UINT4, 8: TensorProto.UINT8}
_RIVALS_TOLERANCE = {0: 1e-4, 4: 0.05}


@dataclass(frozen=True)
class Shape:
    """One shape: rows, depth, columns, and how weights are stored."""

    m: int
    k: int
    n: int
    bits: int = 4
    block: int = 32
    level: int = 0
    layout: str = "ms"

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @property
    def size_bytes(self) -> int:
        weights = self.n * self.blocks * self.block * self.bits // 8
        return weights + self.n * self.blocks * 4 + self.n * self.blocks * self.bits // 8

    def weights(self) -> tuple[Array, Array, Array]:
        """Steps, scales and zero points in com.microsoft's form."""
        rng = np.random.default_rng(0)
        q = rng.integers(0, 256, (self.n, self.blocks, self.block * self.bits // 8), np.uint8)
        scale = rng.uniform(0.01, 0.02, self.n * self.blocks).astype(np.float32)
        zero = rng.integers(0, 256, (self.n, -(-self.blocks * self.bits // 8)), np.uint8)
        return q, scale, zero

    def made(self) -> Made:
        """As many copies as no cache holds, where weights are what takes the time."""
        copies = copies_of(self.size_bytes) if self.m <= FEW else 2
        x, weights = floats(self.m, self.k), self.weights()  # equal ones are stored apart
        if self.layout == "kn":
            return self._dequantized(x, weights, copies)
        return one(
            "MatMulNBits", {"x": x}, lambda i: weights, copies=copies, domain="com.microsoft",
            K=self.k, N=self.n, bits=self.bits, block_size=self.block, accuracy_level=self.level,
        )  # fmt: skip

    def _dequantized(self, x: Array, weights: tuple[Array, ...], copies: int) -> Made:
        """The same bytes read by a DequantizeLinear, though they mean other weights there."""
        nodes, held = [], []
        grid, kind = (self.blocks, self.n), _TYPES[self.bits]
        q, scale, zero = weights
        n_zeros = -(-self.blocks * self.n * self.bits // 8)  # columns have no ends of their own
        q_bytes, zero_bytes = q.tobytes(), zero.tobytes()[:n_zeros]
        for i in range(copies):
            held += [
                helper.make_tensor(f"q{i}", kind, (self.k, self.n), q_bytes, raw=True),
                numpy_helper.from_array(scale.reshape(grid), f"s{i}"),
                helper.make_tensor(f"z{i}", kind, grid, zero_bytes, raw=True),
            ]
            nodes += [
                helper.make_node(
                    "DequantizeLinear", [f"q{i}", f"s{i}", f"z{i}"], [f"w{i}"], axis=0,
                    block_size=self.block,
                ),
                helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]),
            ]  # fmt: skip
        outputs = [f"y{i}" for i in range(copies)]
        return Made(serialized(nodes, {"x": x}, outputs, held), {"x": x})

    def case(self) -> Case:
        name = f"{self.layout} level {self.level}: {self.m} x {self.k} x {self.n}"
        goal = 0.85 if self.m <= FEW else 0.8
        tolerance = _RIVALS_TOLERANCE[self.level]
        family = f"{self.bits}-bit product"
        return Case(family, name, ("matmul_nbits",), self.made, goal, tolerance)


def cases() -> list[Case]:
    """Products of a language model."""
    sizes = ((3072, 3072), (3072, 9216), (8192, 3072))
    ms = [Shape(m, *size, level=v) for v in (0, 4) for size in sizes for m in (1, 4, 64)]
    kn = [Shape(m, 3072, 9216, layout="kn") for m in (1, 4, 64)]
    return [shape.case() for shape in (*ms, *kn)]


def _asked(given: argparse.Namespace) -> list[Case]:
    return [
        Shape(m, *map(int, size.split("x")), given.bits, given.block, level, layout).case()
        for layout in given.layouts.split(",")
        for level in map(int, given.levels.split(","))
        for size in given.sizes.split(",")
        for m in map(int, given.rows.split(","))
    ]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--rows", default="1,2,4,8,64")
    options.add_argument("--sizes", default="3072x3072,3072x9216,8192x3072,3072x32064")
    options.add_argument("--bits", type=int, default=4)
    options.add_argument("--block", type=int, default=32)
    options.add_argument("--levels", default="0,4")
    options.add_argument("--layouts", default="ms")
    arguments = options.parse_args()
    main(_asked(arguments), arguments)
