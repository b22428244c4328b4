# /// script
# dependencies = ["tqdm", "scipy", "scikit-learn", "requests"]
# [tool.packages]
# without-dependencies = ["openwakeword==0.5.1"]  # it wants tflite_runtime, which Python 3.11 lacks
# ///
"""openwakeword: whether a wake word is said, every 80 ms."""

import numpy as np
from openwakeword.model import Model
from sounds import speech


def make():
    np.random.seed(0)  # it begins with the features of random noise
    return Model(inference_framework="onnx", vad_threshold=0.05)


def use(model):
    model.reset()
    sound = (speech(6, 16000) * 32767).astype(np.int16)
    return [model.predict(sound[at : at + 1280]) for at in range(0, len(sound), 1280)]
