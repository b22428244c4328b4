# /// script
# dependencies = ["ppllocr==2.2", "pillow"]
# ///
"""ppllocr: reads captchas, and finds where their signs are."""

from pictures import encoded, page
from ppllocr import OCR


def make():
    return OCR()


def use(reader):
    pictures = [encoded(page(text, size=36, margin=8)) for text in ("2a3B", "Kx79", "wq4Tz")]
    return [[reader.classification(p), reader.classification_box(p)] for p in pictures]
