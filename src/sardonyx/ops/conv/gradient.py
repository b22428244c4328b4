"""Gradients of convolutions, as convolutions.

dx is the convolution of dy, dilated by the strides, with the flipped kernel; dw is the convolution
of x with dy as its kernel, where strides and dilations exchange roles.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.conv.standard import transposed_front
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS, activation
from sardonyx.ops.gradient_rules import LAST, GradientBuilder, decompose, gradient, ranked
from sardonyx.ops.normalize.standard import per_channel, widened
from sardonyx.ops.sample.taps import axis_of_image, linear_taps, weighted_sum
from sardonyx.ops.sliding_window import Ints, Window, numbers, window_of

Grads = list[Value | None]
_MAX_TAPS: Final = 128  # of a kernel that is unrolled into one multiplication per tap
_FIX_SIZES: Final = "fix the dynamic sizes, by name, before asking for gradients"


@frozen
class ConvGeometry:
    """A window of static size with explicit pads, and the convolution's groups."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    begins: Ints
    ends: Ints
    group: int = 1

    @property
    def n(self) -> int:
        return len(self.kernel)

    @property
    def pads(self) -> Ints:
        return self.begins + self.ends

    def extent(self, i: int) -> int:
        """Return the number of elements from the first tap to the last."""
        return (self.kernel[i] - 1) * self.dilations[i] + 1


def conv_geometry(window: Window, x: Value, group: int = 1) -> ConvGeometry:
    """Return the geometry of a window over an image; auto_pad SAME needs static sizes."""
    if not all(isinstance(k, int) for k in window.kernel):
        raise NotImplemented("the size of the kernel is not known", hint=_FIX_SIZES)
    kernel: Ints = window.kernel  # type: ignore[assignment]  # checked just above
    begins, ends = window.begins, window.ends
    if window.is_same:
        spatial = ranked(x).shaped(ranked(x).dims[2:]).static
        if spatial is None:
            what = f"the pads of auto_pad {window.auto_pad.decode()} follow from dynamic sizes"
            raise NotImplemented(what, hint=_FIX_SIZES)
        begins = window.front(spatial)
        ends = tuple(
            max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size - begin)
            for size, s, k, d, begin in zip(
                spatial, window.strides, kernel, window.dilations, begins, strict=True
            )
        )
    return ConvGeometry(kernel, window.strides, window.dilations, begins, ends, group)


@gradient("Conv")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w = input_of(node, 0), input_of(node, 1)
    geometry = conv_geometry(window_of(ranked(w).dims[2:], node.attrs), x, node.attrs["group"])
    return [
        image_gradient(b, dy, w, geometry, x) if b.wants(x) else None,
        _weights(b, x, dy, geometry, w) if b.wants(w) else None,
        _bias(b, dy),
    ]


@gradient("ConvTranspose")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, w = input_of(node, 0), input_of(node, 1)
    attrs = node.attrs
    window, bias = window_of(ranked(w).dims[2:], attrs), _bias(b, dy)
    if window.is_same or attrs["output_shape"]:
        geometry, dy = _cropped_to_windows(b, window, node, dy)
    else:
        geometry = conv_geometry(window, dy, attrs["group"])
    # ConvTranspose is the adjoint of Conv, so its gradient is the Conv itself.
    steps = {"strides": geometry.strides, "dilations": geometry.dilations}
    dx = b.Conv(dy, w, pads=geometry.pads, group=geometry.group, **steps)
    if any(attrs["output_padding"] or ()):  # may add whole strides to the end of dx
        n = geometry.n
        ends = b.Gather(b.shape(x), b.ints(*range(2, 2 + n)))
        dx = b.Slice(dx, b.ints(*(0,) * n), ends, b.ints(*range(2, 2 + n)))
    return [b.reshape(dx, x), _weights(b, dy, x, geometry, w) if b.wants(w) else None, bias]


