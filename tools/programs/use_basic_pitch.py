# /// script
# dependencies = [
#   "librosa", "mir_eval", "pretty_midi", "resampy<0.4.3", "scikit-learn", "scipy", "setuptools<81",
# ]
# [tool.packages]
# without-dependencies = ["basic-pitch==0.4.0"]  # it wants tensorflow, which this does not use
# ///
"""basic-pitch: the notes of a recording."""

import os
import tempfile

import soundfile
from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
from basic_pitch.inference import Model, predict
from sounds import tones


def make():
    return Model(build_icassp_2022_model_path(FilenameSuffix.onnx))


def use(model):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scale.wav")
        soundfile.write(path, tones(6, 22050, (220, 262, 294, 330, 392, 440)), 22050)
        _, _, notes = predict(path, model)
    return [[start, end, pitch, force] for start, end, pitch, force, _ in sorted(notes)]
