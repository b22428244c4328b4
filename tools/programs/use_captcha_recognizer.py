# /// script
# dependencies = ["captcha-recognizer==1.0.2", "pillow"]
# ///
"""captcha-recognizer: where the gap of a slider captcha is."""

import numpy as np
from captcha_recognizer.slider import Slider
from pictures import faces
from PIL import ImageDraw


def make():
    return Slider()


def use(slider):
    picture = faces(344, 212)
    ImageDraw.Draw(picture).rectangle((200, 80, 250, 130), fill=(70, 70, 70), outline="white")
    pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
    return [slider.identify(source=pixels), slider.identify_offset(source=pixels)]
