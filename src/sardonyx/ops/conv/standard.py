"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape, Size, maximum, product
from sardonyx.graph.dtype import BF16, BOOL, COMPLEX, F16, F32, FLOATS, I64, NUMBERS, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, as_ints, in_wide
from sardonyx.ops.conv.deform import check_offsets, deform_conv
from sardonyx.ops.conv.im2col import add_bias, add_blocks, convolve, fold
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.sliding_window import MAX_SPAN, Ints, Walk, Window, numbers, walk, window

GEOMETRY: Final[dict[str, Any]] = {
    "dilations": optional("ints"),
    "kernel_shape": optional("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}
CONV: Final[dict[str, Any]] = {**GEOMETRY, "auto_pad": b"NOTSET", "group": 1}


def conv_shape(g: Scope, x: Fact, w: Fact, b: Fact | None, attrs: Mapping[str, Any]) -> Shape:
    """The shape of a convolution's output; weights are (maps, channels / group, *kernel)."""
    kernel = conv_kernel(g, x, w, attrs)
    maps, group = w.dims[0], attrs["group"]
    what = f"channels of x, and of the weights times group={group}, differ"
    g.equal(x.dims[1], w.dims[1] * group, what)
    g.divides(group, maps, "group must divide the number of feature maps")
    check_bias(g, b, maps)
    moved = window(kernel, attrs)
    moved.check(g, x.dims[2:])
    return (x.dims[0], maps, *moved.outs(x.dims[2:]))


def conv_kernel(g: Scope, x: Fact, w: Fact, attrs: Mapping[str, Any]) -> Shape:
    """The kernel's shape, from the weights; kernel_shape may only repeat it."""
    if x.rank < 3:
        raise ShapeError(
            f"x has rank {x.rank}; a convolution needs batch, channels and spatial axes"
        )
    if w.rank != x.rank:
        raise ShapeError(f"the weights have rank {w.rank}, and x has {x.rank}")
    if attrs["group"] < 1:
        raise ShapeError(f"group is {attrs['group']}, and must be 1 or more")
    kernel, said = w.dims[2:], attrs["kernel_shape"]
    if not said:
        return kernel
    if len(said) != len(kernel):
        raise ShapeError(
            f"kernel_shape {tuple(said)} does not match the {len(kernel)} spatial axes"
        )
    return tuple(
        g.equal(k, s, f"kernel_shape {tuple(said)} differs from the weights along spatial axis {i}")
        for i, (k, s) in enumerate(zip(kernel, said, strict=True))
    )


def check_bias(g: Scope, b: Fact | None, maps: Size) -> None:
    """A bias is one number per feature map."""
    if b is None:
        return
    if b.rank != 1:
        raise ShapeError(f"the bias has rank {b.rank}, and must be a vector")
    g.equal(b.dims[0], maps, "the bias does not hold one number per feature map")


conv = Op("Conv", 22, "x:T w:T b:T?", "y:T", attrs=CONV, types={"T": FLOATS})


@conv.infer
def _(g: Scope, x: Fact, w: Fact, b: Fact | None, **attrs: Any) -> Fact:
    return Fact(x.dtype, conv_shape(g, x, w, b, attrs))


def _conv(x: Array, w: Array, b: Array | None = None, **attrs: Any) -> Array:
    path = walk(window(w.shape[2:], attrs), x.shape[2:])
    return add_bias(convolve(x, w, path, attrs["group"]), b)


conv.reference(in_wide(_conv))

conv_transpose = Op(
    "ConvTranspose",
    22,
    "x:T w:T b:T?",
    "y:T",
    attrs={**CONV, "output_padding": optional("ints"), "output_shape": optional("ints")},
    types={"T": FLOATS},
)


@conv_transpose.infer
def _(g: Scope, x: Fact, w: Fact, b: Fact | None, **attrs: Any) -> Fact:
    kernel = conv_kernel(g, x, w, attrs)
    group = attrs["group"]
    g.equal(x.dims[1], w.dims[0], "channels of x and of the weights differ")
    g.divides(group, w.dims[0], "group must divide the channels")
    maps = w.dims[1] * group
    check_bias(g, b, maps)
    sizes = transposed_sizes(window(kernel, attrs), x.dims[2:], attrs)
    for i, size in enumerate(sizes):
        g.at_least(size, 0, f"pads remove more than there is along spatial axis {i}")
    return Fact(x.dtype, (x.dims[0], maps, *sizes))


def _natural_sizes(moved: Window, spatial: Shape, attrs: Mapping[str, Any]) -> Shape:
    """All that a transposed convolution touches, before pads cut it."""
    extra = attrs["output_padding"] or (0,) * len(spatial)
    if len(extra) != len(spatial):
        raise ShapeError(
            f"output_padding {tuple(extra)} does not match {len(spatial)} spatial axes"
        )
    for e, limit in zip(extra, map(max, moved.strides, moved.dilations), strict=True):
        if not 0 <= e < limit:
            raise ShapeError(
                f"output_padding {tuple(extra)} is not smaller than stride or dilation ({limit})"
            )
    rows = zip(spatial, moved.strides, moved.extents, extra, strict=True)
    return tuple((size - 1) * stride + extent + e for size, stride, extent, e in rows)


def transposed_sizes(moved: Window, spatial: Shape, attrs: Mapping[str, Any]) -> Shape:
    """The output's spatial sizes, for an input of these."""
    n = len(spatial)
    natural = _natural_sizes(moved, spatial, attrs)
    asked = attrs["output_shape"]
    if asked:
        if len(asked) not in (n, n + 2) or not all(0 <= a <= MAX_SPAN for a in asked[-n:]):
            raise ShapeError(f"output_shape {tuple(asked)} is no {n} sizes within [0, {MAX_SPAN}]")
        return tuple(asked[-n:])
    if moved.is_same:
        return tuple(size * stride for size, stride in zip(spatial, moved.strides, strict=True))
    return tuple(s - b - e for s, b, e in zip(natural, moved.begins, moved.ends, strict=True))


def transposed_front(moved: Window, path: tuple[Shape, Shape], attrs: Mapping[str, Any]) -> Shape:
    """Elements cut at the front, for (input sizes, output sizes)."""
    spatial, outs = path
    if not moved.is_same and not attrs["output_shape"]:
        return moved.begins
    natural = _natural_sizes(moved, spatial, attrs)
    cut = [maximum(0, n - o) for n, o in zip(natural, outs, strict=True)]
    return tuple(c // 2 if moved.auto_pad == b"SAME_UPPER" else c - c // 2 for c in cut)


def _conv_transpose(x: Array, w: Array, b: Array | None = None, **attrs: Any) -> Array:
    moved = window(w.shape[2:], attrs)
    ins: Ints = x.shape[2:]
    outs = numbers(transposed_sizes(moved, ins, attrs))
    front = numbers(transposed_front(moved, (ins, outs), attrs))
    y = np.zeros((x.shape[0], w.shape[1] * attrs["group"], *outs), x.dtype)
    if x.size and y.size:
        back = Walk(w.shape[2:], moved.strides, moved.dilations, front, outs, ins)
        fold(x, w, y, back, attrs["group"])
    return add_bias(y, b)


conv_transpose.reference(in_wide(_conv_transpose))

deform = Op(
    "DeformConv",
    22,
    "x:T w:T offset:T b:T? mask:T?",
    "y:T",
    attrs={**GEOMETRY, "group": 1, "offset_group": 1},
    types={"T": FLOATS},
)


@deform.infer
def _(
    g: Scope, x: Fact, w: Fact, offset: Fact, b: Fact | None, mask: Fact | None, **attrs: Any
) -> Fact:
    y = Fact(x.dtype, conv_shape(g, x, w, b, attrs))
    check_offsets(g, y, (offset, mask), w.dims[2:], attrs["offset_group"])
    g.divides(attrs["offset_group"], x.dims[1], "offset_group must divide the channels of x")
    return y


deform.reference(in_wide(deform_conv))

col2im = Op(
    "Col2Im",
    18,
    "columns:T image_shape:I block_shape:I",
    "y:T",
    attrs={k: v for k, v in GEOMETRY.items() if k != "kernel_shape"},
    types={"T": NUMBERS | COMPLEX | {BOOL, STRING}, "I": frozenset((I64,))},
)


@col2im.infer
def _(g: Scope, x: Fact, image_shape: Fact, block_shape: Fact, **attrs: Any) -> Fact:
    if x.dtype is STRING:
        raise ShapeError("overlapping blocks are added, and strings have no sum")
    if x.rank != 3 or image_shape.rank != 1 or block_shape.rank != 1:
        raise ShapeError(
            f"Col2Im takes columns of rank 3 and two vectors of sizes, not {x}, {image_shape} and "
            f"{block_shape}"
        )
    g.equal(image_shape.dims[0], block_shape.dims[0], "image_shape and block_shape differ")
    batch, rows, count = x.dims
    image, block = image_shape.sym, block_shape.sym
    if block is not None:
        g.divides(product(block), rows, "the block's elements must divide the rows of the columns")
    channels = g.fresh("channels") if block is None else rows // product(block)
    if image is None:
        rank = image_shape.dims[0]
        if not isinstance(rank, int):
            return Fact(x.dtype, None)
        return Fact(x.dtype, (batch, channels, *(g.fresh("image") for _ in range(rank))))
    if block is not None:
        g.equal(
            _n_blocks(g, image, block, attrs), count, "the number of blocks and of columns differ"
        )
    return Fact(x.dtype, (batch, channels, *image))


def _n_blocks(g: Scope, image: Shape, block: Shape, attrs: Mapping[str, Any]) -> Size:
    if len(block) != len(image):
        raise ShapeError(f"block_shape has {len(block)} sizes, and image_shape has {len(image)}")
    for size in image:
        g.at_least(size, 0, f"image_shape {image} has a negative size")
    moved = window(block, attrs)
    moved.check(g, image)
    return product(moved.outs(image))


def _col2im(x: Array, image_shape: Array, block_shape: Array, **attrs: Any) -> Array:
    image, block = as_ints(image_shape), as_ints(block_shape)
    assert image is not None
    assert block is not None
    path = walk(window(block, attrs), image)
    if math.prod(path.outs) != x.shape[2] or x.shape[1] % path.n_taps:
        raise InvalidArgument(
            f"columns of shape {x.shape} do not fit blocks {block} in an image {image}"
        )
    channels = x.shape[1] // path.n_taps
    y = np.zeros((x.shape[0], channels, *image), x.dtype)
    add_blocks(x.reshape(x.shape[0], channels, path.n_taps, *path.outs), y, path)
    return y


col2im.reference(in_wide(_col2im))

causal = Op(
    "CausalConvWithState",
    27,
    "x:T w:T b:T? past:T?",
    "y:T present:T",
    attrs={"activation": b"none"},
    types={"T": frozenset((F32, F16, BF16))},
)


@causal.infer
def _(
    g: Scope, x: Fact, w: Fact, b: Fact | None, past: Fact | None, *, activation: bytes
) -> tuple[Fact, Fact]:
    if activation not in (b"none", b"silu", b"swish"):
        raise ShapeError(f"activation is {activation!r}, and may be none, silu or swish")
    if x.rank != 3 or w.rank != 3:
        raise ShapeError(f"input and weights have rank 3, not {x.rank} and {w.rank}")
    batch, channels, _ = x.dims
    g.equal(w.dims[0], channels, "channels of the weights and of the input differ")
    g.equal(w.dims[1], 1, "the weights' second size must be 1")
    g.at_least(w.dims[2], 1, "the kernel is empty")
    check_bias(g, b, channels)
    state = (batch, channels, w.dims[2] - 1)
    if past is not None:
        if past.rank != 3:
            raise ShapeError(f"past_state has rank {past.rank}, and must have 3")
        for i, (have, need) in enumerate(zip(past.dims, state, strict=True)):
            g.equal(have, need, f"axis {i} of past_state does not fit")
    return x.plain(), Fact(x.dtype, state)


def _causal_conv(
    x: Array, w: Array, b: Array | None = None, past: Array | None = None, *, activation: bytes
) -> tuple[Array, Array]:
    taps, length = w.shape[2], x.shape[2]
    before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past is None else past
    line = np.concatenate((before, x), axis=2)
    y = np.zeros(x.shape, x.dtype)
    for tap in range(taps):
        y += w[:, 0, tap, None] * line[:, :, tap : tap + length]
    add_bias(y, b)
    return y if activation == b"none" else y * sigmoid(y), line[:, :, length:].copy()


causal.reference(in_wide(_causal_conv))

OPS: Final = (conv, conv_transpose, deform, col2im, causal)
