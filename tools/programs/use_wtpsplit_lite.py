# /// script
# dependencies = ["wtpsplit-lite==0.2.0", "onnx"]
# ///
"""wtpsplit-lite: sentences of a text, by a made-up network in the place of the one it downloads."""

import json
import tempfile
from pathlib import Path

import numpy as np
from networks import network, random
from onnx import TensorProto, helper, save
from tokenizers import Tokenizer, models, pre_tokenizers
from wtpsplit_lite import SaT

SIGNS = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
LETTERS = "abcdefghijklmnopqrstuvwxyz.,TS"
SAID = {"model_type": "xlm-token", "id2label": {"0": "end"}}
TEXT = "The stone is red. Some layers are white, some are not. They shine. So it is a gem."


def make():
    folder = Path(tempfile.mkdtemp())
    vocabulary = {sign: number for number, sign in enumerate((*SIGNS, *LETTERS, "\u0120"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(SAID))
    table = random(1, len(vocabulary), 1) - 8
    table[vocabulary["."]] = 6  # the end of a sentence, as far as this network knows
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["live"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["live", "last"], ["mask"]),
        helper.make_node("Mul", ["rows", "mask"], ["logits"]),
    ]
    inputs = {"input_ids": (np.int64, ("b", "s")), "attention_mask": (np.float16, ("b", "s"))}
    weights = {"table": table, "last": np.array([-1])}
    model = network(nodes, inputs, {"logits": ("b", "s", 1)}, weights)
    save(model, folder / "model_optimized.onnx")
    return SaT(str(folder), tokenizer_name_or_path=str(folder))


def use(model):
    return {"sentences": model.split(TEXT), "odds": model.predict_proba(TEXT)}
