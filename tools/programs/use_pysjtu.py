# /// script
# dependencies = ["pysjtu[ocr]==0.4.2"]
# ///
"""pysjtu: reads the captchas of a university, by a network and by a support vector machine."""

from pictures import encoded, page
from PIL import Image
from pysjtu.ocr import LegacyRecognizer, NNRecognizer

WORDS = ("abcde", "qwert", "zyxwv", "hello")


def make():
    return NNRecognizer(), LegacyRecognizer()


def use(readers):
    read = []
    for word in WORDS:
        picture = Image.new("RGB", (110, 40), "white")
        picture.paste(page(word, size=30, margin=2), (4, -6))
        read.append([reader.recognize(encoded(picture)) for reader in readers])
    return read
