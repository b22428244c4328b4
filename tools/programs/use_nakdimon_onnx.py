# /// script
# dependencies = ["nakdimon-onnx==0.1.0", "onnx"]
# ///
"""nakdimon-onnx: the vowels of Hebrew text, by a made-up network in the place of its download."""

import tempfile
from pathlib import Path

import numpy as np
from nakdimon_onnx import Nakdimon
from networks import network, random
from onnx import helper, save

SIZES = {"niqqud": 16, "dagesh": 3, "sin": 4}


def make():
    nodes = [helper.make_node("Cast", ["input_1"], ["ids"], to=7)]
    weights = {}
    for number, (name, size) in enumerate(SIZES.items()):
        weights[f"table {name}"] = random(number, 200, size)
        nodes += [
            helper.make_node("Gather", [f"table {name}", "ids"], [f"rows {name}"]),
            helper.make_node("Softmax", [f"rows {name}"], [name]),
        ]
    outputs = {name: ("b", "s", size) for name, size in SIZES.items()}
    path = Path(tempfile.mkdtemp()) / "nakdimon.onnx"
    save(network(nodes, {"input_1": (np.float32, ("b", "s"))}, outputs, weights), path)
    return Nakdimon(str(path))


def use(model):
    return [model.compute(text) for text in ("שלום עולם", "אבן יקרה אדומה ולבנה")]
