# /// script
# dependencies = ["pythainlp==5.4.0"]
# ///
"""pythainlp: Thai words apart, and in Latin letters."""

from pythainlp.tokenize import word_tokenize
from pythainlp.transliterate import romanize

TEXTS = ("ฉันรักภาษาไทยมาก", "วันนี้อากาศดีมากเราไปเที่ยวทะเลกัน", "ประเทศไทยมีจังหวัดเจ็ดสิบเจ็ดจังหวัด")
WORDS = ("ภาพยนตร์", "แมว", "โรงเรียน", "กรุงเทพมหานคร")


def make():
    return None


def use(_):
    return {
        "words": [word_tokenize(text, engine="deepcut") for text in TEXTS],
        "letters": [romanize(word, engine="thai2rom_onnx") for word in WORDS],
    }
