# /// script
# dependencies = ["ddddocr==1.6.1"]
# ///
"""ddddocr: reads captchas, and finds where their signs are."""

from ddddocr import DdddOcr
from pictures import encoded, page

WORDS = ("x7Kp2", "hello", "93MQ4", "aBcDe", "2026")


def make():
    readers = [DdddOcr(show_ad=False), DdddOcr(old=True, show_ad=False)]
    return readers, DdddOcr(det=True, ocr=False, show_ad=False)


def use(made):
    readers, finder = made
    pictures = [encoded(page(word, size=48, margin=10)) for word in WORDS]
    return {
        "read": [[reader.classification(p) for p in pictures] for reader in readers],
        "odds": readers[0].classification(pictures[0], probability=True),
        "found": finder.detection(encoded(page("A 7 K", "p 3 Z", size=60))),
    }
