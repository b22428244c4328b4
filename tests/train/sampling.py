"""Cases of ops that sample images, unfold them, and scatter into them."""

from __future__ import annotations

import numpy as np

from tests.op_cases import Array, f64, i64, of
from tests.train.gradient_cases import apart, rule, sizes


def grid(*shape: int) -> Array:
    """Positions in and around an image, none of them at a pixel's center or edge."""
    rng = np.random.default_rng(len(shape))
    return rng.uniform(-1.9, 1.9, (*shape, len(shape) - 1))


GRIDS = [
    *(
        rule(
            "GridSample",
            f64(2, 3, 5, 6),
            grid(2, 4, 3),
            mode=mode,
            padding_mode=padding,
            align_corners=corners,
            by=(0,) if mode == "nearest" else (0, 1),
        )
        for mode in ("nearest", "linear", "cubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    ),
    *(
        rule("GridSample", f64(1, 2, 3, 4, 3), grid(1, 2, 3, 2), mode=mode, padding_mode=padding)
        for mode in ("linear", "cubic")
        for padding in ("zeros", "border", "reflection")
    ),
    rule("GridSample", f64(2, 2, 7), grid(2, 5), padding_mode="reflection"),
    rule("GridSample", f64(1, 2, 1, 4), grid(1, 2, 2), padding_mode="reflection", align_corners=1),
    *(
        rule("AffineGrid", f64(2, n, n + 1), size, fixed=(1,), align_corners=c)
        for n, size in ((2, sizes(2, 3, 4, 5)), (3, sizes(2, 1, 2, 3, 4)))
        for c in (0, 1)
    ),
]

_REGIONS = of([[1.2, 0.7, 5.3, 4.1], [0.3, 2.2, 1.4, 3.1], [-3.3, -2.1, 12.7, 9.4]], np.float64)
_BATCH = of([0, 1, 1], np.int64)
_NUMBERED = of([[0, 1, 0, 5, 4], [1, 0, 2, 1, 3], [1, -3, -2, 12, 9]], np.float64)
REGIONS = [
    *(
        rule(
            "RoiAlign",
            apart(2, 3, 6, 7),
            _REGIONS,
            _BATCH,
            mode=mode,
            output_height=2,
            output_width=3,
            sampling_ratio=ratio,
            spatial_scale=0.9,
            coordinate_transformation_mode=transform,
        )
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for transform in ("half_pixel", "output_half_pixel")
    ),
    # Bins of a whole number of elements: the number of samples follows from exact divisions.
    rule(
        "RoiAlign",
        f64(1, 2, 14, 14),
        of([[0, 0, 14, 7], [1, 2, 8, 9]], np.float64),
        of([0, 0], np.int64),
        output_height=7,
        output_width=7,
        by=(0,),
    ),
    rule("MaxRoiPool", apart(2, 3, 6, 7), _NUMBERED, pooled_shape=[2, 3], by=(0,)),
    rule(
        "MaxRoiPool",
        apart(2, 3, 6, 7),
        _NUMBERED,
        pooled_shape=[4, 1],
        spatial_scale=0.6,
        by=(0,),
    ),
]

DEFORMABLE = [
    rule("DeformConv", f64(2, 2, 5, 6), f64(3, 2, 2, 3), f64(2, 12, 4, 4), weights=(1,)),
    rule(
        "DeformConv",
        f64(1, 4, 6, 5),
        f64(6, 2, 2, 2),
        f64(1, 16, 4, 3),
        f64(6),
        f64(1, 8, 4, 3),
        group=2,
        offset_group=2,
        strides=[2, 2],
        dilations=[1, 2],
        pads=[1, 1, 1, 1],
        weights=(1, 3),
    ),
    rule("DeformConv", f64(1, 2, 6), f64(2, 2, 3), f64(1, 3, 4), weights=(1,)),
]

_OVER = i64(1, 2, 2, 3, low=0, high=1) + np.arange(12).reshape(1, 2, 2, 3) * 4
UNFOLDED = [
    rule("Col2Im", f64(2, 12, 6), sizes(4, 5), sizes(2, 3), pads=[0, 1, 0, 1], fixed=(1, 2),
         strides=[1, 2], dilations=[2, 1]),
    rule("Col2Im", f64(1, 4, 12), sizes(4, 5), sizes(2, 2), fixed=(1, 2)),
    rule("Col2Im", f64(1, 3, 5), sizes(7), sizes(3), fixed=(1, 2)),
    rule("MaxUnpool", f64(1, 2, 2, 3), _OVER, kernel_shape=[2, 2], strides=[2, 2], by=(0,)),
    rule("MaxUnpool", f64(1, 2, 2, 3), _OVER, sizes(1, 2, 5, 8), kernel_shape=[2, 2],
         strides=[2, 2], by=(0,), fixed=(2,)),
    rule("MaxPool", apart(2, 2, 5, 6), kernel_shape=[3, 2], storage_order=1),
]  # fmt: skip

RULES = [*GRIDS, *REGIONS, *DEFORMABLE, *UNFOLDED]
