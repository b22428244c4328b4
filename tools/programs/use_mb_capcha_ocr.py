# /// script
# dependencies = ["mb-capcha-ocr==0.1.6"]
# ///
"""mb-capcha-ocr: reads the captchas of a bank."""

from mb_capcha_ocr import OcrModel
from pictures import page


def make():
    return OcrModel()


def use(model):
    return [model.predict(page(text, size=36, margin=8)) for text in ("2a3B4c", "Kx79wE", "wq4TzP")]