def _cropped_to_windows(
    b: GradientBuilder, window: Window, node: Node, dy: Value
) -> tuple[ConvGeometry, Value]:
    """Return the geometry of a ConvTranspose of given output size, and dy where windows reach."""
    facts = [ranked(v) for v in (input_of(node, 0), dy)]
    sizes = [f.shaped(f.dims[2:]).static for f in facts]
    ins, outs = sizes
    if ins is None or outs is None or not all(isinstance(k, int) for k in window.kernel):
        what = "the pads of a ConvTranspose with output_shape or auto_pad follow from dynamic sizes"
        raise NotImplemented(what, hint=_FIX_SIZES)
    begins = numbers(transposed_front(window, (ins, outs), node.attrs))
    kernel, extents = numbers(window.kernel), numbers(window.extents)
    # ins = (outs + begin + end - extent) / stride + 1.
    ends = [
        (size - 1) * window.strides[i] + extents[i] - begins[i] - outs[i]
        for i, size in enumerate(ins)
    ]
    crops = b.ints(*(0 for _ in ends), *(min(0, end) for end in ends))
    pads = tuple(max(0, end) for end in ends)
    if any(end < 0 for end in ends):  # the output is larger than what windows write
        dy = b.Pad(dy, crops, None, b.ints(*range(2, 2 + len(ends))))
    steps = (window.strides, window.dilations)
    return ConvGeometry(kernel, *steps, begins, pads, node.attrs["group"]), dy


def _bias(b: GradientBuilder, dy: Value) -> Value:
    rank = ranked(dy).rank
    return b.ReduceSum(dy, b.ints(0, *range(2, rank)), keepdims=0)


def image_gradient(
    b: GradientBuilder, dy: Value, w: Value, geometry: ConvGeometry, x: Value
) -> Value:
    """Return the gradient of the image: dy, dilated by the strides, with the flipped weights."""
    transposed = _transposed_conv(b, dy, w, geometry, x)
    if transposed is not None:
        return transposed
    fronts = [geometry.extent(i) - 1 - geometry.begins[i] for i in range(geometry.n)]
    sizes, outs = ranked(x).dims[2:], ranked(dy).dims[2:]
    backs: list[Size] = [
        sizes[i] - outs[i] * geometry.strides[i] + geometry.begins[i] for i in range(geometry.n)
    ]
    dilated, pads = _dilated(b, dy, geometry.strides), (*fronts, *backs)
    # Conv itself pads where all pads are known and not negative; a Pad pads or crops otherwise.
    around: Ints = (0,) * (2 * geometry.n)
    if all(isinstance(p, int) and p >= 0 for p in pads):
        around = pads  # type: ignore[assignment]  # checked just above
    else:
        dilated = _pad_to_reach(b, dilated, fronts, geometry, x)
    flipped = _flipped_weights(b, w, geometry)
    return b.Conv(dilated, flipped, dilations=geometry.dilations, pads=around, group=geometry.group)


def _is_depthwise(w: Value, geometry: ConvGeometry) -> bool:
    """Whether the convolution is depthwise with a kernel that is small enough to unroll."""
    static = ranked(w).static
    is_small = math.prod(geometry.kernel) <= _MAX_TAPS
    return static is not None and static[:2] == (geometry.group, 1) and is_small


def _transposed_conv(
    b: GradientBuilder, dy: Value, w: Value, geometry: ConvGeometry, x: Value
) -> Value | None:
    """Return the gradient of the image as ConvTranspose, which inserts no zeros between strides.

    None for depthwise groups and sizes that are not static, where Conv is better.
    """
    n = geometry.n
    sizes = [*ranked(x).dims[2:], *ranked(dy).dims[2:]]
    if _is_depthwise(w, geometry):
        return None
    static = [d for d in sizes if isinstance(d, int)]
    if len(static) < len(sizes):
        return None
    ends: list[int] = []  # size = (out - 1) * stride + extent - begin - end
    for i in range(n):
        covered = (static[n + i] - 1) * geometry.strides[i] + geometry.extent(i)
        ends.append(covered - geometry.begins[i] - static[i])
    # A negative end is output_padding: elements that no window reaches.
    output_padding = tuple(max(0, -end) for end in ends)
    limits = zip(output_padding, geometry.strides, geometry.dilations, strict=True)
    if any(p >= max(stride, dilation) for p, stride, dilation in limits):
        return None
    return b.ConvTranspose(
        dy,
        w,
        strides=geometry.strides,
        dilations=geometry.dilations,
        pads=(*geometry.begins, *(max(0, end) for end in ends)),
        output_padding=output_padding,
        group=geometry.group,
    )


