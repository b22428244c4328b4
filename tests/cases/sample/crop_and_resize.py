"""Cases of CropAndResize."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f32, ints, ms, no, of

IMAGE = f32(2, 3, 5, 6)


BOXES = of([[0, 0, 1, 1], [0.2, 0.1, 0.9, 1.2], [0.9, 0.8, 0.1, 0.3], [-0.5, 0.5, 0.4, 0.5]])


WHICH = of([0, 1, 1, 0], np.int32)


SPECIAL = of([[[[1, np.inf], [3, np.nan]]]])
WHOLE, FIRST = of([[0, 0, 1, 1]]), of([0], np.int32)


def line(size: int) -> np.ndarray:
    """Zeros in a row, whose last position is rounded to one outside, and a five at the end."""
    image = np.zeros((1, 1, 1, size), np.float16)
    image[..., -1] = 5
    return image


ENDS = of([[[[0, 5]]]], np.float16)


CROP_SAMPLE = [
    ms("CropAndResize", IMAGE, BOXES, WHICH, of([4, 3], np.int32), ulps=32),
    ms("CropAndResize", IMAGE, BOXES, WHICH, of([1, 5], np.int32), ulps=32, mode="nearest"),
    ms(
        "CropAndResize",
        *(IMAGE, BOXES, WHICH, of([3, 1], np.int32)),
        extrapolation_value=-2.5,
        ulps=32,
    ),
    ms("CropAndResize", IMAGE, f32(0, 4), ints(np.int32, 0), of([2, 2], np.int32)),
    *(ms("CropAndResize", SPECIAL, WHOLE, FIRST, of([n, n], np.int32)) for n in (2, 3)),
    *(
        ms(
            "CropAndResize",
            *(line(size), WHOLE.astype(np.float16), FIRST, of([1, 2], np.int32)),
            mode=mode,
            expect=(ENDS,),
        )
        for mode, size in (("nearest", 2**23 + 2), ("bilinear", 2**24 + 4))
    ),
    no("CropAndResize", IMAGE, BOXES, WHICH + 1, of([2, 2], np.int32), match="batch index 2"),
    no("CropAndResize", IMAGE, BOXES, WHICH, of([0, 2], np.int32), match="at least 1"),
    no("CropAndResize", IMAGE, BOXES, WHICH, of([2, 2], np.int32), mode="cubic", match="cubic"),
]


CASES = [
    *CROP_SAMPLE,
]
