"""Products of 8-bit numbers on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, I8, U8
from sardonyx.graph.graph import Node, Value
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.quantize import given, optional

_PANEL: Final = 32  # columns of packed weights, as in native/kernels/qgemm/tile.h
_GROUP: Final = 4
_BYTES: Final = frozenset((U8, I8))
_EVERYTHING: Final = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True)
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

    @property
    def rest(self) -> tuple[Value | None, ...]:
        """All behind the weights."""
        zero = self.w_zero
        if zero is not None and zero.const is not None and self.w.tensor.dtype is I8:
            zero = zero if zero.const.read().any() else None
        return (
            self.x_scale, self.x_zero, self.w_scale, zero, self.bias, self.y_scale, self.y_zero,
        )  # fmt: skip

    def unfit(self) -> str:
        """Why kernels cannot take them; empty if they can."""
        for value in (self.x, self.w):
            if value.tensor.dtype not in _BYTES:
                return f"no kernel for products of {value.tensor.dtype}"
        for value in (self.x_scale, self.w_scale, self.y_scale):
            if value is not None and value.tensor.dtype is not F32:
                return f"no kernel for scales of {value.tensor.dtype}"
        for value in (self.x_scale, self.x_zero):
            if value is not None and any(d != 1 for d in value.tensor.dims):
                return "no kernel for several scales of the left side"
        return ""


def packed_bytes(k: int, n: int) -> int:
    """The size of packed weights of k rows and n columns."""
    panels = -(-n // _PANEL)
    return panels * _PANEL * (-(-k // _GROUP) * _GROUP + 4)


def matmul(o: Operands, low_high: tuple[float, float] = _EVERYTHING) -> Call | No:
    """A product, whose weights are packed when the session starts if they are constant."""
    if why := o.unfit():
        return No(why)
    x, w = o.x.tensor, o.w.tensor
    columns: Size = w.dims[-1] if w.rank > 1 else 1
    if w.rank > 2 and x.dims[:-2] != w.dims[:-2]:
        return No("no kernel that broadcasts stacks of 8-bit matrices")
    for value in (o.w_scale, o.w_zero, o.bias):
        if value is None or (value is not o.bias and all(d == 1 for d in value.tensor.dims)):
            continue
        if value.tensor.dims[:-1].count(1) != value.tensor.rank - 1:
            return No("no kernel for scales of stacked weights")
        if value.tensor.dims[-1] != columns:
            return No("whether there is one scale or one per column is known only when it runs")
    k, n = w.dims[0 if w.rank == 1 else -2], columns
    is_packed = o.w.is_const and w.rank < 3
    right: Value | Packed = o.w
    if is_packed:
        assert isinstance(k, int)
        assert isinstance(n, int)
        right = Packed(o.w, "qgemm_pack", packed_bytes(k, n), (1, 1, k, n, 0, 0, n, 1))
    ints = (k, n, int(is_packed), w.dtype.onnx)
    return Call("qmatmul", (o.x, right, *o.rest), ints, low_high)


def matmul_integer(node: Node) -> Call | No:
    """MatMulInteger."""
    o = Operands(given(node, 0), given(node, 1), x_zero=optional(node, 2), w_zero=optional(node, 3))
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
    a, b, a_scale, b_scale = (given(node, i) for i in range(4))
    a_zero, b_zero, bias = (optional(node, i) for i in range(4, 7))
    return matmul(Operands(a, b, a_scale, a_zero, b_scale, b_zero, bias))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "MatMulInteger"): matmul_integer,
    ("", "QLinearMatMul"): qlinear_matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): matmul_to_float,
}
