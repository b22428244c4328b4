# /// script
# dependencies = ["rapidocr==3.10.0", "pillow"]
# ///
"""Read text in a picture: RapidOCR, unedited, with its three models on Sardonyx."""

import sardonyx.as_onnxruntime

sardonyx.as_onnxruntime.install()  # before anything imports onnxruntime

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw, ImageFont  # noqa: E402
from rapidocr import RapidOCR  # noqa: E402

page = Image.new("RGB", (640, 140), "white")
draw, font = ImageDraw.Draw(page), ImageFont.load_default(40)
draw.text((20, 15), "Sardonyx is a gem", "black", font)
draw.text((20, 75), "total: 56.78 EUR", "black", font)

read = RapidOCR()(np.asarray(page))
for text, score in zip(read.txts, read.scores, strict=True):
    print(f"{score:.2f}  {text}")
