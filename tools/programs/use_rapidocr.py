# /// script
# dependencies = ["rapidocr==3.10.0"]
# ///
"""rapidocr: reads a page of text: finds lines, rotates them, reads them."""

import numpy as np
from pictures import page
from rapidocr import RapidOCR


def make():
    return RapidOCR()


def use(reader):
    picture = np.asarray(page("Sardonyx is a gem", "Chapter 7, page 1234", "total: 56.78 EUR"))
    read = [reader(p[:, :, ::-1].copy()) for p in (picture, picture[::-1, ::-1])]
    return [{"boxes": r.boxes, "texts": r.txts, "scores": r.scores} for r in read]
