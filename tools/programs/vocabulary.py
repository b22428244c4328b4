"""A vocabulary of 16 words: its tokenizer in the usual files, and networks that take its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from networks import network, random
from onnx import helper, save
from tokenizers import Tokenizer, models, pre_tokenizers

SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SIGNS, "the", "cat", "dog", "sat", "ran", "on", "mat", "fast", "a", "in", ".", "house")
TEXTS = ["the cat sat on the mat", "the dog ran fast", "a bird in the house .", "cat"]
SIZE = 32
IDS = ("input_ids", "attention_mask", "token_type_ids")


def write_tokenizer(folder: Path) -> None:
    """The tokenizer and the settings that packages read beside it."""
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    for name, said in {
        "config": {"pad_token_id": 0, "model_type": "bert", "hidden_size": SIZE},
        "tokenizer_config": {"model_max_length": 64, "pad_token": "[PAD]"},
        "special_tokens_map": {"pad_token": "[PAD]", "unk_token": "[UNK]"},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(said))


def write_vectors(path: Path, inputs: tuple[str, ...] = IDS) -> None:
    """A network that makes `last_hidden_state` of tokens, by rows of a table."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["mixed"]),
        helper.make_node("Tanh", ["mixed"], ["last_hidden_state"]),
    ]
    outputs = {"last_hidden_state": ("b", "s", SIZE)}
    write(path, nodes, outputs, {"w": random(2, SIZE, SIZE)}, inputs)


def write_scores(path: Path) -> None:
    """A network that makes one score, `logits`, of each row of tokens."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["live"], to=1),
        helper.make_node("Unsqueeze", ["live", "last"], ["mask"]),
        helper.make_node("Mul", ["rows", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["summed"], keepdims=0),
        helper.make_node("Tanh", ["summed"], ["active"]),
        helper.make_node("MatMul", ["active", "w"], ["logits"]),
    ]
    constants = {"last": np.array([-1]), "middle": np.array([1]), "w": random(3, SIZE, 1)}
    write(path, nodes, {"logits": ("b", 1)}, constants, IDS)


def write(
    path: Path,
    nodes: list[Any],
    outputs: Mapping[str, Any],
    weights: Mapping[str, Any],
    inputs: tuple[str, ...],
) -> None:
    """Saves a network that takes tokens."""
    table = {"table": random(1, len(WORDS), SIZE)}
    kinds = dict.fromkeys(inputs, (np.int64, ("b", "s")))
    save(network(nodes, kinds, outputs, {**table, **weights}), path)
