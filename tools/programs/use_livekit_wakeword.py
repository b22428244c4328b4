# /// script
# dependencies = ["livekit-wakeword==0.3.0", "onnx"]
# ///
"""livekit-wakeword: its own mel bands and speech vectors, and a made-up network of a word."""

import tempfile
from pathlib import Path

import numpy as np
from livekit.wakeword import WakeWordModel
from networks import network, random
from onnx import helper, save
from sounds import speech


def make():
    nodes = [
        helper.make_node("Flatten", ["vectors"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["odds"]),
    ]
    path = Path(tempfile.mkdtemp()) / "word.onnx"
    inputs = {"vectors": (np.float32, (1, 16, 96))}
    save(network(nodes, inputs, {"odds": (1, 1)}, {"w": 0.05 * random(1, 16 * 96, 1)}), path)
    return WakeWordModel(models=[path])


def use(model):
    sound = speech(6, 16000)
    return [model.predict(sound[at : at + 32000]) for at in range(0, 64000, 8000)]
