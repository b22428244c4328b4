"""Quantization, dequantization and 8-bit products on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I8, I16, I32, U8, U16, by_name
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.sliding_window import window_of
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.sliding_window import unfit, window_ints

_PANEL: Final = 32  # columns of packed weights, as in native/kernels/quantize/tile_int8.h


_GROUP: Final = 4


_BLOCK: Final = 64  # channels of packed weights whose channels stay apart


_MAX_TAPS: Final = 124


_BYTES: Final = frozenset((U8, I8))


_EVERYTHING: Final = (float("-inf"), float("inf"))


@frozen
class Operands:
    """What every product of 8-bit numbers is made of, in the order that kernels take it in."""

    x: Value
    w: Value
    x_scale: Value | None = None
    x_zero: Value | None = None
    w_scale: Value | None = None
    w_zero: Value | None = None
    bias: Value | None = None
    y_scale: Value | None = None
    y_zero: Value | None = None

    def weights(self) -> tuple[int, Value | None]:
        """The type of packed weights, which are signed, and their zero point if it matters.

        A zero point in the middle of unsigned bytes is 0 of signed ones.
        """
        dtype, zero = self.w.tensor.dtype, self.w_zero
        middle = 128 if dtype is U8 else 0
        if zero is None:
            return dtype.onnx, None
        if zero.const is not None and (zero.const.read() == middle).all():
            return I8.onnx, None
        return dtype.onnx, zero

    def rest(self, w_zero: Value | None) -> tuple[Value | None, ...]:
        """All behind the weights."""
        return (
            self.x_scale, self.x_zero, self.w_scale, w_zero, self.bias, self.y_scale, self.y_zero,
        )  # fmt: skip

    def unfit(self) -> str:
        """Why kernels cannot take them; empty if they can."""
        for side in (self.x, self.w):
            if side.tensor.dtype not in _BYTES:
                return f"no kernel for products of {side.tensor.dtype}"
        for scale in (self.x_scale, self.w_scale, self.y_scale):
            if scale is not None and scale.tensor.dtype is not F32:
                return f"no kernel for scales of {scale.tensor.dtype}"
        for row in (self.x_scale, self.x_zero):
            if row is not None and any(d != 1 for d in row.tensor.dims):
                return "no kernel for several scales of the left side"
        return ""


def packed_bytes(k: int, n: int, lines: int = 1) -> int:
    """The size of packed weights of k rows in each of some lines, and n columns."""
    panels = -(-n // _PANEL)
    return panels * _PANEL * (lines * -(-k // _GROUP) * _GROUP + 4)


def _groups(lines: int, columns: int) -> int:
    """Groups of taps where channels stay apart, as in native/kernels/quantize/depthwise_int8.cc."""
    return columns if columns == 3 and 2 <= lines <= _GROUP else -(-lines * columns // _GROUP)


def _of(node: Node) -> Operands:
    """The operands of an internal op, which come in this order."""
    return Operands(
        input_of(node, 0), input_of(node, 1), *(optional_input(node, i) for i in range(2, 9))
    )


def _bounds(node: Node) -> tuple[float, float]:
    return node.attrs["low"], node.attrs["high"]


def matmul(
    o: Operands, bounds: tuple[float, float] = _EVERYTHING, is_turned: bool = False
) -> Call | No:
    """A product, whose weights are packed when the session starts if they are constant."""
    w = o.w.tensor
    k, n = (
        (w.dims[-1], w.dims[-2]) if is_turned else (w.dims[-2:] if w.rank > 1 else (w.dims[0], 1))
    )
    if why := o.unfit() or _stacked(o, n):
        return No(why)
    w_type, w_zero = w.dtype.onnx, o.w_zero
    right: Value | Packed = o.w
    if o.w.is_const and w.rank < 3:
        assert isinstance(k, int)
        assert isinstance(n, int)
        strides = (1, k) if is_turned else (n, 1)
        right = Packed(o.w, "qgemm_pack", packed_bytes(k, n), (1, 1, 1, k, n, 0, 0, 0, *strides))
        w_type, w_zero = o.weights()
    elif is_turned:
        return No("no kernel for turned weights that are not constant")
    ints = (k, n, int(isinstance(right, Packed)), w_type)
    operands = (o.x, right, *o.rest(w_zero))
    return Call("qmatmul", operands, ints, bounds, writes_rows=w.rank > 1)


def _stacked(o: Operands, columns: Size) -> str:
    """Why a product of stacks, or with rows for its columns, has no kernel; empty if it has."""
    x, w = o.x.tensor, o.w.tensor
    if w.rank > 2 and x.dims[:-2] != w.dims[:-2]:
        return "no kernel that broadcasts stacks of 8-bit matrices"
    for value in (o.w_scale, o.w_zero, o.bias):
        if value is None or (value is not o.bias and all(d == 1 for d in value.tensor.dims)):
            continue
        if any(d != 1 for d in value.tensor.dims[:-1]):
            return "no kernel for scales of stacked weights"
        if not value.tensor.rank or value.tensor.dims[-1] != columns:
            return "whether there is one scale or one per column is known only when it runs"
    return ""


def qmatmul(node: Node) -> Call | No:
    """QMatMul."""
    return matmul(_of(node), _bounds(node), bool(node.attrs["trans_w"]))


def qconv(node: Node) -> Call | No:
    """QConv."""
    o = _of(node)
    shape = o.w.tensor.static
    if not node.attrs["channels_last"]:
        return No("no kernel for channels that are not last")
    if not o.w.is_const or shape is None or 0 in shape:
        return No("the weights are not constant, or empty")
    moved = window_of(shape[2:], node.attrs)
    if why := unfit(moved):
        return why
    if reason := o.unfit():
        return No(reason)
    sliding = window_ints(moved, o.x.tensor.dims[1:-1])
    maps, each, taps, group = shape[0], shape[1], math.prod(shape[2:]), node.attrs["group"]
    wide = shape[-1]
    w_type, w_zero = o.weights()
    rest = o.rest(w_zero)
    is_signed = w_type == I8.onnx and w_zero is None
    if each == 1 and group == maps and group > 1 and taps <= _MAX_TAPS and is_signed:
        size = -(-maps // _BLOCK) * _BLOCK * (_groups(taps // wide, wide) * _GROUP + 4)
        packed = Packed(o.w, "qdepthwise_pack", size, (maps, taps // wide, wide))
        return Call("qdepthwise", (o.x, packed, *rest), sliding, _bounds(node), writes_rows=True)
    columns = maps // group
    strides = (columns * each * taps, wide, 1, taps, each * taps)
    size = group * packed_bytes(each * wide, columns, lines=taps // wide)
    packed = Packed(o.w, "qgemm_pack", size, (group, taps // wide, wide, each, columns, *strides))
    ints = (w_type, group, maps, *sliding)
    return Call("qconv", (o.x, packed, *rest), ints, _bounds(node), writes_rows=True)


def qadd(node: Node) -> Call | No:
    """QAdd."""
    if input_of(node, 0).tensor.dims != input_of(node, 3).tensor.dims:
        return No("no kernel that broadcasts 8-bit sums")
    operands = tuple(optional_input(node, i) for i in range(8))
    return Call("qadd", operands, (), _bounds(node), shares=((0, 0), (3, 0)))


def qmean(node: Node) -> Call | No:
    """QMean."""
    if not node.attrs["channels_last"]:
        return No("no kernel for channels that are not last")
    return Call("qmean", tuple(optional_input(node, i) for i in range(5)))


def matmul_integer(node: Node) -> Call | No:
    """MatMulInteger."""
    o = Operands(
        input_of(node, 0),
        input_of(node, 1),
        x_zero=optional_input(node, 2),
        w_zero=optional_input(node, 3),
    )
    return matmul(o)


def qlinear_matmul(node: Node) -> Call | No:
    """QLinearMatMul."""
    if node.outputs[0].tensor.dtype not in _BYTES:
        return No(f"no kernel for {node.outputs[0].tensor.dtype}")
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    assert a is not None
    assert b is not None
    return matmul(Operands(a, b, a_scale, a_zero, b_scale, b_zero, None, y_scale, y_zero))


def matmul_to_float(node: Node) -> Call | No:
    """MatMulIntegerToFloat."""
    a, b, a_scale, b_scale = (input_of(node, i) for i in range(4))
    a_zero, b_zero, bias = (optional_input(node, i) for i in range(4, 7))
    return matmul(Operands(a, b, a_scale, a_zero, b_scale, b_zero, bias))


REAL: Final = frozenset((F32, F16, BF16))


STEPS: Final = frozenset((U8, I8, U16, I16))


FEW_BITS: Final = frozenset(by_name(n) for n in ("u4", "i4", "u2", "i2"))


def _call(row: str, node: Node) -> Call:
    x, scale, zero = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    rank = x.tensor.rank
    axis = 0 if rank < 2 else node.attrs["axis"] % rank
    return Call(row, (x, scale, zero), (axis, node.attrs["block_size"]))


def quantize(node: Node) -> Call | No:
    """QuantizeLinear."""
    x, scale = input_of(node, 0).tensor.dtype, input_of(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x not in REAL or scale not in REAL or y not in STEPS:
        return No(f"no kernel that quantizes {x} by {scale} to {y}")
    if node.attrs["precision"] not in (0, F32.onnx):
        return No("no kernel that divides in another precision than float32")
    return _call("quantize", node)


def dequantize(node: Node) -> Call | No:
    """DequantizeLinear."""
    x, scale = input_of(node, 0).tensor.dtype, input_of(node, 1).tensor.dtype
    y = node.outputs[0].tensor.dtype
    if x in FEW_BITS and scale in REAL:
        from sardonyx.providers.cpu.nbits import unpacked  # few models need it

        return unpacked(node)
    if x not in STEPS | {I32} or scale not in REAL or y not in REAL:
        return No(f"no kernel that dequantizes {x} by {scale} to {y}")
    return _call("dequantize", node)


def dynamic(node: Node) -> Call:
    """DynamicQuantizeLinear."""
    return Call("dynamic_quantize", (input_of(node, 0),))


def lookup(node: Node) -> Call:
    """QLookup."""
    return Call("lookup", (input_of(node, 0), input_of(node, 1)), shares=((0, 0),))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "QAdd"): qadd,
    (INTERNAL, "QConv"): qconv,
    (INTERNAL, "QMatMul"): qmatmul,
    (INTERNAL, "QMean"): qmean,
    (ONNX, "MatMulInteger"): matmul_integer,
    (ONNX, "QLinearMatMul"): qlinear_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): matmul_to_float,
    (INTERNAL, "QLookup"): lookup,
    ("", "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic,
}
