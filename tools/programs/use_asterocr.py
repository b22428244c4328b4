# /// script
# dependencies = ["asterocr==1.0.2"]
# ///
"""asterocr: reads lines of Vietnamese text."""

from asterocr import AsterOCR
from pictures import page

LINES = ("Cong hoa xa hoi", "Tong cong: 56.780", "Sardonyx 2026")


def make():
    return AsterOCR(enable_telemetry=False)


def use(reader):
    return reader.predict_batch([page(line, size=32, margin=6) for line in LINES])
