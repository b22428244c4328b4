"""Copies, transposes and other movement of shapes that models have, against plain copies.

python -m bench.move [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.steps import Array, Case, Made, floats, main, one, parser

TRANSPOSES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], Any], ...] = (
    ("NCHW to NHWC, image", (1, 3, 224, 224), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW, image", (1, 224, 224, 3), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 64, 56, 56), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW", (1, 56, 56, 64), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 512, 7, 7), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW", (1, 7, 7, 512), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 128, 64, 64), (0, 2, 3, 1), np.float32),
    ("NCHW to NHWC, u8", (1, 64, 56, 56), (0, 2, 3, 1), np.uint8),
    ("NHWC to NCHW, f16", (1, 56, 56, 64), (0, 3, 1, 2), np.float16),
    ("NCHW to NHWC, f64", (1, 64, 56, 56), (0, 2, 3, 1), np.float64),
    ("split heads", (1, 128, 12, 64), (0, 2, 1, 3), np.float32),
    ("join heads", (1, 12, 128, 64), (0, 2, 1, 3), np.float32),
    ("split heads, transposed", (1, 128, 12, 64), (0, 2, 3, 1), np.float32),
    ("windows", (1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5), np.float32),
    ("matrix", (1024, 1024), (1, 0), np.float32),
)
GOAL = 0.85


def _transposed(what: str, shape: tuple[int, ...], perm: tuple[int, ...], kind: Any) -> Case:
    def make() -> Made:
        return one("Transpose", {"x": floats(*shape).astype(kind)}, perm=list(perm))

    name = f"{what} {'x'.join(map(str, shape))}"
    return Case("transpose", name, ("copy",), make, GOAL, 0)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _others() -> list[Case]:
    """Movement that is not a transpose."""
    x, y = floats(1, 128, 56, 56), floats(1, 128, 56, 56, seed=1)
    table, ids = floats(30522, 768), np.random.default_rng(0).integers(0, 30522, (1, 128))
    pads = _ints(0, 0, 1, 1, 0, 0, 1, 1)
    return [
        Case("movement", name, (row,), make, GOAL, 0)
        for name, row, make in (
            ("Concat 2 of 1x128x56x56", "concat", lambda: one("Concat", {"x": x, "y": y}, axis=1)),
            ("Gather 128 of 30522x768", "gather",
             lambda: one("Gather", {"x": table, "i": ids}, axis=0)),
            ("Pad 1x128x56x56", "pad", lambda: one("Pad", {"x": x}, lambda i: [pads])),
            ("Tile 512x768 by 4", "tile",
             lambda: one("Tile", {"x": floats(512, 768)}, lambda i: [_ints(4, 1)])),
            ("Slice every second of 1024x1024", "copy",
             lambda: one("Slice", {"x": floats(1024, 1024)},
                         lambda i: [_ints(0), _ints(1024), _ints(1), _ints(2)])),
        )
    ]  # fmt: skip


def cases() -> list[Case]:
    """Transposes, then others."""
    return [*(_transposed(*t) for t in TRANSPOSES), *_others()]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
