"""The origin of a weight: follows it through Cast, Transpose and Reshape to its stored bytes.

Each dim of the weight is described by its stride in the stored tensor and in the scales, as views
are in array libraries; permuting and reshaping dims permutes, splits and joins these descriptions.
Where that is not possible without a copy, the rewrite is abandoned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import reduce
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.const import Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ONNX
from sardonyx.ops.nbits.internal import QUANTIZED, REALS
from sardonyx.passes.algebra import permutation_of
from sardonyx.passes.rule import need, present

# Ops that keep the elements and only change their order or shape.
_LAYOUT_OPS: Final = frozenset(
    ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)
# Those among them that keep shape and order.
_ORDER_KEEPING: Final = frozenset(("Cast", "Identity"))


@frozen
class StridedAxis:
    """Positions at equal distances in the stored tensor, in blocks that share a scale."""

    size: int
    stride: int  # in elements of the stored tensor
    scale_stride: int = 0  # from one block to the next; 0: all positions share a scale
    block: int = 1  # positions per block

    @property
    def n_blocks(self) -> int:
        """The number of blocks; the last one may be shorter."""
        return -(-self.size // self.block)

    def split(self, inner: int) -> tuple[StridedAxis, StridedAxis]:
        """The outer and the inner axis, the latter of size `inner`, that replace this one."""
        # One step of the outer axis passes over all positions of the inner one.
        outer, stride = self.size // inner, self.stride * inner
        if not self.scale_stride:
            return StridedAxis(outer, stride), StridedAxis(inner, self.stride)
        # Whole blocks stay in the inner axis, or blocks span positions of the outer one.
        if inner % self.block == 0:
            part = StridedAxis(inner, self.stride, self.scale_stride, self.block)
            return StridedAxis(outer, stride, self.scale_stride * part.n_blocks), part
        need(self.block % inner == 0, "a block would be cut")
        whole = StridedAxis(outer, stride, self.scale_stride, self.block // inner)
        return whole, StridedAxis(inner, self.stride)

    def joined(self, inner: StridedAxis) -> StridedAxis:
        """The axis that replaces this one and the axis within each of its positions."""
        need(self.stride == inner.size * inner.stride, "axes are not adjacent in memory")
        size = self.size * inner.size
        # Without scales along the inner axis, a block of the outer one covers all its positions.
        if not inner.scale_stride:
            block = self.block * inner.size if self.scale_stride else 1
            return StridedAxis(size, inner.stride, self.scale_stride, block)
        # Otherwise blocks must not cross a position of the outer axis.
        is_even = inner.size % inner.block == 0 and self.block == 1
        is_adjacent = self.scale_stride == inner.scale_stride * inner.n_blocks
        need(is_even and is_adjacent, "scales are not adjacent in memory")
        return StridedAxis(size, inner.stride, inner.scale_stride, inner.block)


@frozen
class WeightOrigin:
    """The constants that a weight is computed from, and where its dims are stored."""

    node: Node  # the DequantizeLinear
    q: Value  # the codes as they are stored
    scale: Value
    zero: Value | None
    dims: tuple[StridedAxis, ...]
    is_moved: bool  # transposed or reshaped


def weight_origin(value: Value | None) -> WeightOrigin:
    """The origin of a weight; abandons the rewrite if it is not dequantized."""
    moves: list[Node] = []
    node = None if value is None else value.node
    # From the weight up to its DequantizeLinear.
    while node is not None and node.op.key != (ONNX, "DequantizeLinear"):
        need(not node.op.domain and node.op.name in _LAYOUT_OPS, "another op computes the weight")
        need(node.outputs[0].tensor.dtype in REALS, "the type is not supported")
        moves.append(node)
        node = None if node.inputs[0] is None else node.inputs[0].node
    node = present(node, "not dequantized")
    q, scale, *zeros = (_constant(v) for v in node.inputs if v is not None)
    need(q.tensor.dtype in QUANTIZED and scale.tensor.dtype in REALS, "the type is not supported")
    stored, axes = _before_folding(q)
    dims = [[axis] for axis in _with_scales(axes, scale, node)]
    # Then down again: each op transforms the descriptions of the dims.
    for move in reversed(moves):
        perm = permutation_of(move) if move.op.name == "Transpose" else None
        dims = _moved_axes(dims, move.op.name, perm, _static(move.outputs[0]))
    is_moved = stored is not q or any(move.op.name not in _ORDER_KEEPING for move in moves)
    zero = zeros[0] if zeros else None
    return WeightOrigin(node, stored, scale, zero, tuple(map(_joined_axis, dims)), is_moved)


def _constant(value: Value) -> Value:
    """The value; abandons the rewrite unless it is constant."""
    need(value.is_const, "not constant")
    return value


def _before_folding(q: Value) -> tuple[Value, list[StridedAxis]]:
    """A constant before constant folding transposed it, and its dims as they are now."""
    const, moves = q.const, []
    while isinstance(const, Recipe) and const.op.key == (ONNX, "Transpose"):
        moves.append(const)
        const = const.inputs[0]
    assert const is not None
    need(all(const.shape), "sizes are 0")
    strides = _strides(const.shape)
    dims = [[StridedAxis(d, stride)] for d, stride in zip(const.shape, strides, strict=True)]
    for move in reversed(moves):
        perm = move.attrs["perm"] or tuple(reversed(range(len(dims))))
        dims = _moved_axes(dims, "Transpose", tuple(perm), move.shape)
    return constant(const) if moves else q, [_joined_axis(dim) for dim in dims]


def _moved_axes(
    dims: list[list[StridedAxis]], op: str, perm: tuple[int, ...] | None, shape: tuple[int, ...]
) -> list[list[StridedAxis]]:
    """The dims after one op; each dim is a list of axes, outermost first."""
    if op in _ORDER_KEEPING:
        return dims
    return _reshaped_axes(dims, shape) if perm is None else [dims[i] for i in perm]


def _static(value: Value) -> tuple[int, ...]:
    """The shape of a value, if all sizes are known and none is 0."""
    shape = present(value.tensor.static, "sizes are symbolic")
    need(all(shape), "a size is 0")
    return shape


def _with_scales(axes: list[StridedAxis], scale: Value, node: Node) -> list[StridedAxis]:
    """The dims of the input of a DequantizeLinear, with strides into its scales."""
    scales, rank, block = _static(scale), len(axes), node.attrs["block_size"]
    if all(d == 1 for d in scales):
        return axes
    # Vectors have only axis 0, while the default of the attribute is 1.
    axis = 0 if rank < 2 else node.attrs["axis"] % rank
    # The number of scales along each dim: blocked, or one per position of the axis.
    counts = list(scales) if block else [scales[0] if i == axis else 1 for i in range(rank)]
    blocks = [block or 1 if i == axis else 1 for i in range(rank)]
    return [
        StridedAxis(axis.size, axis.stride, along, b) if n > 1 else axis
        for axis, along, b, n in zip(axes, _strides(counts), blocks, counts, strict=True)
    ]


def _strides(shape: Iterable[int]) -> list[int]:
    """The strides of a row-major tensor."""
    strides, step = [], 1
    for d in reversed(list(shape)):
        strides.append(step)
        step *= d
    return strides[::-1]


def _reshaped_axes(
    dims: list[list[StridedAxis]], shape: tuple[int, ...]
) -> list[list[StridedAxis]]:
    """The same positions in row-major order as dims of other sizes.

    Consumes the old axes from the outermost; one that is larger than the new dim needs is split.
    """
    pending = deque(axis for dim in dims for axis in dim if axis.size > 1)
    made: list[list[StridedAxis]] = []
    for size in shape:
        group: list[StridedAxis] = []
        while size > 1:
            axis = pending.popleft()
            if axis.size > size:
                need(axis.size % size == 0, "sizes do not divide each other")
                axis, rest = axis.split(axis.size // size)
                pending.appendleft(rest)
            need(size % axis.size == 0, "sizes do not divide each other")
            group.append(axis)
            size //= axis.size
        made.append(group)
    return made


def _joined_axis(dim: list[StridedAxis]) -> StridedAxis:
    """A dim as one axis; abandons the rewrite if its axes are not adjacent in memory."""
    axes = [axis for axis in dim if axis.size > 1]
    return reduce(StridedAxis.joined, axes) if axes else StridedAxis(1, 1)