def _pad_to_reach(
    b: GradientBuilder, dilated: Value, fronts: list[int], geometry: ConvGeometry, x: Value
) -> Value:
    """Pad a gradient with zeros, or crop it, so that the convolution has the image's size."""
    axes = b.ints(*range(2, 2 + geometry.n))
    reach = b.ints(*(geometry.extent(i) - 1 for i in range(geometry.n)))
    needed = b.Add(b.Gather(b.shape(x), axes), reach)
    ends = b.Sub(b.Sub(needed, b.Gather(b.shape(dilated), axes)), b.ints(*fronts))
    return b.Pad(dilated, b.Concat(b.ints(*fronts), ends, axis=0), None, axes)


def _dilated(b: GradientBuilder, dy: Value, strides: Ints) -> Value:
    """Insert stride - 1 zeros after each element: Unsqueeze, Pad, Reshape."""
    if all(s == 1 for s in strides):
        return dy
    n = len(strides)
    # Each spatial axis gets an axis of length 1 after it, which is padded to the stride.
    beside = tuple(range(3, 3 + 2 * n, 2))
    lifted = b.Unsqueeze(dy, b.ints(*beside))
    zeros = b.ints(*(0 for _ in strides), *(s - 1 for s in strides))
    padded = b.Pad(lifted, zeros, None, b.ints(*beside))
    return b.Reshape(padded, b.Mul(b.shape(dy), b.ints(1, 1, *strides)), allowzero=1)


