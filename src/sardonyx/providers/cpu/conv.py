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
from sardonyx.providers.cpu.epilogue import epilogue
from sardonyx.providers.cpu.index import MULTIPLIES_BF16, Lowering
from sardonyx.providers.cpu.sliding_window import MAX_SPATIAL, unfit, window_ints

PANEL: Final = 32  # output channels of a packed panel


NARROW: Final = 16  # output channels of a group, below which groups share vectors


FEW_MAPS: Final = 12  # output channels, up to which vectors may hold neighbouring outputs


MAX_REACH: Final = 1 << 16  # elements that a window may span, with its dilation, to be kept


MAX_DEPTH: Final = 256  # channels that a product adds up in one pass


PATCHES: Final[dict[Shape, int]] = {(3, 3): 4, (5, 5): 2}  # kernels, and Winograd's tiles


MIN_CHANNELS: Final = 16  # for Winograd


MIN_TILES: Final = 4  # of an image: fewer do not make up for weights that are transformed


MAX_JOINED: Final = 256  # columns that the phases of a transposed convolution are joined to


MAX_PHASES: Final = 4096  # of a transposed convolution: the product of its strides


def conv(node: Node) -> Call | No:
    operands = _weights(node)
    if isinstance(operands, No):
        return operands
    x, w, shape = operands
    moved = window_of(shape[2:], node.attrs)
    if why := unfit(moved):
        return why
    after = epilogue(node)
    if isinstance(after, No):
        return after
    ints = (*window_ints(moved, x.tensor.dims[1:-1]), node.attrs["group"], *after.ints)
    row, weights = _form(node, w, moved) if w.is_const else ("conv_unpacked_f32", w)
    return Call(
        row,
        (x, weights, *after.operands),
        ints,
        after.floats,
        shares=after.shares,
        writes_rows=True,
    )


