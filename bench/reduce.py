"""Reductions, softmax, normalizations, pooling and TopK, against reading and writing as much.

python -m bench.reduce [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sardonyx._native as native
from bench.steps import Array, Case, Made, floats, main, one, parser

KERNELS = tuple(
    row
    for row, info in native.kernels.items()
    if info.family in ("reduce", "softmax", "normalize", "pooling", "select", "chain")
)
GOAL = 0.85


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

    def made(self) -> Made:
        x = {"x": floats(*self.shape)}
        return one(self.op, x, lambda i: self.constants, outputs=self.outputs, **self.attrs)

    def case(self) -> Case:
        words = {"Red": "reduction", "Top": "selection", "Arg": "reduction", "Cum": "reduction"}
        family = words.get(self.op[:3], "normalization")
        family = "pooling" if "Pool" in self.op else family
        return Case(family, str(self), KERNELS, self.made, GOAL, 1e-3)


def _axes(*axes: int) -> tuple[Array]:
    return (np.array(axes, np.int64),)


def _ramps(*counts: int) -> tuple[Array, ...]:
    return tuple(np.linspace(0.5, 1.5, n, dtype=np.float32) for n in counts)


ROWS = (
    Row("Softmax", (1536, 128)),
    Row("Softmax", (12, 1024, 1024)),
    Row("Softmax", (3072, 49)),
    Row("Softmax", (1, 1000)),
    Row("Softmax", (1, 16, 8400), attrs={"axis": 1}),
    Row("LogSoftmax", (128, 1000)),
    Row("LayerNormalization", (512, 768), _ramps(768, 768)),
    Row("LayerNormalization", (3136, 96), _ramps(96, 96)),
    Row("RMSNormalization", (512, 768), _ramps(768)),
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
    Row("BatchNormalization", (1, 64, 56, 56), _ramps(64, 64, 64, 64)),
    Row("InstanceNormalization", (1, 64, 56, 56), _ramps(64, 64)),
    Row("GroupNormalization", (1, 320, 32, 32), _ramps(320, 320), {"num_groups": 32}),
    Row("LpNormalization", (512, 512)),
    Row("LRN", (1, 96, 27, 27), attrs={"size": 5}),
    Row("MaxPool", (1, 64, 112, 112), attrs={"kernel_shape": [3, 3], "strides": [2, 2]}),
    Row("GlobalAveragePool", (1, 2048, 7, 7)),
    Row("TopK", (1, 8400), (np.array([300], np.int64),), outputs=2),
    Row("TopK", (100, 1000), (np.array([5], np.int64),), outputs=2),
)  # fmt: skip


def cases() -> list[Case]:
    """All rows."""
    return [row.case() for row in ROWS]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
