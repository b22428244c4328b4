"""Transposed convolutions in groups of few channels are lowered to convolutions (sub-pixel form).

Output o * stride + f of a transposed convolution reads inputs o + offset, one for each tap that
reaches it: each phase f is a convolution with its own subset of the taps. All phases together are
one convolution with stride times as many maps over the union of all offsets, whose maps
DepthToSpace then interleaves. The weights of offsets that a phase does not have are zero.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.sliding_window import Ints, window_of
from sardonyx.passes.rule import P, hole, need, present, ranked, rule

_NARROW: Final = 16  # channels and maps of a group, below which the depthwise kernel takes it
_MAX_WEIGHTS: Final = 1 << 20  # elements: rearranged when the session starts

x, w = hole("x"), hole("w")


@frozen
class _Axis:
    """One spatial axis of a transposed convolution of stride 1 or dilation 1."""

    taps: int
    stride: int
    dilation: int
    front: int  # elements cropped in front
    growth: int  # elements of the output beyond stride times the input

    def offsets(self, phase: int) -> dict[int, int]:
        """The offset of the input that each tap of a phase reads."""
        ends = ((tap, phase + self.front - tap * self.dilation) for tap in range(self.taps))
        return {tap: end // self.stride for tap, end in ends if end % self.stride == 0}

    @property
    def reach(self) -> tuple[int, int]:
        """The first and the last offset of all phases."""
        every = [o for f in range(self.stride) for o in self.offsets(f).values()]
        return min(every), max(every)

    @property
    def step(self) -> int:
        """The distance of neighbouring offsets."""
        return self.dilation if self.stride == 1 else 1

    @property
    def size(self) -> int:
        """The offsets of the convolution's window."""
        first, last = self.reach
        return (last - first) // self.step + 1

    @property
    def pads(self) -> tuple[int, int]:
        """The padding of the convolution, which computes whole phases."""
        first, last = self.reach
        return -first, -(-self.growth // self.stride) + last

    @property
    def excess(self) -> int:
        """The elements that whole phases have beyond the output."""
        return -self.growth % self.stride


def _axes(node: Node, kernel: Ints) -> list[_Axis]:
    attrs, window = node.attrs, window_of(kernel, node.attrs)
    need(not window.is_same and not attrs["output_shape"], "pads follow from sizes")
    more = attrs["output_padding"] or (0,) * len(kernel)
    columns = (kernel, window.strides, window.dilations, window.begins, window.ends, more)
    axes = [
        _Axis(k, s, d, front, (k - 1) * d + 1 - s - front - end + extra)
        for k, s, d, front, end, extra in zip(*columns, strict=True)
    ]
    need(all(1 in (a.stride, a.dilation) for a in axes), "strides and dilations")
    need(all(min(a.pads) >= 0 for a in axes), "pads crop whole inputs")
    return axes


def _phase_weights(weights: Array, axes: list[_Axis], group: int) -> Array:
    """Weights [maps x phases, channels of a group, *offsets] from [channels, maps, *taps]."""
    channels, maps = weights.shape[0] // group, weights.shape[1]
    given = weights.reshape(group, channels, maps, *weights.shape[2:])
    phases = list(itertools.product(*(range(a.stride) for a in axes)))
    made = np.zeros((group, maps, len(phases), channels, *(a.size for a in axes)), weights.dtype)
    for number, phase in enumerate(phases):
        offsets = [a.offsets(f).items() for a, f in zip(axes, phase, strict=True)]
        for read in itertools.product(*offsets):
            taps: tuple[Any, ...] = (*[slice(None)] * 3, *(tap for tap, _ in read))
            at = ((o - a.reach[0]) // a.step for a, (_, o) in zip(axes, read, strict=True))
            to: tuple[Any, ...] = (slice(None), slice(None), number, slice(None), *at)
            made[to] = np.swapaxes(given[taps], 1, 2)
    return made.reshape(-1, *made.shape[3:])


@rule(P.ConvTranspose(x, w, rest=True).named("conv"))
def narrow_conv_transpose(b: Builder, x: Value, w: Value, conv: Node) -> Value:
    """A transposed convolution in groups of few channels as a convolution."""
    ranked(x, w)
    shape = present(w.tensor.static, "the weights' sizes are open")
    bias, group = optional_input(conv, 2), conv.attrs["group"]
    const = present(w.const, "the weights are not constant")
    need(bias is None or bias.is_const, "the bias is not constant")
    need(x.tensor.dtype is F32 and group > 1, "one group, or another type")
    need(0 < math.prod(shape) <= _MAX_WEIGHTS, "no weights, or many")
    axes = _axes(conv, shape[2:])
    phases = math.prod(a.stride for a in axes)
    is_square = len(axes) == 2 and axes[0].stride == axes[1].stride
    need(phases == 1 or is_square, "DepthToSpace has one block size, for two axes")
    is_narrow = shape[0] // group < _NARROW and shape[1] * phases < _NARROW
    need(is_narrow, "groups of many channels")
    attrs: dict[str, Any] = {
        "group": group,
        "kernel_shape": tuple(a.size for a in axes),
        "dilations": tuple(a.step for a in axes),
        "pads": (*(a.pads[0] for a in axes), *(a.pads[1] for a in axes)),
    }
    operands = [b.const(_phase_weights(const.read(), axes, group))]
    if bias is not None and bias.const is not None:
        operands.append(b.const(np.repeat(bias.const.read(), phases)))
    y = b.Conv(x, *operands, **attrs)
    if phases == 1:
        return y
    y = b.DepthToSpace(y, blocksize=axes[0].stride, mode=b"CRD")
    if not any(a.excess for a in axes):
        return y
    # Open ends are far beyond any size.
    ends = [-a.excess or np.iinfo(np.int64).max for a in axes]
    return b.Slice(y, b.ints(0, 0), b.ints(*ends), b.ints(2, 3))


RULES: Final[tuple[Any, ...]] = (*narrow_conv_transpose,)
