"""What a weight is made of: a constant of few bits, dequantized, and then turned or reshaped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import reduce
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.const import Recipe
from sardonyx.graph.constant import constant
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.nbits.internal import REALS, STEPS
from sardonyx.passes.rule import need
from sardonyx.passes.transpose import order_of

_MOVES: Final = frozenset(
    ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)
_STAYS: Final = frozenset(("Cast", "Identity"))


@frozen
class Run:
    """Places along a dim that lie evenly in memory, in blocks that share a scale."""

    size: int
    stride: int  # elements of the stored tensor from one place to the next
    scale_stride: int = 0  # scales from one block to the next; 0: all places share theirs
    block: int = 1  # places of a block

    @property
    def n_blocks(self) -> int:
        return -(-self.size // self.block)

    def split(self, inner: int) -> tuple[Run, Run]:
        """Two runs for one: the outer over parts of so many places, the inner over a part."""
        outer, stride = self.size // inner, self.stride * inner
        if not self.scale_stride:
            return Run(outer, stride), Run(inner, self.stride)
        if inner % self.block == 0:
            part = Run(inner, self.stride, self.scale_stride, self.block)
            return Run(outer, stride, self.scale_stride * part.n_blocks), part
        need(self.block % inner == 0, "blocks are cut")
        whole = Run(outer, stride, self.scale_stride, self.block // inner)
        return whole, Run(inner, self.stride)

    def joined(self, inner: Run) -> Run:
        """One run for this one and the places within each of its places."""
        need(self.stride == inner.size * inner.stride, "axes are mixed")
        size = self.size * inner.size
        if not inner.scale_stride:
            block = self.block * inner.size if self.scale_stride else 1
            return Run(size, inner.stride, self.scale_stride, block)
        is_even = inner.size % inner.block == 0 and self.block == 1
        is_next = self.scale_stride == inner.scale_stride * inner.n_blocks
        need(is_even and is_next, "scales are mixed")
        return Run(size, inner.stride, inner.scale_stride, inner.block)


@frozen
class Origin:
    """The constants that a weight is made of, and where the places of its dims lie in them."""

    node: Node  # the DequantizeLinear
    q: Value  # as it is stored
    scale: Value
    zero: Value | None
    dims: tuple[Run, ...]
    is_moved: bool  # turned or reshaped


def origin(value: Value | None) -> Origin:
    """The origin of a weight; says no where it has none."""
    moves: list[Node] = []
    node = None if value is None else value.node
    while node is not None and node.op.key != ("", "DequantizeLinear"):
        need(not node.op.domain and node.op.name in _MOVES, "made by another op")
        need(node.outputs[0].tensor.dtype in REALS, "of another type")
        moves.append(node)
        node = None if node.inputs[0] is None else node.inputs[0].node
    need(node is not None, "not dequantized")
    assert node is not None
    q, scale, *zeros = (_constant(v) for v in node.inputs if v is not None)
    need(q.tensor.dtype in STEPS and scale.tensor.dtype in REALS, "of another type")
    stored, runs = _unfolded(q)
    dims = [[run] for run in _with_scales(runs, scale, node)]
    for move in reversed(moves):
        perm = order_of(move) if move.op.name == "Transpose" else None
        dims = _moved(dims, move.op.name, perm, _static(move.outputs[0]))
    is_moved = stored is not q or any(move.op.name not in _STAYS for move in moves)
    zero = zeros[0] if zeros else None
    return Origin(node, stored, scale, zero, tuple(map(_one, dims)), is_moved)


def _constant(value: Value) -> Value:
    need(value.is_const, "not constant")
    return value


def _unfolded(q: Value) -> tuple[Value, list[Run]]:
    """A constant as it was before folding turned it, and its dims as they are now."""
    const, moves = q.const, []
    while isinstance(const, Recipe) and const.op.key == ("", "Transpose"):
        moves.append(const)
        const = const.inputs[0]
    assert const is not None
    need(all(const.shape), "sizes are 0")
    strides = _strides(const.shape)
    dims = [[Run(d, stride)] for d, stride in zip(const.shape, strides, strict=True)]
    for move in reversed(moves):
        perm = move.attrs["perm"] or tuple(reversed(range(len(dims))))
        dims = _moved(dims, "Transpose", tuple(perm), move.shape)
    return constant(const) if moves else q, [_one(dim) for dim in dims]


def _moved(
    dims: list[list[Run]], op: str, perm: tuple[int, ...] | None, shape: tuple[int, ...]
) -> list[list[Run]]:
    if op in _STAYS:
        return dims
    return _regrouped(dims, shape) if perm is None else [dims[i] for i in perm]


def _static(value: Value) -> tuple[int, ...]:
    shape = value.tensor.static
    need(shape is not None and all(shape), "sizes are open, or 0")
    assert shape is not None
    return shape


def _with_scales(runs: list[Run], scale: Value, node: Node) -> list[Run]:
    """The dims of what a DequantizeLinear reads, with its scales."""
    scales, rank, block = _static(scale), len(runs), node.attrs["block_size"]
    if all(d == 1 for d in scales):
        return runs
    axis = 0 if rank < 2 else node.attrs["axis"] % rank
    wanted = list(scales) if block else [scales[0] if i == axis else 1 for i in range(rank)]
    blocks = [block or 1 if i == axis else 1 for i in range(rank)]
    return [
        Run(run.size, run.stride, along, b) if n > 1 else run
        for run, along, b, n in zip(runs, _strides(wanted), blocks, wanted, strict=True)
    ]


def _strides(shape: Iterable[int]) -> list[int]:
    strides, step = [], 1
    for d in reversed(list(shape)):
        strides.append(step)
        step *= d
    return strides[::-1]


def _regrouped(dims: list[list[Run]], shape: tuple[int, ...]) -> list[list[Run]]:
    """The same places, in row-major order, as dims of other sizes."""
    left = deque(run for dim in dims for run in dim if run.size > 1)
    made: list[list[Run]] = []
    for size in shape:
        group: list[Run] = []
        while size > 1:
            run = left.popleft()
            if run.size > size:
                need(run.size % size == 0, "axes are cut")
                run, rest = run.split(run.size // size)
                left.appendleft(rest)
            need(size % run.size == 0, "axes are cut")
            group.append(run)
            size //= run.size
        made.append(group)
    return made


def _one(dim: list[Run]) -> Run:
    """A dim as one run."""
    runs = [run for run in dim if run.size > 1]
    return reduce(Run.joined, runs) if runs else Run(1, 1)
