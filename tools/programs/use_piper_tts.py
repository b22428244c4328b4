# /// script
# dependencies = ["piper-tts==1.8.0"]
# ///
"""piper-tts: the vowels that Arabic and Hebrew texts leave out (what it does before it speaks)."""

from piper.hebrew import NakdimonDiacritizer
from piper.tashkeel import TashkeelDiacritizer

ARABIC = ("مرحبا بالعالم", "ذهب الولد الى المدرسة في الصباح", "السلام عليكم ورحمة الله")
HEBREW = ("שלום עולם", "הילד הלך לבית הספר בבוקר", "אני אוהב לקרוא ספרים")


def make():
    return TashkeelDiacritizer(), NakdimonDiacritizer()


def use(made):
    arabic, hebrew = made
    texts = [arabic.diacritize(text, taskeen_threshold=t) for text in ARABIC for t in (None, 0.8)]
    return texts + [hebrew.diacritize(text) for text in HEBREW]
