"""Quantization, dequantization, and 8-bit matmul and convolution on the CPU."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, F64, FLOAT8, FLOATS, I8, I16, I32, U8, U16, by_name
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.sliding_window import Window, numbers, window_of
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import IN_PLACE, Lowerings, direct, padded_inputs
from sardonyx.providers.cpu.sliding_window import unsupported, window_ints

_PANEL: Final = 32  # columns of packed weights, as in native/kernels/quantize/tile_int8.h
_GROUP: Final = 4  # weights of a column that one dot-product instruction multiplies
_BLOCK: Final = 64  # channels of packed depthwise weights
_OUTPUTS: Final = 16  # of a block of packed weights for groups of few channels
_MAX_GROUP: Final = 64  # channels of a group that are few
_MAX_PADDING: Final = 1 << 14  # pixels by which a padded copy may exceed one pixel
_MAX_TAPS: Final = 124  # of the depthwise kernel: kMaxTaps less a padded group
_INT8: Final = frozenset((U8, I8))
_QUANTIZED: Final = frozenset((U8, I8, U16, I16))
_SUB_BYTE: Final = frozenset(map(by_name, ("u4", "i4", "u2", "i2")))
_NARROW: Final = FLOAT8 | _SUB_BYTE
_REAL: Final = FLOATS - {F64}
_UNBOUNDED: Final = (-math.inf, math.inf)


@frozen
class QuantizedOperands:
    """Operands of an 8-bit matmul or convolution, in the order of kernels and internal ops."""

    x: Value
    w: Value
    x_scale: Value | None = None
    x_zero: Value | None = None
    w_scale: Value | None = None
    w_zero: Value | None = None
    bias: Value | None = None
    y_scale: Value | None = None
    y_zero: Value | None = None

    def packed_weights(self) -> tuple[int, Value | None]:
        """Return the type and the zero point of weights after packing, which makes them signed.

        Unsigned weights with zero point 128 are signed weights with zero point 0: None.
        """
        dtype, zero = self.w.tensor.dtype, self.w_zero
        middle = 128 if dtype is U8 else 0
        if zero is None:
            return dtype.onnx, None
        if zero.const is not None and (zero.const.read() == middle).all():
            return I8.onnx, None
        return dtype.onnx, zero

    def after_weights(self, w_zero: Value | None) -> tuple[Value | None, ...]:
        """Return the operands after the weights."""
        y = (self.y_scale, self.y_zero)
        return (self.x_scale, self.x_zero, self.w_scale, w_zero, self.bias, *y)

    def unsupported(self) -> str:
        """Return why kernels do not support the operands; empty if they do."""
        for side in (self.x, self.w):
            if side.tensor.dtype not in _INT8:
                return f"no kernel for products of {side.tensor.dtype}"
        for scale in (self.x_scale, self.w_scale, self.y_scale):
            if scale is not None and scale.tensor.dtype is not F32:
                return f"no kernel for scales of {scale.tensor.dtype}"
        for value in (self.x_scale, self.x_zero):
            if value is not None and any(d != 1 for d in value.tensor.dims):
                return "no kernel for several scales of the left side"
        return ""


def packed_bytes(k: int, n: int, lines: int = 1) -> int:
    """Return the bytes of packed weights: n columns of `lines` lines of the kernel, k rows each.

    Each line is padded to whole groups. The int32 sums of the columns follow the panels: kernels
    subtract them, times the zero point of x.
    """
    panels = -(-n // _PANEL)
    return panels * _PANEL * (lines * -(-k // _GROUP) * _GROUP + 4)


def _tap_groups(lines: int, columns: int) -> int:
    """Return the groups of depthwise taps, as in native/kernels/quantize/depthwise_int8.cc."""
    return columns if columns == 3 and 2 <= lines <= _GROUP else -(-lines * columns // _GROUP)


def grouped_bytes(groups: int, channels: int, out_channels: int, taps: int) -> int:
    """Return the bytes of weights packed for groups of few channels; 0 if there is no kernel.

    The layout is that of native/kernels/quantize/grouped_int8.cc: groups are joined until they have
    whole fours of channels, and blocks of outputs hold several of them.
    """
    joined = _GROUP // math.gcd(channels, _GROUP)
    fours, wide = channels * joined // _GROUP, out_channels * joined
    per_step = _OUTPUTS // wide * wide if wide <= _OUTPUTS else wide
    # Vectors load the fours of all their groups at once.
    span = (per_step // wide - 1) * fours + 1
    if groups % joined or span > _OUTPUTS or max(channels, out_channels) > _MAX_GROUP:
        return 0
    blocks = -(-groups * out_channels // per_step) * -(-per_step // _OUTPUTS)
    return blocks * (taps + 1) * fours * _GROUP * _OUTPUTS + groups * out_channels * 4


def _can_copy(window: Window) -> bool:
    """Whether images may be copied with their padding: attributes alone could make it huge."""
    n = len(window.kernel)
    pads = [window.pads[i] + window.pads[n + i] for i in range(n)]
    if window.is_same:
        pads = list(numbers(window.extents))
    return math.prod(1 + abs(pad) for pad in pads) <= _MAX_PADDING


def _is_pointwise(window: Window) -> bool:
    """Whether every window is one pixel, in order."""
    return {*window.kernel, *window.strides} == {1} and not any(window.pads)


def _operands(node: Node) -> QuantizedOperands:
    """Return the operands of an internal op."""
    return QuantizedOperands(input_of(node, 0), input_of(node, 1), *padded_inputs(node, 9)[2:])


def _bounds(node: Node) -> tuple[float, float]:
    # Clip or Relu before quantization, fused by passes.
    return node.attrs["low"], node.attrs["high"]


def matmul(
    o: QuantizedOperands, bounds: tuple[float, float] = _UNBOUNDED, is_transposed: bool = False
) -> Call | No:
    """Lower a matmul; constant weights are packed when the session starts."""
    w = o.w.tensor
    k, n = w.dims[-2:] if w.rank > 1 else (w.dims[0], 1)
    if is_transposed:
        k, n = n, k
    if why := o.unsupported() or _unsupported_columns(o, n):
        return No(why)
    # Batched weights are packed in each call.
    w_type, w_zero = w.dtype.onnx, o.w_zero
    right: Value | Packed = o.w
    if o.w.is_const and w.rank < 3:
        assert isinstance(k, int)
        assert isinstance(n, int)
        strides = (1, k) if is_transposed else (n, 1)
        right = Packed(o.w, "qgemm_pack", packed_bytes(k, n), (1, 1, 1, k, n, 0, 0, 0, *strides))
        w_type, w_zero = o.packed_weights()
    elif is_transposed:
        return No("no kernel for transposed weights that are not constant")
    ints = (k, n, int(isinstance(right, Packed)), w_type)
    operands = (o.x, right, *o.after_weights(w_zero))
    return Call("qmatmul", operands, ints, bounds, writes_rows=w.rank > 1)


def _unsupported_columns(o: QuantizedOperands, columns: Size) -> str:
    """Return why batched or per-column operands have no kernel; empty if they have."""
    x, w = o.x.tensor, o.w.tensor
    if w.rank > 2 and x.rank != 2 and x.dims[:-2] != w.dims[:-2]:
        return "no kernel that broadcasts batches of 8-bit matrices"
    for value in (o.w_scale, o.w_zero, o.bias):
        # One element, or one per column; a bias is always per column.
        if value is None or (value is not o.bias and all(d == 1 for d in value.tensor.dims)):
            continue
        if any(d != 1 for d in value.tensor.dims[:-1]):
            return "no kernel for scales of batched weights"
        if not value.tensor.rank or value.tensor.dims[-1] != columns:
            return "whether there is one scale or one per column is known only at run time"
    return ""


def qmatmul(node: Node) -> Call | No:
    return matmul(_operands(node), _bounds(node), bool(node.attrs["trans_w"]))


def qconv(node: Node) -> Call | No:
    """Lower to a depthwise kernel, one for groups of few channels, or im2col and matmuls."""
    o = _operands(node)
    shape = o.w.tensor.static
    if not node.attrs["channels_last"]:
        return No("no kernel for channels that are not last")
    if not o.w.is_const or shape is None or 0 in shape:
        return No("the weights are not constant, or empty")
    window = window_of(shape[2:], node.attrs)
    if why := unsupported(window):
        return why
    if reason := o.unsupported():
        return No(reason)
    sliding = window_ints(window, o.x.tensor.dims[1:-1])
    w_type, w_zero = o.packed_weights()
    conv = _QConv(o.w, window, shape, node.attrs["group"], (w_type, *sliding))
    lowered = _depthwise(conv) or _grouped(conv) or _im2col(conv)
    operands = (o.x, lowered.weights, *o.after_weights(w_zero))
    return Call(lowered.kernel, operands, lowered.ints, _bounds(node), writes_rows=True)


@frozen
class _QConv:
    """An 8-bit convolution with constant weights [out_channels, channels of a group, *kernel]."""

    w: Value
    window: Window
    shape: tuple[int, ...]  # of the weights
    group: int
    ints: tuple[Size, ...]  # arguments of all kernels: the type of the weights, and the window

    @property
    def channels(self) -> int:
        """The input channels of a group."""
        return self.shape[1]

    @property
    def group_outs(self) -> int:
        """The output channels of a group."""
        return self.shape[0] // self.group

    @property
    def width(self) -> int:
        """The taps in a line of the kernel."""
        return self.shape[-1]

    @property
    def taps(self) -> int:
        """The elements of the kernel."""
        return math.prod(self.shape[2:])


class _LoweredConv(NamedTuple):
    """The kernel of a convolution, its packed weights and its integer arguments."""

    kernel: str
    weights: Packed
    ints: tuple[Size, ...]


def _depthwise(conv: _QConv) -> _LoweredConv | None:
    """Lower to the depthwise kernel, which holds channels in vectors."""
    out_channels, taps = conv.shape[0], conv.taps
    if conv.channels != 1 or not conv.group == out_channels > 1 or taps > _MAX_TAPS:
        return None
    lines = taps // conv.width
    size = -(-out_channels // _BLOCK) * _BLOCK * (_tap_groups(lines, conv.width) * _GROUP + 4)
    weights = Packed(conv.w, "qdepthwise_pack", size, (out_channels, lines, conv.width))
    return _LoweredConv("qdepthwise", weights, conv.ints)


def _grouped(conv: _QConv) -> _LoweredConv | None:
    """Lower to the kernel for groups of few channels."""
    has_copy = len(conv.shape) < 5 and _can_copy(conv.window)
    # Pixels of wide groups are read in place as rows of a product.
    is_wide = min(conv.channels, conv.group_outs) >= _PANEL and conv.channels % 4 == 0
    if conv.group == 1 or not has_copy or (is_wide and _is_pointwise(conv.window)):
        return None
    sizes = (conv.group, conv.channels, conv.group_outs, conv.taps)
    if not (size := grouped_bytes(*sizes)):
        return None
    weights = Packed(conv.w, "qgrouped_pack", size, sizes)
    return _LoweredConv("qgrouped", weights, (*conv.ints, conv.group))


def _im2col(conv: _QConv) -> _LoweredConv:
    """Lower to im2col and a matmul per group, whose columns are output channels."""
    channels, columns, width, taps = conv.channels, conv.group_outs, conv.width, conv.taps
    lines = taps // width
    # The image has channels last, the weights first: k runs over the pixels of a line, then over
    # the channels of each. Strides of group, line, pixel, channel and column.
    strides = (columns * channels * taps, width, 1, taps, channels * taps)
    size = conv.group * packed_bytes(channels * width, columns, lines)
    layout = (conv.group, lines, width, channels, columns, *strides)
    weights = Packed(conv.w, "qgemm_pack", size, layout)
    w_type, *sliding = conv.ints
    return _LoweredConv("qconv", weights, (w_type, conv.group, conv.shape[0], *sliding))


def qadd(node: Node) -> Call:
    return Call("qadd", padded_inputs(node, 8), (), _bounds(node), shares=((0, 0), (3, 0)))


def qmean(node: Node) -> Call:
    return Call("qmean", padded_inputs(node, 5), (node.attrs["channels_last"],))


def matmul_integer(node: Node) -> Call | No:
    x_zero, w_zero = padded_inputs(node, 4)[2:]
    return matmul(
        QuantizedOperands(input_of(node, 0), input_of(node, 1), x_zero=x_zero, w_zero=w_zero)
    )


def qlinear_matmul(node: Node) -> Call | No:
    if node.outputs[0].tensor.dtype not in _INT8:
        return No(f"no kernel for {node.outputs[0].tensor.dtype}")
    _, a_scale, a_zero, _, b_scale, b_zero, *y = node.inputs
    a, b = input_of(node, 0), input_of(node, 3)
    return matmul(QuantizedOperands(a, b, a_scale, a_zero, b_scale, b_zero, None, *y))


def matmul_to_float(node: Node) -> Call | No:
    """Lower MatMulIntegerToFloat."""
    a, b = input_of(node, 0), input_of(node, 1)
    a_scale, b_scale, a_zero, b_zero, bias = padded_inputs(node, 7)[2:]
    return matmul(QuantizedOperands(a, b, a_scale, a_zero, b_scale, b_zero, bias))


def _call(kernel: str, node: Node) -> Call:
    rank = input_of(node, 0).tensor.rank
    # Of per-axis scales; scalars and vectors have only one choice.
    axis = 0 if rank < 2 else node.attrs["axis"] % rank
    return Call(kernel, padded_inputs(node, 3), (axis, node.attrs["block_size"]))


def quantize(node: Node) -> Call | No:
    x, scale = input_of(node, 0).tensor.dtype, input_of(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x not in _REAL or scale not in _REAL or y not in _QUANTIZED | _NARROW:
        return No(f"no kernel that quantizes {x} by {scale} to {y}")
    if y in FLOAT8 and not node.attrs["saturate"]:
        return No(f"no kernel that quantizes to {y} without saturation")
    if node.attrs["precision"] not in (0, F32.onnx):
        return No("no kernel that divides in another precision than float32")
    return _call("quantize", node)


def dequantize(node: Node) -> Call | No:
    x, scale = input_of(node, 0).tensor.dtype, input_of(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x in _SUB_BYTE and scale in _REAL and input_of(node, 0).is_const:
        from sardonyx.providers.cpu.nbits import dequantized  # few models need it

        return dequantized(node)
    if x not in _QUANTIZED | _NARROW | {I32} or scale not in _REAL or y not in _REAL:
        return No(f"no kernel that dequantizes {x} by {scale} to {y}")
    return _call("dequantize", node)


LOWERINGS: Final[Lowerings] = {
    (INTERNAL, "QAdd"): qadd,
    (INTERNAL, "QConv"): qconv,
    (INTERNAL, "QMatMul"): qmatmul,
    (INTERNAL, "QMean"): qmean,
    (ONNX, "MatMulInteger"): matmul_integer,
    (ONNX, "QLinearMatMul"): qlinear_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): matmul_to_float,
    (INTERNAL, "QLookup"): direct("lookup", shares=IN_PLACE),
    ("", "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): direct("dynamic_quantize"),
}
