# /// script
# dependencies = ["rapidocr-onnxruntime==1.4.4"]
# ///
"""rapidocr-onnxruntime: reads a page of text, word by word."""

import numpy as np
from pictures import page
from rapidocr_onnxruntime import RapidOCR


def make():
    return RapidOCR()


def use(reader):
    picture = np.asarray(page("Sardonyx is a gem", "Chapter 7, page 1234", "total: 56.78 EUR"))
    return reader(picture[:, :, ::-1].copy(), return_word_box=True)[0]