def _flipped_weights(b: GradientBuilder, w: Value, geometry: ConvGeometry) -> Value:
    """Swap the channel axes of weights [out_channels, channels / group, ...]; flip the taps."""
    n = geometry.n
    spatial = tuple(range(2, 2 + n))
    if geometry.group == 1:
        w = b.Transpose(w, perm=(1, 0, *spatial))
    else:
        out_channels, channels = _weight_sizes(w)
        group = geometry.group
        w = b.Reshape(w, b.ints(group, out_channels // group, channels, *geometry.kernel))
        w = b.Transpose(w, perm=(0, 2, 1, *(i + 1 for i in spatial)))
        w = b.Reshape(w, b.ints(group * channels, out_channels // group, *geometry.kernel))
    flipped = [i for i in range(n) if geometry.kernel[i] > 1]
    if not flipped:
        return w
    starts = b.ints(*(geometry.kernel[i] - 1 for i in flipped))
    ends, steps = b.ints(*(-LAST for _ in flipped)), b.ints(*(-1 for _ in flipped))
    return b.Slice(w, starts, ends, b.ints(*(i + 2 for i in flipped)), steps)


def _weight_sizes(w: Value) -> tuple[int, int]:
    """Return the number of output channels, and of channels per group."""
    static = ranked(w).static
    if static is None:
        raise NotImplemented("the shape of the weights is not known", hint=_FIX_SIZES)
    return static[0], static[1]


def _weights(b: GradientBuilder, x: Value, dy: Value, geometry: ConvGeometry, w: Value) -> Value:
    """Return the gradient of the weights: x convolved with dy, with batch and channels swapped."""
    # Here dy is the kernel, and no convolution has a kernel of dynamic size. Depthwise groups
    # gain nothing from a matrix product.
    if 0 in ranked(x).dims:
        return b.zeros(w)
    is_open = ranked(x).static is None and math.prod(geometry.kernel) <= _MAX_TAPS
    if is_open or _is_depthwise(w, geometry):
        return _weights_by_taps(b, x, dy, geometry, w)
    n, group = geometry.n, geometry.group
    spatial = tuple(range(2, 2 + n))
    image = b.Transpose(x, perm=(1, 0, *spatial)) if group == 1 else _by_group(b, x, group)
    kernel, pads = b.Transpose(dy, perm=(1, 0, *spatial)), geometry.pads
    steps = {"strides": geometry.dilations, "dilations": geometry.strides}
    grads = b.Conv(image, kernel, pads=pads, group=group, **steps)
    # When a stride does not divide the image, the result has more taps than the weights.
    cut = b.Slice(grads, b.ints(*(0,) * n), b.ints(*geometry.kernel), b.ints(*spatial))
    return b.reshape(b.Transpose(cut, perm=(1, 0, *spatial)), w)


def _by_group(b: GradientBuilder, x: Value, group: int) -> Value:
    """Reshape an image [N, group * C, ...] to [C, group * N, ...]."""
    sizes, rank = b.shape(x), ranked(x).rank
    batch, channels = (b.Slice(sizes, b.ints(i), b.ints(i + 1)) for i in range(2))
    rest, each = b.Slice(sizes, b.ints(2), b.ints(rank)), b.Div(channels, group)
    split = b.Reshape(x, b.Concat(batch, b.ints(group), each, rest, axis=0))
    window = b.Transpose(split, perm=(2, 1, 0, *range(3, rank + 1)))
    return b.Reshape(window, b.Concat(each, b.Mul(batch, group), rest, axis=0))


def _weights_by_taps(
    b: GradientBuilder, x: Value, dy: Value, geometry: ConvGeometry, w: Value
) -> Value:
    """The same tap by tap: dy times the tap's patch of the image, summed over all positions."""
    axes = b.ints(*range(2, 2 + geometry.n))
    padded = b.Pad(x, b.ints(*geometry.pads), None, axes)
    outs, strides = b.Gather(b.shape(dy), axes), b.ints(*geometry.strides)
    span = b.Add(b.Mul(b.Sub(outs, 1), strides), 1)
    is_depthwise = _is_depthwise(w, geometry)
    positions = b.ints(0, *range(2, 2 + geometry.n))
    left = dy if is_depthwise else _as_columns(b, dy, geometry.group)
    grads: list[Value] = []
    for tap in itertools.product(*map(range, geometry.kernel)):
        start = b.ints(*(k * d for k, d in zip(tap, geometry.dilations, strict=True)))
        patch = b.Slice(padded, start, b.Add(start, span), axes, strides)
        if is_depthwise:
            each = b.ReduceSum(b.Mul(left, patch), positions, keepdims=0)  # [out_channels]
        else:
            right = b.transposed(_as_columns(b, patch, geometry.group))
            each = b.MatMul(left, right)  # [group, out_channels, channels]
        grads.append(b.Unsqueeze(each, b.ints(-1)))
    return b.reshape(b.Concat(*grads, axis=-1) if len(grads) > 1 else grads[0], w)


def _as_columns(b: GradientBuilder, x: Value, group: int) -> Value:
    """Reshape [N, group * C, ...] to [group, C, N * ...]."""
    sizes = b.shape(x)
    batch, channels = (b.Slice(sizes, b.ints(i), b.ints(i + 1)) for i in range(2))
    each = b.Div(channels, group)
    split = b.Reshape(x, b.Concat(batch, b.ints(group), each, b.ints(-1), axis=0))
    window = b.Transpose(split, perm=(1, 2, 0, 3))
    return b.Reshape(window, b.Concat(b.ints(group), each, b.ints(-1), axis=0))


@decompose("FusedConv", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    """A convolution, the sum with Z, and an activation."""
    inputs = [optional_input(node, i) for i in range(4)]
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    y = b.Conv(*inputs[:3], **rest)
    y = y if inputs[3] is None else b.Add(y, inputs[3])
    name = (node.attrs["activation"] or b"").decode()
    values = zip(
        ACTIVATION_ATTRS.get(name, ()), node.attrs["activation_params"] or (), strict=False
    )
    return activation(b, y, name, dict(values))


@gradient("Col2Im")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """im2col: each block of the padded gradient is a column."""
    columns, block = input_of(node, 0), b.cast(input_of(node, 2), I64)
    n = ranked(dy).rank - 2
    # Only the strides, dilations and pads are read; the sizes may be dynamic.
    window = window_of((1,) * n, node.attrs)
    blocks = b.Pad(dy, b.ints(*window.pads), None, b.ints(*range(2, 2 + n)))
    for i in range(n):
        # Axis 2 + 2 i becomes two: taps of a block, and blocks.
        axis = 2 + 2 * i
        size, taps = b.element(b.shape(blocks), axis), b.element(block, i)
        last = b.Sub(b.Sub(size, b.Mul(b.Sub(taps, 1), window.dilations[i])), 1)
        count = b.Add(b.Div(last, window.strides[i]), 1)
        tap, start = (b.arange(b.Squeeze(v, b.ints(0))) for v in (taps, count))
        tap = b.Unsqueeze(b.Mul(tap, window.dilations[i]), b.ints(1))
        blocks = b.Gather(blocks, b.Add(tap, b.Mul(start, window.strides[i])), axis=axis)
    taps_first = (0, 1, *range(2, 2 + 2 * n, 2), *range(3, 3 + 2 * n, 2))
    return b.reshape(b.Transpose(blocks, perm=taps_first), columns)


@decompose("DeformConv")
def _(b: GradientBuilder, node: Node) -> Value:
    """im2col with taps that are sampled at their offsets, then a matmul per group."""
    x, w, offset = (input_of(node, i) for i in range(3))
    bias, mask = optional_input(node, 3), optional_input(node, 4)
    geometry = conv_geometry(window_of(ranked(w).dims[2:], node.attrs), x, node.attrs["group"])
    out_channels, channels = _weight_sizes(w)
    groups, n, n_taps = node.attrs["offset_group"], geometry.n, math.prod(geometry.kernel)
    # The channels of an offset group are sampled as an image of their own.
    batch, *outs = (b.element(b.shape(offset), i) for i in (0, *range(2, 2 + n)))
    images, each = b.Mul(batch, groups), b.ints(channels * geometry.group // groups)
    spatial = b.Slice(b.shape(x), b.ints(2), b.ints(2 + n))
    image = b.Reshape(widened(b, x), b.Concat(images, each, spatial, axis=0), allowzero=1)
    per_tap = b.Concat(images, b.ints(n_taps), *outs, axis=0)
    shifts = b.Concat(images, b.ints(n_taps, n), *outs, axis=0)
    shift = b.Reshape(widened(b, offset), shifts, allowzero=1)
    axes = [
        linear_taps(
            b, _positions(b, shift, geometry, i), axis_of_image(b, x, 2 + i, shift.tensor.dtype)
        )
        for i in range(n)
    ]
    number = b.along(b.arange(b.Squeeze(images, b.ints(0))), 0, n + 2)
    samples = weighted_sum(b, image, number, axes)  # [images, taps, ..., channels]
    if mask is not None:
        factors = b.Reshape(widened(b, mask), per_tap, allowzero=1)
        samples = b.Mul(samples, b.Unsqueeze(factors, b.ints(-1)))
    columns = b.Transpose(samples, perm=(0, n + 2, *range(1, n + 2)))
    depth = channels * n_taps
    columns = b.Reshape(columns, b.Concat(batch, b.ints(geometry.group, depth, -1), axis=0))
    kernel = b.Reshape(widened(b, w), b.ints(geometry.group, out_channels // geometry.group, depth))
    y = b.reshape(b.MatMul(kernel, columns), node.outputs[0])
    return b.cast(y if bias is None else b.Add(y, per_channel(b, bias, x)), x.tensor.dtype)


def _positions(b: GradientBuilder, shift: Value, geometry: ConvGeometry, i: int) -> Value:
    """Return where taps read along axis i: their place in the window, shifted by their offsets."""
    dtype, n = shift.tensor.dtype, geometry.n
    own = b.Gather(shift, b.const(i, I64), axis=2)  # [images, taps, ...]
    out = b.along(b.arange(b.length(own, 2 + i)), 2 + i, n + 2)
    start = b.Sub(b.Mul(out, geometry.strides[i]), geometry.begins[i])
    taps = np.indices(geometry.kernel)[i].reshape(1, -1, *(1,) * n) * geometry.dilations[i]
    return b.Add(own, b.cast(b.Add(start, b.const(taps, I64)), dtype))
