"""Train the head of a text classifier, which says what module of Python a sentence is from.

The encoder, a model without a loss, stays as it is; `add_loss` adds the loss, and `parameters` says
what is trained. The text are the docstrings of the installed Python.
"""

import importlib
import inspect
import re
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

import sardonyx
from sardonyx.train import AdamW, add_loss, fit

MODULES = ("argparse", "asyncio", "decimal", "email", "sqlite3", "unittest")
WORDS, WIDTH, LENGTH = 4096, 768, 24


def sentences(module: str) -> list[str]:
    """The sentences of all docstrings of a package."""
    package = importlib.import_module(module)
    parts = [package, *(m for _, m in inspect.getmembers(package, inspect.ismodule))]
    texts = set()
    for part in parts:
        if part.__name__.split(".")[0].strip("_") != module:
            continue
        for _, thing in inspect.getmembers(part):
            members = inspect.getmembers(thing) if inspect.isclass(thing) else []
            for _, documented in [("", thing), *members]:
                texts.update(re.split(r"(?<=\.)\s+|\n\s*\n", inspect.getdoc(documented) or ""))
    return sorted(text for text in texts if len(text.split()) >= 5)


def encode(text: str) -> list[int]:
    """The words of a text as numbers: hashes from 1 on, filled up with 0."""
    words = re.findall(r"\w+", text.lower())[:LENGTH]
    ids = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words]
    return ids + [0] * (LENGTH - len(ids))


def classifier() -> onnx.ModelProto:
    """An encoder (the mean of word vectors) and a head without anything learned."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        classifier (int64[batch, {LENGTH}] ids) => (float[batch, {len(MODULES)}] probabilities) {{
            vectors = Gather(encoder_words, ids)
            mean = ReduceMean<keepdims=0>(vectors, axes)
            normal = LayerNormalization(mean, encoder_scale)
            scores = Gemm(normal, head_weight, head_bias)
            probabilities = Softmax(scores)
        }}""")
    rng = np.random.default_rng(0)
    words = rng.normal(0, 1, (WORDS, WIDTH))
    words[0] = 0
    arrays = {
        "encoder_words": words.astype(np.float32),
        "encoder_scale": np.ones(WIDTH, np.float32),
        "head_weight": np.zeros((WIDTH, len(MODULES)), np.float32),
        "head_bias": np.zeros(len(MODULES), np.float32),
        "axes": np.array([1]),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


by_module = [sentences(module) for module in MODULES]
counts = Counter(text for texts in by_module for text in texts)
pairs = [(encode(t), i) for i, texts in enumerate(by_module) for t in texts if counts[t] == 1]
np.random.default_rng(0).shuffle(pairs)
ids, labels = (np.array(column) for column in zip(*pairs, strict=True))
split = len(ids) * 4 // 5

result = fit(
    add_loss(classifier(), keep=["probabilities"]),
    {"ids": ids[:split], "labels": labels[:split]},
    loss="loss",
    parameters=["head_*"],
    optimizer=AdamW(lr=3e-3),
    epochs=20,
    batch_size=64,
    patience=3,
    evaluation={"ids": ids[split:], "labels": labels[split:]},
    metrics={"accuracy": lambda out, fed: (out["probabilities"].argmax(1) == fed["labels"]).mean()},
)
best = min(result.evaluations, key=lambda row: row["loss"])
print(f"{len(ids)} sentences; {result.stopped or 'all epochs'}")
print(f"step {best['step']}: loss {best['loss']:.3f}, {best['accuracy']:.1%} of held-back right")

with tempfile.TemporaryDirectory() as folder:
    result.save(Path(folder, "classifier.onnx"))
    session = sardonyx.InferenceSession(Path(folder, "classifier.onnx"))
    text = "Wait until a future of the event loop is done, or a timeout expires."
    (probabilities,) = session.run(["probabilities"], {"ids": np.array([encode(text)])})
    print(f"{text!r} is from {MODULES[probabilities[0].argmax()]}")
assert best["accuracy"] > 1.5 * np.bincount(labels).max() / len(labels)
