"""Conv, ConvTranspose, Col2Im and CausalConvWithState of the ONNX domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape, Size, maximum, product
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, as_ints, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.im2col import add_bias, add_transposed, col2im_add, convolve
from sardonyx.ops.decomposition import Outputs, known_size, need
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.sizes import CLASSIC, SIZES
from sardonyx.ops.sliding_window import (
    MAX_SPAN,
    Ints,
    Window,
    WindowGeometry,
    numbers,
    window_geometry,
    window_of,
)

GEOMETRY: Final[dict[str, Any]] = {
    "dilations": optional("ints"),
    "kernel_shape": optional("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}
CONV: Final[dict[str, Any]] = {**GEOMETRY, "auto_pad": b"NOTSET", "group": 1}


def conv_shape(g: Scope, x: Fact, w: Fact, b: Fact | None, attrs: Mapping[str, Any]) -> Shape:
    """Return the output shape; weights are (out_channels, channels / group, *kernel)."""
    kernel = conv_kernel(g, x, w, attrs)
    out_channels, group = w.dims[0], attrs["group"]
    what = f"channels of x, and of the weights times group={group}, differ"
    g.equal(x.dims[1], w.dims[1] * group, what)
    g.divides(group, out_channels, "group must divide the output channels")
    check_bias(g, b, out_channels)
    window = window_of(kernel, attrs)
    window.check(g, x.dims[2:])
    return (x.dims[0], out_channels, *window.outs(x.dims[2:]))


def conv_kernel(g: Scope, x: Fact, w: Fact, attrs: Mapping[str, Any]) -> Shape:
    """Return the kernel's shape, from the weights; kernel_shape may only repeat it."""
    if x.rank < 3:
        raise ShapeError(
            f"x has rank {x.rank}; a convolution needs batch, channels and spatial axes"
        )
    if w.rank != x.rank:
        raise ShapeError(f"the weights have rank {w.rank}, and x has {x.rank}")
    if attrs["group"] < 1:
        raise ShapeError(f"group must be at least 1, got {attrs['group']}")
    kernel, declared = w.dims[2:], attrs["kernel_shape"]
    if not declared:
        return kernel
    if len(declared) != len(kernel):
        raise ShapeError(
            f"kernel_shape {tuple(declared)} does not match the {len(kernel)} spatial axes"
        )
    what = f"kernel_shape {tuple(declared)} differs from the weights along spatial axis"
    pairs = enumerate(zip(kernel, declared, strict=True))
    return tuple(g.equal(k, s, f"{what} {i}") for i, (k, s) in pairs)


def check_bias(g: Scope, b: Fact | None, out_channels: Size) -> None:
    """Require a bias of one number per output channel."""
    if b is None:
        return
    if b.rank != 1:
        raise ShapeError(f"the bias must be a vector, got rank {b.rank}")
    g.equal(b.dims[0], out_channels, "the bias does not hold one number per output channel")


conv = Op("Conv", 22, "x:T w:T b:T?", "y:T", attrs=CONV, types={"T": FLOATS})


@conv.infer
def infer_conv(g: Scope, x: Fact, w: Fact, b: Fact | None, **attrs: Any) -> Fact:
    """The fact of a convolution of x with the weights w, plus the bias b."""
    return Fact(x.dtype, conv_shape(g, x, w, b, attrs))


@conv.reference
@in_wide
def _(x: Array, w: Array, b: Array | None = None, **attrs: Any) -> Array:
    geometry = window_geometry(window_of(w.shape[2:], attrs), x.shape[2:])
    return add_bias(convolve(x, w, geometry, attrs["group"]), b)


TRANSPOSED: Final = {**CONV, "output_padding": optional("ints"), "output_shape": optional("ints")}
conv_transpose = Op(
    "ConvTranspose", 22, "x:T w:T b:T?", "y:T", attrs=TRANSPOSED, types={"T": FLOATS}
)


@conv_transpose.infer
def infer_transposed(g: Scope, x: Fact, w: Fact, b: Fact | None, **attrs: Any) -> Fact:
    """Infer ConvTranspose; weights are (channels, out_channels / group, *kernel)."""
    kernel = conv_kernel(g, x, w, attrs)
    group = attrs["group"]
    g.equal(x.dims[1], w.dims[0], "channels of x and of the weights differ")
    g.divides(group, w.dims[0], "group must divide the channels")
    out_channels = w.dims[1] * group
    check_bias(g, b, out_channels)
    sizes = transposed_sizes(window_of(kernel, attrs), x.dims[2:], attrs)
    for i, size in enumerate(sizes):
        g.at_least(size, 0, f"pads remove more than there is along spatial axis {i}")
    return Fact(x.dtype, (x.dims[0], out_channels, *sizes))


