# /// script
# dependencies = ["fastembed==0.9.1", "onnx"]
# ///
"""fastembed: vectors of texts, by a made-up network behind its own tokenizer and pooling."""

import json
import tempfile
from pathlib import Path

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from networks import network, random
from onnx import helper, save
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("[PAD]", "[UNK]", "the", "cat", "dog", "sat", "ran", "on", "mat", "fast")
TEXTS = ["the cat sat on the mat", "the dog ran fast", "a bird", "cat"]


def make():
    folder = Path(tempfile.mkdtemp())
    ids = {"input_ids": (np.int64, ("b", "s")), "attention_mask": (np.int64, ("b", "s"))}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["last_hidden_state"]),
    ]
    weights = {"table": random(1, len(WORDS), 32), "w": random(2, 32, 32)}
    save(network(nodes, ids, {"last_hidden_state": ("b", "s", 32)}, weights), folder / "model.onnx")
    tokenizer = Tokenizer(models.WordLevel(dict(zip(WORDS, range(99), strict=False)), "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, said in {
        "config": {"pad_token_id": 0},
        "tokenizer_config": {"model_max_length": 64, "pad_token": "[PAD]"},
        "special_tokens_map": {"pad_token": "[PAD]", "unk_token": "[UNK]"},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(said))
    TextEmbedding.add_custom_model(
        model="made/up",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="x/y"),
        dim=32,
        model_file="model.onnx",
    )
    return TextEmbedding("made/up", specific_model_path=str(folder))


def use(model):
    return list(model.embed(TEXTS))
