# /// script
# dependencies = ["kokoro-onnx==0.6.1", "onnx"]
# ///
"""kokoro-onnx: speech from text, by a made-up network behind its own phonemes and trimming."""

import tempfile
from pathlib import Path

import numpy as np
from kokoro_onnx import Kokoro
from networks import network, random
from onnx import helper, save


def make():
    folder = Path(tempfile.mkdtemp())
    inputs = {
        "tokens": (np.int64, (1, "t")),
        "style": (np.float32, (1, 256)),
        "speed": (np.float32, (1,)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"]),
        helper.make_node("MatMul", ["style", "w"], ["shift"]),
        helper.make_node("Add", ["rows", "shift"], ["shifted"]),
        helper.make_node("Div", ["shifted", "speed"], ["paced"]),
        helper.make_node("Tanh", ["paced"], ["waves"]),
        helper.make_node("Reshape", ["waves", "flat"], ["audio"]),
    ]
    weights = {"table": random(1, 200, 600), "w": random(2, 256, 600), "flat": np.array([-1])}
    save(network(nodes, inputs, {"audio": ("n",)}, weights), folder / "kokoro.onnx")
    np.savez(folder / "voices.npz", someone=random(3, 510, 1, 256))
    return Kokoro(str(folder / "kokoro.onnx"), str(folder / "voices.npz"))


def use(kokoro):
    sound, rate = kokoro.create("Sardonyx is a gem.", voice="someone", speed=1.1, lang="en-us")
    return {"rate": rate, "length": len(sound), "sound": sound[::40]}
