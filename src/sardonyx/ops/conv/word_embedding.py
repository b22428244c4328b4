"""WordConvEmbedding: word embeddings by a convolution over characters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dtype import F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array

_FLOAT: Final = frozenset((F32,))


word_conv_embedding: Final = Op(
    "WordConvEmbedding",
    1,
    "Sequence:T W:T1 B:T1 C:T1",
    "Y:T1",
    domain=MICROSOFT,
    attrs={
        "embedding_size": optional("int"),
        "conv_window_size": optional("int"),
        "char_embedding_size": optional("int"),
    },
    types={"T": frozenset((I32,)), "T1": _FLOAT},
)


@word_conv_embedding.infer
def _(g: Scope, words: Fact, w: Fact, b: Fact, c: Fact, **sizes: int | None) -> Fact:
    if (words.rank, w.rank, b.rank, c.rank) != (2, 4, 1, 2):
        raise ShapeError(
            f"words, weights, bias and table have 2, 4, 1 and 2 dims, not {words}, {w}, {b}, {c}"
        )
    g.equal(w.dims[0], b.dims[0], "weights and bias differ in filters")
    g.equal(w.dims[1], 1, "weights have one channel")
    g.equal(w.dims[3], c.dims[1], "weights and table differ in the size of a character")
    for name, size in zip(("embedding_size", "conv_window_size", "char_embedding_size"),
                          (w.dims[0], w.dims[2], w.dims[3]), strict=True):  # fmt: skip
        declared = sizes[name]
        if declared is not None:
            g.equal(declared, size, f"{name} is not that of the weights")
    return Fact(F32, (words.dims[0], w.dims[0]))


@word_conv_embedding.reference
def _(words: Array, w: Array, b: Array, c: Array, **_: Any) -> Array:
    filters, _one, window, size = w.shape
    wrong = words[(words < 0) | (words >= len(c))]
    if wrong.size:
        raise InvalidArgument(f"the character {int(wrong[0])} is outside [0, {len(c)})")
    if words.shape[1] < window:
        raise InvalidArgument(f"words of {words.shape[1]} characters, and windows of {window}")
    out = np.zeros((len(words), filters), np.float32)
    flat = w.reshape(filters, window * size)
    for row, word in zip(out, words, strict=True):
        length = int(np.argmax(word == 0)) if (word == 0).any() else len(word)
        if length == 0:
            continue  # padding: its embedding is zeros
        spans = range(max(1, length - window + 1))
        columns = np.stack([c[word[i : i + window]].reshape(-1) for i in spans])
        row[:] = np.tanh(columns @ flat.T + b).max(0)
    return out


OPS: Final = (word_conv_embedding,)
