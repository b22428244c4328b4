"""Convolutions with channels last on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import F32, F64, I32, I64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.conv.standard import transposed_front
from sardonyx.ops.sliding_window import Ints, Window, numbers, window_of
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.epilogue import Epilogue, epilogue_of
from sardonyx.providers.cpu.index import MULTIPLIES_BF16, Lowerings, for_types
from sardonyx.providers.cpu.sliding_window import MAX_SPATIAL, unsupported, window_ints

PANEL: Final = 32  # output channels of a packed panel: kPanel in native/kernels/matmul/tile.h
# Output channels of a group, below which vectors hold channels of several groups (depthwise.cc):
# panels of 32 would be mostly padding.
NARROW: Final = 16
# Output channels up to which vectors may hold neighbouring outputs, for the same reason: the most
# that few_channels.cc is instantiated for, as its accumulators have to stay in registers.
FEW_CHANNELS: Final = 12
MAX_REACH: Final = 1 << 16  # elements that a window may span, with its dilation, to be cached
# Input channels that a matmul accumulates in one pass: kDepth in native/kernels/matmul/tile.h.
MAX_DEPTH: Final = 256
# Sides of output tiles by kernel: F(4x4,3x3) and F(2x2,5x5), both with 6x6 transformed tiles.
WINOGRAD_TILES: Final[dict[Shape, int]] = {(3, 3): 4, (5, 5): 2}
MIN_CHANNELS: Final = 16  # for Winograd
MIN_TILES: Final = 4  # of an image: fewer do not amortize the transform of the weights
MAX_JOINED: Final = 256  # columns to which the phases of a transposed convolution are joined
MAX_PHASES: Final = 4096  # of a transposed convolution: the product of its strides


def conv(node: Node) -> Call | No:
    """Lower to the kernel that `_algorithm` chooses; constant weights are packed."""
    operands = _operands(node)
    if isinstance(operands, No):
        return operands
    x, w, window, epilogue = operands
    ints = (*window_ints(window, x.tensor.dims[1:-1]), node.attrs["group"], *epilogue.ints)
    if w.is_const:
        return _call(*_algorithm(node, w, window), x, ints, epilogue)
    return _call(_unpacked_algorithm(node, w, window), w, x, ints, epilogue)


def _unpacked_algorithm(node: Node, w: Value, window: Window) -> str:
    """Choose the kernel for weights that are not constant, as those of training."""
    if _is_depthwise(node, w, window):
        return "conv_depthwise_unpacked_f32"
    is_dense = set(window.dilations) == {1}  # a dilated Winograd has one phase more than fits
    is_winograd = is_dense and _is_winograd(node, window, input_of(node, 0), node.outputs[0])
    return "conv_winograd_unpacked_f32" if is_winograd else "conv_unpacked_f32"


def _is_depthwise(node: Node, w: Value, window: Window) -> bool:
    """Whether a convolution is depthwise or nearly so: vectors hold channels of several groups."""
    out_channels, channels = (w.tensor.static or ())[:2]
    group, extent = node.attrs["group"], math.prod(numbers(window.extents))
    is_narrow = max(out_channels // group, channels) < NARROW
    return group > 1 and is_narrow and extent <= MAX_REACH


def _operands(node: Node) -> tuple[Value, Value, Window, Epilogue] | No:
    """Return the image, the weights, their window and the epilogue, if kernels support them."""
    x, w = input_of(node, 0), input_of(node, 1)
    shape = w.tensor.static
    if shape is None:
        return No("the shape of the weights is not known")
    if 0 in shape:
        return No("the weights are empty")
    window = window_of(shape[2:], node.attrs)
    epilogue = unsupported(window) or epilogue_of(node)
    return epilogue if isinstance(epilogue, No) else (x, w, window, epilogue)


def _call(
    kernel: str, weights: Value | Packed, x: Value, ints: tuple[Size, ...], epilogue: Epilogue
) -> Call:
    inputs = (x, weights, *epilogue.operands)
    return Call(kernel, inputs, ints, epilogue.floats, shares=epilogue.shares, writes_rows=True)


def _algorithm(node: Node, w: Value, window: Window) -> tuple[str, Packed]:
    """Choose the kernel of a convolution; return it and the weights in its packed layout."""
    out_channels, channels, *kernel = w.tensor.static or ()
    group, taps = node.attrs["group"], math.prod(kernel)
    extent = math.prod(numbers(window.extents))
    if _is_depthwise(node, w, window):
        return "conv_depthwise_f32", _packed(w, 1, out_channels, channels * taps)
    is_dense = window.strides[-1] <= kernel[-1] and channels * extent <= MAX_REACH
    if group == 1 and out_channels <= FEW_CHANNELS and is_dense:
        return "conv_few_channels_f32", _packed(w, 1, out_channels, channels * taps)
    is_winograd = _is_winograd(node, window, input_of(node, 0), node.outputs[0])
    if MULTIPLIES_BF16 and node.attrs["bf16"] and not is_winograd:
        return "conv_bf16", _packed(
            w, group, out_channels, -(-channels * taps // 2), "conv_pack_bf16"
        )
    name = "conv_winograd_f32" if is_winograd else "conv_f32"
    return name, _packed(w, group, out_channels, channels * taps)


def _packed(
    w: Value, group: int, out_channels: int, depth: int, kernel: str = "conv_pack"
) -> Packed:
    return Packed(w, kernel, group * _packed_bytes(out_channels // group, depth), (group,))


def _packed_bytes(out_channels: int, depth: int) -> int:
    """Return the bytes of packed weights: whole panels of floats, or of pairs of bf16."""
    return -(-out_channels // PANEL) * PANEL * depth * 4


def _is_winograd(node: Node, window: Window, x: Value, y: Value) -> bool:
    """Whether Winograd saves more multiplications than its transforms and larger weights cost.

    x and y are the image and the result of the convolution, or a value with its shape.
    """
    if window.kernel not in WINOGRAD_TILES or window.strides != (1, 1) or node.attrs["group"] != 1:
        return False
    *outs, out_channels = y.tensor.dims[1:]
    channels = x.tensor.dims[-1]
    if not isinstance(out_channels, int) or not isinstance(channels, int):
        return False
    is_wide = min(channels, out_channels) >= MIN_CHANNELS
    # Accumulation passes must have equal depths.
    return is_wide and channels % -(-channels // MAX_DEPTH) == 0 and _fills_tiles(outs, window)


def _fills_tiles(outs: list[Size], window: Window) -> bool:
    """Whether there are enough tiles, full enough to save a third of all multiplications.

    A tile takes 36 multiplications per pair of channels for both kernels. Where the sizes of the
    output are open, they are assumed to be large.
    """
    sizes = [d for d in outs if isinstance(d, int)]
    if len(sizes) < len(outs):
        return True
    tile = WINOGRAD_TILES[window.kernel]
    # A dilated convolution is computed as one convolution per residue of the dilation.
    tiles = math.prod(
        -(-d // (tile * dilation)) * dilation
        for d, dilation in zip(sizes, window.dilations, strict=True)
    )
    taps = math.prod(numbers(window.kernel))
    return tiles >= MIN_TILES and 36 * tiles * 3 <= math.prod(sizes) * taps * 2


def conv_transpose(node: Node) -> Call | No:
    """Lower to one convolution per phase: outputs with equal positions modulo the strides."""
    operands = _operands(node)
    if isinstance(operands, No):
        return operands
    x, w, window, epilogue = operands
    if math.prod(window.strides) > MAX_PHASES:
        return No(f"the strides {window.strides} are too large")
    channels, out_channels, *kernel = w.tensor.static or ()
    group, taps = node.attrs["group"], math.prod(kernel)
    spatial = x.tensor.dims[1:-1]
    front = transposed_front(window, (spatial, node.outputs[0].tensor.dims[1:-1]), node.attrs)
    is_joined = int(set(front) == {0} and _is_joined(node, window, (out_channels, *kernel)))
    ones = (1,) * (MAX_SPATIAL - len(spatial))  # the packing kernel expects three spatial axes
    layout = (*ones, *kernel, *ones, *window.strides, *ones, *window.dilations, group, is_joined)
    if is_joined:
        size = _packed_bytes(taps * out_channels, channels)
    else:
        size = group * _packed_bytes(out_channels, channels // group * taps)
    weights = Packed(w, "conv_transpose_pack", size, layout) if w.is_const else w
    begins = [e - 1 - f for e, f in zip(numbers(window.extents), front, strict=True)]
    if set(window.strides) == {1} and not is_joined and all(_is_count(b) for b in begins):
        ints = (*kernel, *window.strides, *window.dilations, *begins, group, *epilogue.ints)
        return _call(_flipped_algorithm(node, window), weights, x, ints, epilogue)
    sizes = (*window.kernel, *window.strides, *window.dilations, *front)
    name = "conv_transpose_f32" if w.is_const else "conv_transpose_unpacked_f32"
    return _call(name, weights, x, (*sizes, group, is_joined, *epilogue.ints), epilogue)


def _is_count(number: Size) -> bool:
    return isinstance(number, int) and number >= 0


def _flipped_algorithm(node: Node, window: Window) -> str:
    """Choose the kernel of a ConvTranspose of stride 1: a convolution with flipped weights.

    conv_transpose_pack gives them the layout that conv_pack would give to their flipped form.
    """
    is_const = input_of(node, 1).is_const
    is_dense = set(window.dilations) == {1}
    if is_dense and _is_winograd(node, window, input_of(node, 0), node.outputs[0]):
        return "conv_winograd_f32" if is_const else "conv_winograd_flipped_unpacked_f32"
    return "conv_f32" if is_const else "conv_flipped_unpacked_f32"


def _is_joined(node: Node, window: Window, columns: Ints) -> bool:
    """Whether kernels do not overlap: then all outputs of a pixel are columns of one matmul."""
    sizes = zip(input_of(node, 0).tensor.dims[1:-1], window.strides, strict=True)
    return (
        node.attrs["group"] == 1
        and math.prod(columns) <= MAX_JOINED
        and columns[1:] == window.strides
        and set(window.dilations) == {1}
        and node.outputs[0].tensor.dims[1:-1] == tuple(d * stride for d, stride in sizes)
    )


def col2im(node: Node) -> Call | No:
    """Lower Col2Im, which adds overlapping blocks to an image of known size."""
    x, out = input_of(node, 0), node.outputs[0].tensor
    block = input_of(node, 2).tensor.ints
    if block is None or input_of(node, 1).tensor.sym is None:
        return No("the sizes of the image or of its blocks are known only at run time")
    window, image = window_of(block, node.attrs), out.dims[2:]
    ints = (*window_ints(window, image), *window.outs(image))
    return unsupported(window) or Call("col2im", (x,), ints)


def deform_columns(node: Node) -> Call | No:
    """Lower the im2col of a DeformConv: the samples that each output reads, interpolated."""
    window = window_of(node.attrs["kernel_shape"], node.attrs)
    sliding = window_ints(window, input_of(node, 0).tensor.dims[2:])
    ints = (*sliding, node.attrs["offset_group"])
    return unsupported(window) or Call("deform_columns", node.inputs, ints)


def weight_gradient(node: Node) -> Call | No:
    """Lower the gradient with respect to the weights; images are channels-last."""
    if not node.attrs["channels_last"]:
        return No("the images have the channels first")
    x, dy = input_of(node, 0), input_of(node, 1)
    window = window_of(node.attrs["kernel_shape"], node.attrs)
    ints = (*window_ints(window, x.tensor.dims[1:-1]), node.attrs["group"])
    is_winograd = set(window.dilations) == {1} and _is_winograd(node, window, x, dy)
    kernel = "conv_winograd_gradient_f32" if is_winograd else "conv_weight_gradient_f32"
    return unsupported(window) or Call(kernel, (x, dy), ints)


LOWERINGS: Final[Lowerings] = {
    ("", "Col2Im"): for_types((F32, F64, I32, I64), col2im),
    (INTERNAL, "Conv"): for_types((F32,), conv),
    (INTERNAL, "ConvTranspose"): for_types((F32,), conv_transpose),
    (INTERNAL, "ConvWeightGradient"): for_types((F32,), weight_gradient),
    (INTERNAL, "DeformColumns"): deform_columns,
}
