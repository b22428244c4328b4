# /// script
# dependencies = ["trueocr==0.1.1"]
# ///
"""trueocr: reads a Vietnamese page: direction, lines, their order and text."""

from pictures import encoded, page
from trueocr import load_model


def make():
    return load_model()


def use(model):
    picture = page("Sardonyx la da quy", "Trang 1234", "tong: 56.78")
    return [model.predict(encoded(p)).text for p in (picture, picture.rotate(180))]
