# /// script
# dependencies = ["fast-plate-ocr[onnx]==1.1.0", "onnx", "pillow"]
# ///
"""fast-plate-ocr: number plates, by a made-up network in the place of the one it downloads."""

import tempfile
from pathlib import Path

import numpy as np
from fast_plate_ocr import LicensePlateRecognizer
from networks import convolutions, network, random
from onnx import helper, save
from pictures import page

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
SLOTS = 9
TILES = {"kernel_shape": [16, 16], "strides": [16, 16]}
SAID = f"""
max_plate_slots: {SLOTS}
alphabet: '{LETTERS}'
pad_char: '_'
img_height: 64
img_width: 128
"""


def make():
    nodes, weights = convolutions("small", (1, 8, 8))
    nodes = [
        helper.make_node("Cast", ["input"], ["pixels"], to=1),
        helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Div", ["planes", "scale"], ["small"]),
        *nodes,
        helper.make_node("AveragePool", ["features"], ["p"], **TILES),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["all"]),
        helper.make_node("Reshape", ["all", "slots"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["plate"]),
    ]
    weights |= {"scale": np.float32(255), "slots": np.array([-1, SLOTS, len(LETTERS)])}
    weights["w"] = 3 * random(9, 256, SLOTS * len(LETTERS))
    folder = Path(tempfile.mkdtemp())
    inputs = {"input": (np.uint8, ("n", 64, 128, 1))}
    save(network(nodes, inputs, {"plate": ("n", SLOTS, len(LETTERS))}, weights), folder / "m.onnx")
    (folder / "m.yaml").write_text(SAID)
    return LicensePlateRecognizer(
        onnx_model_path=folder / "m.onnx", plate_config_path=folder / "m.yaml"
    )


def use(reader):
    plates = [np.asarray(page(text).convert("L")) for text in ("AB 123 CD", "XYZ 789")]
    read = [reader.run(plate, return_confidence=True)[0] for plate in plates]
    return [[plate.plate, plate.char_probs] for plate in read]
