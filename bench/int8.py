"""8-bit products and convolutions, against the limit of sums of products of bytes.

python -m bench.int8 [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.steps import Array, Case, Made, main, one, parser

MATMULS = [  # rows, depth, columns
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (3136, 64, 64), (3136, 64, 256),
    (784, 1152, 128), (49, 4608, 512), (49, 512, 2048), (1, 2048, 1000),
]  # fmt: skip
CONVS = [  # size, channels, maps, kernel, stride, group
    (224, 3, 64, 7, 2, 1), (56, 64, 64, 1, 1, 1), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 1),
    (28, 128, 128, 3, 1, 1), (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1),
    (7, 512, 2048, 1, 1, 1), (112, 32, 32, 3, 1, 32), (14, 384, 384, 3, 1, 384),
]  # fmt: skip
GOAL = 0.8
_KERNELS = ("qmatmul", "qconv", "qdepthwise")


def random_bytes(kind: Any, *shape: int) -> Array:
    info = np.iinfo(kind)
    return np.random.default_rng(0).integers(info.min, info.max + 1, shape).astype(kind)


def _made(op: str, x: Array, w: Array, maps: int, **attrs: Any) -> Made:
    constants = (
        np.float32(0.02), np.uint8(7), w, np.full(maps, 0.001, np.float32),
        np.zeros(maps, np.int8), np.float32(0.5), np.uint8(9),
    )  # fmt: skip
    return one(op, {"x": x}, lambda i: constants, **attrs)


def _product(m: int, k: int, n: int) -> Case:
    def make() -> Made:
        return _made("QLinearMatMul", random_bytes(np.uint8, m, k), random_bytes(np.int8, k, n), n)

    return Case("int8 product", f"{m} x {k} x {n}", _KERNELS, make, GOAL, None)


def _convolution(size: int, channels: int, maps: int, *window: int) -> Case:
    kernel, stride, group = window

    def make() -> Made:
        x = random_bytes(np.uint8, 1, channels, size, size)
        w = random_bytes(np.int8, maps, channels // group, kernel, kernel)
        attrs = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": group}
        return _made("QLinearConv", x, w, maps, **attrs)

    name = f"{size}² {channels}->{maps} {kernel}x{kernel}/{stride} in {group}"
    return Case("int8 convolution", name, _KERNELS, make, GOAL, None)


def cases() -> list[Case]:
    """All layers."""
    return [*(_product(*m) for m in MATMULS), *(_convolution(*c) for c in CONVS)]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
