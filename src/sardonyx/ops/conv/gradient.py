"""Gradients of convolutions, which are convolutions."""

from __future__ import annotations

import itertools
import math
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import Size
from sardonyx.graph.graph import Node, Value, given
from sardonyx.ops.gradients import LAST, GradientBuilder, gradient, ranked
from sardonyx.ops.sliding_window import Ints, Window, window

Grads = list[Value | None]
_MAX_TAPS: Final = 128  # of a kernel, for which there is a product each
_FIXED: Final = "fix the sizes that are open, by name, before asking for gradients"


@frozen
class Moves:
    """How a window moves over an image, with its pads in numbers."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    begins: Ints
    ends: Ints
    group: int = 1

    @property
    def n(self) -> int:
        return len(self.kernel)

    def extent(self, i: int) -> int:
        """Elements from the first tap to the last."""
        return (self.kernel[i] - 1) * self.dilations[i] + 1


def moves_of(moved: Window, x: Value, group: int = 1) -> Moves:
    """The window over an image; pads that follow from sizes need sizes that are known."""
    if not all(isinstance(k, int) for k in moved.kernel):
        raise NotImplemented("the size of the kernel is not known", hint=_FIXED)
    kernel: Ints = moved.kernel  # type: ignore[assignment]  # checked just above
    begins, ends = moved.begins, moved.ends
    if moved.is_same:
        spatial = ranked(x).shaped(ranked(x).dims[2:]).static
        if spatial is None:
            what = f"the pads of auto_pad {moved.auto_pad.decode()} follow from sizes that are open"
            raise NotImplemented(what, hint=_FIXED)
        begins = moved.front(spatial)
        ends = tuple(
            max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size - begin)
            for size, s, k, d, begin in zip(
                spatial, moved.strides, kernel, moved.dilations, begins, strict=True
            )
        )
    return Moves(kernel, moved.strides, moved.dilations, begins, ends, group)


@gradient("Conv")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w = given(node, 0), given(node, 1)
    moves = moves_of(window(ranked(w).dims[2:], node.attrs), x, node.attrs["group"])
    return [
        images(b, dy, w, moves, x) if b.wants(x) else None,
        _weights(b, x, dy, moves, w) if b.wants(w) else None,
        _bias(b, dy),
    ]


@gradient("ConvTranspose")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w = given(node, 0), given(node, 1)
    attrs = node.attrs
    moved = window(ranked(w).dims[2:], attrs)
    if moved.is_same or attrs["output_shape"]:
        raise NotImplemented(
            "a ConvTranspose whose pads follow from its output's size has no gradient",
            hint="give its pads and output_padding",
        )
    moves = moves_of(moved, dy, attrs["group"])
    dx = b.Conv(
        dy,
        w,
        strides=moves.strides,
        dilations=moves.dilations,
        pads=(*moves.begins, *moves.ends),
        group=moves.group,
    )
    return [b.reshape(dx, x), _weights(b, dy, x, moves, w) if b.wants(w) else None, _bias(b, dy)]


def _bias(b: GradientBuilder, dy: Value) -> Value:
    rank = ranked(dy).rank
    return b.ReduceSum(dy, b.ints(0, *range(2, rank)), keepdims=0)


def images(b: GradientBuilder, dy: Value, w: Value, moves: Moves, x: Value) -> Value:
    """The gradient of an image: the weights turned round, over dy spread by its strides."""
    fronts = [moves.extent(i) - 1 - moves.begins[i] for i in range(moves.n)]
    sizes, outs = ranked(x).dims[2:], ranked(dy).dims[2:]
    backs: list[Size] = [
        sizes[i] - outs[i] * moves.strides[i] + moves.begins[i] for i in range(moves.n)
    ]
    spread, pads = _spread(b, dy, moves.strides), (*fronts, *backs)
    if not w.is_const and _is_deep(w, moves):
        return _images_by_taps(b, _framed(b, spread, fronts, moves, x), w, moves, x)
    around: Ints = (0,) * (2 * moves.n)
    if all(isinstance(p, int) and p >= 0 for p in pads):
        around = pads  # type: ignore[assignment]  # checked just above
    else:
        spread = _framed(b, spread, fronts, moves, x)
    turned = _turned_round(b, w, moves)
    return b.Conv(spread, turned, dilations=moves.dilations, pads=around, group=moves.group)


def _is_deep(w: Value, moves: Moves) -> bool:
    """Whether every channel is a group, and the kernel small enough to go through its taps."""
    static = ranked(w).static
    is_small = math.prod(moves.kernel) <= _MAX_TAPS
    return static is not None and static[:2] == (moves.group, 1) and is_small


def _images_by_taps(b: GradientBuilder, framed: Value, w: Value, moves: Moves, x: Value) -> Value:
    """Channels by themselves: what each tap sees, times its number, added up."""
    n, taps = moves.n, math.prod(moves.kernel)
    axes = b.ints(*range(2, 2 + n))
    sizes = b.Gather(b.shape(x), axes)
    rows = b.Transpose(b.Reshape(w, b.ints(moves.group, taps)), perm=(1, 0))
    each = b.Reshape(rows, b.ints(taps, moves.group, *(1,) * n))
    numbers = b.node("Split", each, axis=0, num_outputs=taps, outputs=taps).outputs
    total: Value | None = None
    for number, tap in zip(numbers, itertools.product(*map(range, moves.kernel)), strict=True):
        pairs = zip(tap, moves.kernel, moves.dilations, strict=True)
        start = b.ints(*((size - 1 - k) * d for k, size, d in pairs))
        part = b.Mul(b.Slice(framed, start, b.Add(start, sizes), axes), number)
        total = part if total is None else b.Add(total, part)
    assert total is not None
    return b.reshape(total, x)


def _framed(b: GradientBuilder, spread: Value, fronts: list[int], moves: Moves, x: Value) -> Value:
    """Zeros around a gradient, or less of it, so that the image comes out at its size."""
    axes = b.ints(*range(2, 2 + moves.n))
    reach = b.ints(*(moves.extent(i) - 1 for i in range(moves.n)))
    wanted = b.Add(b.Gather(b.shape(x), axes), reach)
    behind = b.Sub(b.Sub(wanted, b.Gather(b.shape(spread), axes)), b.ints(*fronts))
    return b.Pad(spread, b.Concat(b.ints(*fronts), behind, axis=0), None, axes)


def _spread(b: GradientBuilder, dy: Value, strides: Ints) -> Value:
    """Zeros behind each element, as many as a stride skips."""
    if all(s == 1 for s in strides):
        return dy
    n = len(strides)
    beside = tuple(range(3, 3 + 2 * n, 2))
    lifted = b.Unsqueeze(dy, b.ints(*beside))
    zeros = b.ints(*(0 for _ in strides), *(s - 1 for s in strides))
    padded = b.Pad(lifted, zeros, None, b.ints(*beside))
    return b.Reshape(padded, b.Mul(b.shape(dy), b.ints(1, 1, *strides)), allowzero=1)


def _turned_round(b: GradientBuilder, w: Value, moves: Moves) -> Value:
    """Weights [maps, channels / group, ...] as those of the way back, their taps from the end."""
    n = moves.n
    spatial = tuple(range(2, 2 + n))
    if moves.group == 1:
        w = b.Transpose(w, perm=(1, 0, *spatial))
    else:
        maps, channels = _counts(w)
        group = moves.group
        w = b.Reshape(w, b.ints(group, maps // group, channels, *moves.kernel))
        w = b.Transpose(w, perm=(0, 2, 1, *(i + 1 for i in spatial)))
        w = b.Reshape(w, b.ints(group * channels, maps // group, *moves.kernel))
    turned = [i for i in range(n) if moves.kernel[i] > 1]
    if not turned:
        return w
    return b.Slice(
        w,
        b.ints(*(moves.kernel[i] - 1 for i in turned)),
        b.ints(*(-LAST for _ in turned)),
        b.ints(*(i + 2 for i in turned)),
        b.ints(*(-1 for _ in turned)),
    )


def _counts(w: Value) -> tuple[int, int]:
    """Maps, and channels of a group."""
    static = ranked(w).static
    if static is None:
        raise NotImplemented("the shape of the weights is not known", hint=_FIXED)
    return static[0], static[1]


def _weights(b: GradientBuilder, x: Value, dy: Value, moves: Moves, w: Value) -> Value:
    """The gradient of weights: dy moves over the image, each element of a batch a channel."""
    # No kernel takes weights of open sizes, and dy would be such. Groups of one channel are no
    # products at all.
    is_open = ranked(x).static is None and math.prod(moves.kernel) <= _MAX_TAPS
    if is_open or _is_deep(w, moves):
        return _by_taps(b, x, dy, moves, w)
    n, group = moves.n, moves.group
    spatial = tuple(range(2, 2 + n))
    image = b.Transpose(x, perm=(1, 0, *spatial)) if group == 1 else _by_group(b, x, group)
    found = b.Conv(
        image,
        b.Transpose(dy, perm=(1, 0, *spatial)),
        strides=moves.dilations,
        dilations=moves.strides,
        pads=(*moves.begins, *moves.ends),
        group=group,
    )
    # Strides that do not divide the image leave taps that the weights do not have.
    cut = b.Slice(found, b.ints(*(0,) * n), b.ints(*moves.kernel), b.ints(*spatial))
    return b.reshape(b.Transpose(cut, perm=(1, 0, *spatial)), w)


def _by_group(b: GradientBuilder, x: Value, group: int) -> Value:
    """An image [N, group * C, ...] as [C, group * N, ...]."""
    sizes, rank = b.shape(x), ranked(x).rank
    batch, channels = (b.Slice(sizes, b.ints(i), b.ints(i + 1)) for i in range(2))
    rest, each = b.Slice(sizes, b.ints(2), b.ints(rank)), b.Div(channels, group)
    split = b.Reshape(x, b.Concat(batch, b.ints(group), each, rest, axis=0))
    moved = b.Transpose(split, perm=(2, 1, 0, *range(3, rank + 1)))
    return b.Reshape(moved, b.Concat(each, b.Mul(batch, group), rest, axis=0))


def _by_taps(b: GradientBuilder, x: Value, dy: Value, moves: Moves, w: Value) -> Value:
    """The same for each tap by itself: dy by what the tap saw, over all places of all images."""
    axes = b.ints(*range(2, 2 + moves.n))
    padded = b.Pad(x, b.ints(*moves.begins, *moves.ends), None, axes)
    outs, strides = b.Gather(b.shape(dy), axes), b.ints(*moves.strides)
    span = b.Add(b.Mul(b.Sub(outs, 1), strides), 1)
    is_deep = _is_deep(w, moves)
    places, left = b.ints(0, *range(2, 2 + moves.n)), dy if is_deep else _rows(b, dy, moves.group)
    found: list[Value] = []
    for tap in itertools.product(*map(range, moves.kernel)):
        start = b.ints(*(k * d for k, d in zip(tap, moves.dilations, strict=True)))
        seen = b.Slice(padded, start, b.Add(start, span), axes, strides)
        if is_deep:
            each = b.ReduceSum(b.Mul(left, seen), places, keepdims=0)  # [maps]
        else:
            each = b.MatMul(
                left, b.transposed(_rows(b, seen, moves.group))
            )  # [group, maps, channels]
        found.append(b.Unsqueeze(each, b.ints(-1)))
    return b.reshape(b.Concat(*found, axis=-1) if len(found) > 1 else found[0], w)


def _rows(b: GradientBuilder, x: Value, group: int) -> Value:
    """[N, group * C, ...] as [group, C, N * ...]."""
    sizes = b.shape(x)
    batch, channels = (b.Slice(sizes, b.ints(i), b.ints(i + 1)) for i in range(2))
    each = b.Div(channels, group)
    split = b.Reshape(x, b.Concat(batch, b.ints(group), each, b.ints(-1), axis=0))
    moved = b.Transpose(split, perm=(1, 2, 0, 3))
    return b.Reshape(moved, b.Concat(b.ints(group), each, b.ints(-1), axis=0))
