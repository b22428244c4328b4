# /// script
# dependencies = ["pillow"]
# [tool.packages]
# without-dependencies = ["vietcombank-captcha==0.1.0"]
# ///
"""vietcombank-captcha: reads the captchas of another bank, and how sure it is of each digit."""

import numpy as np
from pictures import page
from vietcombank_captcha import VietcombankCaptcha


def make():
    return VietcombankCaptcha()


def use(model):
    pictures = [np.asarray(page(text, size=36, margin=8)) for text in ("23907", "77154", "00861")]
    return [model.predict_with_confidence(p) for p in pictures]
