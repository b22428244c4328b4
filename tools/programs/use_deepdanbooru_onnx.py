# /// script
# dependencies = ["deepdanbooru-onnx==0.0.8"]
# ///
"""deepdanbooru-onnx: tags of drawings, by a made-up network in place of its download."""

import tempfile
from pathlib import Path

import numpy as np
from deepdanbooru_onnx import DeepDanbooru
from networks import convolutions, network, random
from onnx import helper, save
from pictures import faces, page

TAGS = ("hat", "hair", "face", "smile", "stone", "text", "sky", "red")


def make():
    nodes, weights = convolutions("planes", (3, 8, 8))
    nodes = [
        helper.make_node("Transpose", ["picture"], ["planes"], perm=[0, 3, 1, 2]),
        *nodes,
        helper.make_node("GlobalAveragePool", ["features"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["scores"]),
        helper.make_node("Sigmoid", ["scores"], ["odds"]),
    ]
    weights["w"] = random(9, 8, len(TAGS))
    folder = Path(tempfile.mkdtemp())
    inputs = {"picture": (np.float32, ("n", 512, 512, 3))}
    save(network(nodes, inputs, {"odds": ("n", len(TAGS))}, weights), folder / "tags.onnx")
    (folder / "tags.txt").write_text("\n".join(TAGS))
    return DeepDanbooru("cpu", str(folder / "tags.onnx"), str(folder / "tags.txt"), threshold=0.1)


def use(model):
    return [model(picture) for picture in (faces(), page("Sardonyx"))]
