"""Convolutions of com.microsoft: fused with an activation, NHWC, and with pads as an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dtype import F16, F32, I32, I64, IEEE
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.attention.heads import same_dims
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv import standard
from sardonyx.ops.conv.standard import CONV
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS, activation_function
from sardonyx.ops.inference import (
    channels_first,
    channels_last,
    to_channels_first,
    to_channels_last,
)

_FUSED: Final = {**CONV, "activation": optional("bytes"), "activation_params": optional("floats")}


fused_conv: Final = Op(
    "FusedConv", 1, "X:T W:T B:T? Z:T?", "Y:T", domain=MICROSOFT, attrs=_FUSED, types={"T": IEEE}
)


# X and Y are NHWC; the weights have Conv's layout.
nhwc_conv: Final = Op(
    "NhwcConv", 1, "X:T W:T B:T?", "Y:T", domain=MICROSOFT, attrs=CONV, types={"T": IEEE}
)


nhwc_fused_conv: Final = Op(
    "NhwcFusedConv",
    1,
    "X:T W:T B:T? Z:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs=_FUSED,
    types={"T": frozenset((F32, F16))},
)


def _split_activation(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """Return the activation, and the attributes that remain for the convolution."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    name: bytes | None = attrs["activation"]
    keys = ACTIVATION_ATTRS.get((name or b"").decode("utf-8", "replace"), ())
    # activation_params lists the values by position, in the order of ACTIVATION_ATTRS.
    params: Sequence[float] = attrs["activation_params"] or ()
    return activation_function(name, dict(zip(keys, params, strict=False))), rest


@fused_conv.infer
def _fused_fact(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    *inputs, z = facts
    _, rest = _split_activation(attrs)
    y: Fact = standard.infer_conv(g, *inputs, **rest)
    if z is not None:
        if z.rank != y.rank:
            raise InvalidGraph(f"Z must be like the result {y}, to which it is added, got {z}")
        for a, b in zip(z.dims, y.dims, strict=True):
            g.equal(a, b, "Z has another shape than the convolution's output")
    return y


@fused_conv.reference
@in_wide
def _fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any
) -> Array:
    activation, rest = _split_activation(attrs)
    y = standard.conv.run((x, w, b), rest)[0]
    return activation(y if z is None else y + z)


_NO_ACTIVATION: Final = {"activation": None, "activation_params": None}


@nhwc_conv.infer
@nhwc_fused_conv.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    x, w, b, z = (*facts, None)[:4]
    images = (None if f is None else channels_first(f) for f in (x, z))
    attrs = {**_NO_ACTIVATION, **attrs}
    return channels_last(_fused_fact(g, next(images), w, b, next(images), **attrs))


@nhwc_conv.reference
@nhwc_fused_conv.reference
def _(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any) -> Array:
    first = to_channels_first(x.ndim)
    z_first = None if z is None else z.transpose(first)
    y = _fused_conv(x.transpose(first), w, b, z_first, **{**_NO_ACTIVATION, **attrs})
    return np.ascontiguousarray(y.transpose(to_channels_last(x.ndim)))


@nhwc_conv.decompose
@nhwc_fused_conv.decompose
def _(b: Builder, node: Node) -> Outputs:
    """NhwcConv and NhwcFusedConv: layout propagation removes the Transposes again."""
    rank = input_of(node, 0).tensor.rank
    x, w, bias, z = (optional_input(node, i) for i in range(4))
    images = [None if v is None else b.Transpose(v, perm=to_channels_first(rank)) for v in (x, z)]
    if node.op.name == "NhwcConv":
        y = b.Conv(images[0], w, bias, **node.attrs)
    else:
        y = b.FusedConv(images[0], w, bias, images[1], domain=MICROSOFT, **node.attrs)
    return (b.Transpose(y, perm=to_channels_last(rank)),)


dynamic_pads: Final = Op(
    "ConvTransposeWithDynamicPads",
    1,
    "X:T W:T Pads:P? B:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={k: v for k, v in standard.TRANSPOSED.items() if k not in ("pads", "output_shape")},
    types={"T": IEEE, "P": frozenset((I64,))},
)


@dynamic_pads.infer
def _(g: Scope, x: Fact, w: Fact, pads: Fact | None, b: Fact | None, **attrs: Any) -> Fact:
    static_pads = None if pads is None else pads.ints
    y: Fact = standard.infer_transposed(g, x, w, b, **attrs, pads=static_pads, output_shape=None)
    if pads is None or static_pads is not None:
        return y
    # Pads that are computed by the model leave the spatial sizes open.
    same_dims(g, pads.dims, (2 * (x.rank - 2),), "Pads")
    return y.shaped((*y.dims[:2], *(g.new_dim("size") for _ in y.dims[2:])))


@dynamic_pads.reference
def _(x: Array, w: Array, pads: Array | None = None, b: Array | None = None, **attrs: Any) -> Any:
    attrs |= {"pads": None if pads is None else tuple(pads.tolist()), "output_shape": None}
    return standard.conv_transpose.run((x, w, b), attrs)[0]


@dynamic_pads.decompose
def _(b: Builder, node: Node) -> Outputs:
    """A ConvTranspose, where the pads are static."""
    x, w, pads, bias = (optional_input(node, i) for i in range(4))
    static_pads = None if pads is None else pads.tensor.ints
    need(pads is None or static_pads is not None, "the pads are not static")
    return (b.ConvTranspose(x, w, bias, pads=static_pads, **node.attrs),)


_EMBEDDING_SIZES: Final = ("embedding_size", "conv_window_size", "char_embedding_size")
# Word embeddings by a convolution over the embeddings of characters.
word_conv_embedding: Final = Op(
    "WordConvEmbedding",
    1,
    "Sequence:T W:T1 B:T1 C:T1",
    "Y:T1",
    domain=MICROSOFT,
    attrs=dict.fromkeys(_EMBEDDING_SIZES, optional("int")),
    types={"T": frozenset((I32,)), "T1": frozenset((F32,))},
)


@word_conv_embedding.infer
def _(g: Scope, words: Fact, w: Fact, b: Fact, c: Fact, **sizes: int | None) -> Fact:
    if (words.rank, w.rank, b.rank, c.rank) != (2, 4, 1, 2):
        raise ShapeError(
            f"words, weights, bias and table must have 2, 4, 1 and 2 dims, got {words}, {w}, {b} "
            f"and {c}"
        )
    g.equal(w.dims[0], b.dims[0], "weights and bias differ in filters")
    g.equal(w.dims[1], 1, "weights have one channel")
    g.equal(w.dims[3], c.dims[1], "weights and table differ in the size of a character")
    for name, size in zip(_EMBEDDING_SIZES, (w.dims[0], *w.dims[2:]), strict=True):
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
    # A filter spans whole characters, so the convolution is a matmul over windows of characters,
    # followed by tanh and a maximum over the word.
    flat = w.reshape(filters, window * size)
    for row, word in zip(out, words, strict=True):
        length = int(np.argmax(word == 0)) if (word == 0).any() else len(word)
        if length == 0:
            continue  # padding: its embedding is zeros
        spans = range(max(1, length - window + 1))
        columns = np.stack([c[word[i : i + window]].reshape(-1) for i in spans])
        row[:] = np.tanh(columns @ flat.T + b).max(0)
    return out


OPS: Final = (fused_conv, nhwc_conv, nhwc_fused_conv, dynamic_pads, word_conv_embedding)