def _form(node: Node, w: Value, moved: Window) -> tuple[str, Packed]:
    """The row that suits a convolution best, and the weights as it wants them."""
    maps, channels, *kernel = w.tensor.static or ()
    group = node.attrs["group"]
    taps = math.prod(kernel)
    is_narrow = group > 1 and maps // group < NARROW and channels < NARROW
    if is_narrow and math.prod(numbers(moved.extents)) <= MAX_REACH:
        return "conv_depthwise_f32", Packed(w, "conv_pack", _size(maps, channels * taps), (1,))
    reach = channels * math.prod(numbers(moved.extents))
    if group == 1 and maps <= FEW_MAPS and moved.strides[-1] <= kernel[-1] and reach <= MAX_REACH:
        return "conv_few_channels_f32", Packed(w, "conv_pack", _size(maps, channels * taps), (1,))
    is_winograd = _is_winograd(node, moved)
    if MULTIPLIES_BF16 and node.attrs["bf16"] and not is_winograd:
        size = group * _size(maps // group, -(-channels * taps // 2))
        return "conv_bf16", Packed(w, "conv_pack_bf16", size, (group,))
    size = group * _size(maps // group, channels * taps)
    row = "conv_winograd_f32" if is_winograd else "conv_f32"
    return row, Packed(w, "conv_pack", size, (group,))


def _is_winograd(node: Node, moved: Window) -> bool:
    """Whether Winograd's products are fewer by more than its transforms and its weights cost."""
    if moved.kernel not in PATCHES or moved.strides != (1, 1) or node.attrs["group"] != 1:
        return False
    *outs, maps = node.outputs[0].tensor.dims[1:]
    x = node.inputs[0]
    assert x is not None
    channels = x.tensor.dims[-1]
    if not isinstance(maps, int) or not isinstance(channels, int):
        return False
    passes = -(-channels // MAX_DEPTH)
    return (
        channels >= MIN_CHANNELS
        and maps >= MIN_CHANNELS
        and channels % passes == 0
        and _fills_tiles(outs, moved)
    )


def _fills_tiles(outs: list[Size], moved: Window) -> bool:
    """Whether tiles are many, and full enough to save a third of all products; if known."""
    sizes = [d for d in outs if isinstance(d, int)]
    if len(sizes) < len(outs):
        return True
    tile = PATCHES[moved.kernel]
    tiles = math.prod(
        -(-d // (tile * spread)) * spread for d, spread in zip(sizes, moved.dilations, strict=True)
    )
    taps = math.prod(numbers(moved.kernel))
    return tiles >= MIN_TILES and 36 * tiles * 3 <= math.prod(sizes) * taps * 2


def conv_transpose(node: Node) -> Call | No:
    operands = _weights(node)
    if isinstance(operands, No):
        return operands
    x, w, shape = operands
    moved = window_of(shape[2:], node.attrs)
    if why := unfit(moved):
        return why
    if not w.is_const:
        return No("the weights are not constant")
    if math.prod(moved.strides) > MAX_PHASES:
        return No(f"the strides {moved.strides} are too large")
    after = epilogue(node)
    if isinstance(after, No):
        return after
    group = node.attrs["group"]
    spatial, outs = x.tensor.dims[1:-1], node.outputs[0].tensor.dims[1:-1]
    front = transposed_front(moved, (spatial, outs), node.attrs)
    sizes = (*moved.kernel, *moved.strides, *moved.dilations, *front)
    ones = (1,) * (MAX_SPATIAL - len(spatial))
    taps = math.prod(shape[2:])
    size = group * _size(shape[1], (shape[0] // group) * taps)
    is_joined = _is_joined(node, moved, shape) and set(front) == {0}
    if is_joined:
        size = _size(taps * shape[1], shape[0])
    ints = (*sizes, group, int(is_joined), *after.ints)
    layout = (*ones, *shape[2:], *ones, *moved.strides, *ones, *moved.dilations, group)
    packed = Packed(w, "conv_transpose_pack", size, (*layout, int(is_joined)))
    return Call(
        "conv_transpose_f32",
        (x, packed, *after.operands),
        ints,
        after.floats,
        shares=after.shares,
        writes_rows=True,
    )


def _is_joined(node: Node, moved: Window, shape: Ints) -> bool:
    """Whether kernels lie side by side: then the outputs of a pixel are columns of one product."""
    x = node.inputs[0]
    assert x is not None
    sizes = zip(x.tensor.dims[1:-1], moved.strides, strict=True)
    return (
        node.attrs["group"] == 1
        and math.prod(shape[1:]) <= MAX_JOINED
        and shape[2:] == moved.strides
        and set(moved.dilations) == {1}
        and node.outputs[0].tensor.dims[1:-1] == tuple(d * stride for d, stride in sizes)
    )


def col2im(node: Node) -> Call | No:
    x, out = input_of(node, 0), node.outputs[0].tensor
    block = input_of(node, 2).tensor.ints
    if x.tensor.dtype not in (F32, F64, I32, I64):
        return No(f"no kernel for {x.tensor.dtype}")
    if block is None or input_of(node, 1).tensor.sym is None:
        return No("the sizes of the image or of its blocks are known only when it runs")
    moved, image = window_of(block, node.attrs), out.dims[2:]
    if why := unfit(moved):
        return why
    return Call("col2im", (x,), (*window_ints(moved, image), *moved.outs(image)))


def _size(maps: int, depth: int) -> int:
    """Bytes of packed weights, of floats or of pairs of bf16."""
    return -(-maps // PANEL) * PANEL * depth * 4


def _weights(node: Node) -> tuple[Value, Value, Ints] | No:
    """The image, and weights with their shape."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    shape = w.tensor.static
    if shape is None:
        return No("the shape of the weights is not known")
    if 0 in shape:
        return No("the weights are empty")
    return x, w, shape


def deform_columns(node: Node) -> Call | No:
    x = input_of(node, 0)
    moved = window_of(node.attrs["kernel_shape"], node.attrs)
    if why := unfit(moved):
        return why
    ints = (*window_ints(moved, x.tensor.dims[2:]), node.attrs["offset_group"])
    return Call("deform_columns", tuple(node.inputs), ints)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "Col2Im"): col2im,
    (INTERNAL, "Conv"): conv,
    (INTERNAL, "ConvTranspose"): conv_transpose,
    (INTERNAL, "DeformColumns"): deform_columns,
}