def _natural_sizes(window: Window, spatial: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Return the output sizes of a transposed convolution before its pads are cropped."""
    extra = attrs["output_padding"] or (0,) * len(spatial)
    if len(extra) != len(spatial):
        what = f"output_padding {tuple(extra)} does not match {len(spatial)} spatial axes"
        raise ShapeError(what)
    for e, limit in zip(extra, map(max, window.strides, window.dilations), strict=True):
        if not 0 <= e < limit:
            raise ShapeError(
                f"output_padding {tuple(extra)} is not smaller than stride or dilation ({limit})"
            )
    # Inputs are `stride` apart in the output, and each adds a kernel of `extent` elements.
    axes = zip(spatial, window.strides, window.extents, extra, strict=True)
    return tuple((size - 1) * stride + extent + e for size, stride, extent, e in axes)


def transposed_sizes(window: Window, spatial: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Return the spatial sizes of a transposed convolution's output."""
    n = len(spatial)
    natural = _natural_sizes(window, spatial, attrs)
    output_shape = attrs["output_shape"]
    if output_shape:
        sizes = tuple(output_shape[-n:])
        if len(output_shape) not in (n, n + 2) or not 0 <= min(sizes) <= max(sizes) <= MAX_SPAN:
            raise ShapeError(
                f"output_shape {tuple(output_shape)} is not {n} sizes within [0, {MAX_SPAN}]"
            )
        return sizes
    if window.is_same:
        return tuple(size * stride for size, stride in zip(spatial, window.strides, strict=True))
    return tuple(s - b - e for s, b, e in zip(natural, window.begins, window.ends, strict=True))


def transposed_front(
    window: Window, geometry: tuple[Shape, Shape], attrs: Mapping[str, Any]
) -> Shape:
    """Return the elements cropped at the front, for (input sizes, output sizes)."""
    spatial, outs = geometry
    if not window.is_same and not attrs["output_shape"]:
        return window.begins
    # With a given output size the pads follow from it; of an odd total, SAME_UPPER crops the
    # extra element at the end, and every other mode at the front.
    natural = _natural_sizes(window, spatial, attrs)
    cut = [maximum(0, n - o) for n, o in zip(natural, outs, strict=True)]
    return tuple(c // 2 if window.auto_pad == b"SAME_UPPER" else c - c // 2 for c in cut)


@conv_transpose.reference
@in_wide
def _(x: Array, w: Array, b: Array | None = None, **attrs: Any) -> Array:
    window = window_of(w.shape[2:], attrs)
    ins: Ints = x.shape[2:]
    outs = numbers(transposed_sizes(window, ins, attrs))
    front = numbers(transposed_front(window, (ins, outs), attrs))
    y = np.zeros((x.shape[0], w.shape[1] * attrs["group"], *outs), x.dtype)
    if x.size and y.size:
        # A transposed convolution is the adjoint of the convolution from its output to its input.
        back = WindowGeometry(w.shape[2:], window.strides, window.dilations, front, outs, ins)
        add_transposed(x, w, y, back, attrs["group"])
    return add_bias(y, b)


col2im = Op(
    "Col2Im",
    18,
    "columns:T image_shape:I block_shape:I",
    "y:T",
    attrs={k: v for k, v in GEOMETRY.items() if k != "kernel_shape"},
    types={"T": CLASSIC, "I": SIZES},
)


@col2im.infer
def _(g: Scope, x: Fact, image_shape: Fact, block_shape: Fact, **attrs: Any) -> Fact:
    if x.dtype is STRING:
        raise ShapeError("overlapping blocks are added, and strings have no sum")
    if x.rank != 3 or image_shape.rank != 1 or block_shape.rank != 1:
        raise ShapeError(
            f"Col2Im needs columns of rank 3 and two vectors of sizes, got {x}, {image_shape} and "
            f"{block_shape}"
        )
    g.equal(image_shape.dims[0], block_shape.dims[0], "image_shape and block_shape differ")
    batch, rows, count = x.dims
    image, block = image_shape.sym, block_shape.sym
    if block is not None:
        g.divides(product(block), rows, "the block's elements must divide the rows of the columns")
    channels = g.new_dim("channels") if block is None else rows // product(block)
    if image is None:
        rank = image_shape.dims[0]
        if not isinstance(rank, int):
            return Fact(x.dtype, None)
        return Fact(x.dtype, (batch, channels, *(g.new_dim("image") for _ in range(rank))))
    if block is not None:
        n_blocks = _n_blocks(g, image, block, attrs)
        g.equal(n_blocks, count, "the number of blocks and of columns differ")
    return Fact(x.dtype, (batch, channels, *image))


def _n_blocks(g: Scope, image: Shape, block: Shape, attrs: Mapping[str, Any]) -> Size:
    if len(block) != len(image):
        raise ShapeError(f"block_shape has {len(block)} sizes, and image_shape has {len(image)}")
    for size in image:
        g.at_least(size, 0, f"image_shape {image} has a negative size")
    window = window_of(block, attrs)
    window.check(g, image)
    return product(window.outs(image))


@col2im.reference
@in_wide
def _(x: Array, image_shape: Array, block_shape: Array, **attrs: Any) -> Array:
    image, block = as_ints(image_shape), as_ints(block_shape)
    geometry = window_geometry(window_of(block, attrs), image)
    if math.prod(geometry.outs) != x.shape[2] or x.shape[1] % geometry.n_taps:
        raise InvalidArgument(
            f"columns of shape {x.shape} do not fit blocks {block} in an image {image}"
        )
    channels = x.shape[1] // geometry.n_taps
    y = np.zeros((x.shape[0], channels, *image), x.dtype)
    col2im_add(x.reshape(x.shape[0], channels, geometry.n_taps, *geometry.outs), y, geometry)
    return y


causal = Op(
    "CausalConvWithState",
    27,
    "x:T w:T b:T? past:T?",
    "y:T present:T",
    attrs={"activation": b"none"},
    types={"T": frozenset((F32, F16, BF16))},
)


@causal.infer
def infer_causal(
    g: Scope, x: Fact, w: Fact, b: Fact | None, past: Fact | None, *, activation: bytes
) -> tuple[Fact, Fact]:
    """The facts of the output and of the state that the next call continues from."""
    if activation not in (b"none", b"silu", b"swish"):
        raise ShapeError(f"activation must be none, silu or swish, got {activation!r}")
    if x.rank != 3 or w.rank != 3:
        raise ShapeError(f"input and weights must have rank 3, got {x.rank} and {w.rank}")
    batch, channels, _ = x.dims
    g.equal(w.dims[0], channels, "channels of the weights and of the input differ")
    g.equal(w.dims[1], 1, "the weights' second size must be 1")
    g.at_least(w.dims[2], 1, "the kernel is empty")
    check_bias(g, b, channels)
    state = (batch, channels, w.dims[2] - 1)
    if past is not None:
        if past.rank != 3:
            raise ShapeError(f"past_state must have rank 3, got {past.rank}")
        for i, (have, need) in enumerate(zip(past.dims, state, strict=True)):
            g.equal(have, need, f"axis {i} of past_state does not fit")
    return x.without_contents(), Fact(x.dtype, state)


@causal.reference
@in_wide
def _(
    x: Array, w: Array, b: Array | None = None, past: Array | None = None, *, activation: bytes
) -> tuple[Array, Array]:
    taps, length = w.shape[2], x.shape[2]
    # The state is the causal padding: the inputs before the first that its taps read.
    before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past is None else past
    padded = np.concatenate((before, x), axis=2)
    y = np.zeros(x.shape, x.dtype)
    for tap in range(taps):
        y += w[:, 0, tap, None] * padded[:, :, tap : tap + length]
    add_bias(y, b)
    return y if activation == b"none" else y * sigmoid(y), padded[:, :, length:].copy()


@causal.decompose
def decompose_causal(b: Builder, node: Node) -> Outputs:
    """CausalConvWithState, standard or com.microsoft: the state, a Conv, the new state."""
    x, w = input_of(node, 0), input_of(node, 1)
    bias, past = optional_input(node, 2), optional_input(node, 3)
    attrs = {"channels_last": 0, "dilation": 1, "state_window": 0, **node.attrs}
    need(not attrs["state_window"], "the state has a window")
    is_last = attrs["channels_last"]
    need(not is_last or x.tensor.rank == 3, "channels-last with several spatial axes")
    sizes = (known_size(w.tensor.dims[i], "the weights have symbolic sizes") for i in (0, 2))
    channels, taps = sizes
    # The state has the inputs that the first taps of the next call still read.
    n_state = (taps - 1) * attrs["dilation"]
    padded: Value = x
    axis = 1 if is_last else 2
    # Causal padding: zeros before the first input, none after the last.
    if past is None:
        before = [0, 0, 0, 0, 0, 0]
        before[axis] = n_state
        padded = b.Pad(x, b.ints(*before))
    elif n_state:
        padded = b.Concat(past, x, axis=axis)
    images = b.Transpose(padded, perm=(0, 2, 1)) if is_last else padded
    y = b.Conv(images, w, bias, group=channels, dilations=(attrs["dilation"],))
    if attrs["activation"] != b"none":
        y = b.Mul(y, b.Sigmoid(y))
    if is_last:
        y = b.Transpose(y, perm=(0, 2, 1))
    length = b.Shape(x, start=axis, end=axis + 1)
    ends = b.ints(np.iinfo(np.int64).max)
    return y, b.Slice(padded, length, ends, b.ints(axis))


OPS: Final = (conv, conv_transpose, col2im, causal)
