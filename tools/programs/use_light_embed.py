# /// script
# dependencies = ["light-embed==1.0.9", "onnx"]
# ///
"""light-embed: vectors of texts, by a made-up network behind its own tokenizer and pooling."""

import tempfile
from pathlib import Path

from light_embed import TextEmbedding
from vocabulary import TEXTS, write_tokenizer, write_vectors


def make():
    folder = Path(tempfile.mkdtemp())
    write_tokenizer(folder)
    write_vectors(folder / "model.onnx")
    said = {"onnx_file": "model.onnx", "pooling_mode": "mean", "normalize": True}
    return TextEmbedding(str(folder), model_config=said)


def use(model):
    return model.encode(TEXTS)
