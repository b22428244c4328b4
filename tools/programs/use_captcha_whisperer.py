# /// script
# dependencies = ["captcha-whisperer==0.1.0"]
# ///
"""captcha-whisperer: reads captchas by a recurrent network, and how sure it is of each sign."""

from captcha_whisperer import CaptchaRecognizer
from pictures import encoded, page


def make():
    return CaptchaRecognizer()


def use(recognizer):
    pictures = [encoded(page(text, size=36, margin=8)) for text in ("2CWK", "X79E", "QTZP")]
    return [recognizer.recognize_bytes(p) for p in pictures]
