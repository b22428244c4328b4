"""Convolutions and their gradients, im2col and col2im."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension
from sardonyx.dynamo.table import lowers
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL

_WINDOW: Final = ("strides", "dilations", "pads", "group")


def _spread(numbers: Sequence[int], n: int) -> tuple[int, ...]:
    """Return one number per spatial axis; torch gives one for all of them as a list of one."""
    return tuple(numbers) * n if len(numbers) == 1 else tuple(numbers)


def _forward(
    b: AtenBuilder, x: Value, w: Value, bias: Value | None, options: Sequence[Any]
) -> Node:
    stride, padding, dilation, transposed, output_padding, groups = options
    n = w.tensor.rank - 2
    attrs: dict[str, Any] = {
        "strides": _spread(stride, n),
        "dilations": _spread(dilation, n),
        "pads": (*_spread(padding, n),) * 2,
        "group": groups,
    }
    if transposed:
        attrs["output_padding"] = _spread(output_padding, n)
    return b.node("ConvTranspose" if transposed else "Conv", x, w, bias, **attrs)


@lowers("convolution.default")
def _(b: AtenBuilder, x: Value, w: Value, bias: Value | None, *options: Any) -> Value:
    dtype = x.tensor.dtype
    is_single = x.tensor.rank < w.tensor.rank  # without a batch axis
    x, w = b.as_f32(b.Unsqueeze(x, b.ints(0)) if is_single else x), b.as_f32(w)
    bias = None if bias is None else b.as_f32(bias)
    y = b.cast(_forward(b, x, w, bias, options).outputs[0], dtype)
    return b.Squeeze(y, b.ints(0)) if is_single else y


@lowers("convolution_backward.default")
def _(
    b: AtenBuilder, dy: Value, x: Value, w: Value, bias_sizes: Any, *rest: Any
) -> tuple[Value | None, ...]:
    *options, mask = rest
    dtype = dy.tensor.dtype
    dy, x, w = (b.as_f32(v) for v in (dy, x, w))
    is_single = x.tensor.rank < w.tensor.rank
    if is_single:
        dy, x = (b.Unsqueeze(v, b.ints(0)) for v in (dy, x))
    forward = _forward(b, x, w, None, options)
    by_kernel = mask[1] and _has_kernel(w, options)
    dx, dw, db = b.gradients(forward, dy, [mask[0], mask[1] and not by_kernel, mask[2]])
    if by_kernel:
        # ConvTranspose is the adjoint of Conv: image and gradient exchange roles.
        image, grad = (dy, x) if options[3] else (x, dy)
        attrs = {k: v for k, v in forward.attrs.items() if k in _WINDOW}
        attrs["kernel_shape"] = tuple(w.tensor.dims[2:])
        dw = b.ConvWeightGradient(image, grad, domain=INTERNAL, **attrs)
    if dx is not None and is_single:
        dx = b.Squeeze(dx, b.ints(0))
    return tuple(None if v is None else b.cast(v, dtype) for v in (dx, dw, db))


def _has_kernel(w: Value, options: Sequence[Any]) -> bool:
    """Whether the kernel of the weight gradient is fast: not for depthwise groups.

    Nor for output_padding, with which image and gradient do not have the sizes of a convolution.
    """
    static = w.tensor.static
    return static is not None and static[1] > 1 and not any(options[4])


@lowers("im2col.default")
def _(
    b: AtenBuilder,
    x: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Slice the image once per tap: [N, C, taps, positions]."""
    lead = x.tensor.rank - 2
    axes = b.ints(lead, lead + 1)
    # out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    sizes = b.Slice(b.Shape(x), b.ints(lead), b.ints(lead + 2))
    shape = b.Slice(b.Shape(x), b.ints(0), b.ints(lead))
    around = [2 * p - d * (k - 1) - 1 for p, d, k in zip(padding, dilation, kernel, strict=True)]
    steps = b.ints(*stride)
    reach = b.Add(b.Mul(b.Div(b.Add(sizes, b.ints(*around)), steps), steps), 1)
    padded = b.Pad(x, b.ints(*padding, *padding), None, axes) if any(padding) else x
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        start = b.ints(*(i * d for i, d in zip(tap, dilation, strict=True)))
        patch = b.Slice(padded, start, b.Add(start, reach), axes, steps)
        taps.append(b.Reshape(patch, b.Concat(shape, b.ints(1, -1), axis=0)))
    columns = b.Concat(*taps, axis=lead) if len(taps) > 1 else taps[0]
    batch = b.Slice(shape, b.ints(0), b.ints(lead - 1))
    channels = b.Mul(b.Slice(shape, b.ints(lead - 1), b.ints(lead)), len(taps))
    return b.Reshape(columns, b.Concat(batch, channels, b.ints(-1), axis=0))


@lowers("col2im.default")
def _(
    b: AtenBuilder,
    x: Value,
    output_size: Sequence[Dimension],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    dtype, is_single = x.tensor.dtype, x.tensor.rank == 2
    columns = b.as_f32(b.Unsqueeze(x, b.ints(0)) if is_single else x)
    attrs = {"dilations": tuple(dilation), "pads": (*padding, *padding), "strides": tuple(stride)}
    y = b.Col2Im(columns, b.sizes(output_size), b.ints(*kernel), **attrs)
    return b.cast(b.Squeeze(y, b.ints(0)) if is_single else y, dtype)
