"""Gradients of normalizations."""

from __future__ import annotations

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradient_rules import LAST, GradientBuilder, decompose, gradient, ranked, saved
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.ops.normalize.standard import per_channel, widened

Grads = list[Value | None]


def _last(node: Node) -> tuple[int, ...]:
    rank = ranked(input_of(node, 0)).rank
    return tuple(range(axis_of(node.attrs["axis"], rank), rank))


@gradient("LayerNormalization")
def _(b: GradientBuilder, node: Node, dy: Value | None, *saved_grads: Value | None) -> Grads:
    dy = b.zeros(node.outputs[0]) if dy is None else dy
    x, scale, bias = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    axes = b.ints(*_last(node))
    wide = widened(b, x)
    # The forward node saves float32 statistics; float64 needs its own.
    if wide.tensor.dtype is F32 and node.attrs["stash_type"] == F32.onnx:
        centred, inverse = b.Sub(wide, saved(b, node, 1)), saved(b, node, 2)
    else:
        centred, inverse = _deviation(b, wide, axes, node.attrs["epsilon"])
    normal, grad = b.Mul(centred, inverse), widened(b, dy)
    inner = b.Mul(grad, widened(b, scale))
    mean_grad = b.ReduceMean(inner, axes, keepdims=1)
    dx = _projected_gradient(b, b.Sub(inner, mean_grad), inner, normal, inverse, axes)
    if any(g is not None for g in saved_grads):
        dx = b.Add(dx, _through_statistics(b, node, (centred, inverse), [*saved_grads, None][:2]))
    return [
        b.cast(dx, x.tensor.dtype),
        b.cast(b.sum_to(b.Mul(grad, normal), scale), scale.tensor.dtype),
        None if bias is None else b.sum_to(dy, bias),
    ]


def _projected_gradient(
    b: GradientBuilder, rest: Value, inner: Value, normal: Value, inverse: Value, axes: Value
) -> Value:
    """(rest - n mean(inner n)) / deviation, with n the normalized x.

    This removes the component along n: a normalized row does not change with the scale of x.
    """
    share = b.ReduceMean(b.Mul(inner, normal), axes, keepdims=1)
    return b.Mul(b.Sub(rest, b.Mul(normal, share)), inverse)


def _deviation(b: GradientBuilder, x: Value, axes: Value, epsilon: float) -> tuple[Value, Value]:
    """Return x - mean, and the reciprocal standard deviation."""
    centred = b.Sub(x, b.ReduceMean(x, axes, keepdims=1))
    variance = b.ReduceMean(b.Mul(centred, centred), axes, keepdims=1)
    return centred, b.Reciprocal(b.Sqrt(b.Add(variance, epsilon)))


def _through_statistics(
    b: GradientBuilder, node: Node, saved_values: tuple[Value, Value], grads: Grads
) -> Value:
    """Return the gradient of x through a saved mean m and reciprocal deviation r.

    dm / dx = 1 / n and dr / dx = -r^3 (x - m) / n, over n elements.
    """
    centred, inverse = saved_values
    mean_grad, inverse_grad = (
        None if g is None else b.cast(g, centred.tensor.dtype) for g in grads
    )
    parts = [] if mean_grad is None else [mean_grad]
    if inverse_grad is not None:
        cube = b.Mul(b.Mul(inverse, inverse), inverse)
        parts.append(b.Neg(b.Mul(b.Mul(inverse_grad, cube), centred)))
    total = parts[0] if len(parts) == 1 else b.Add(*parts)
    return b.divided(total, b.size(centred, _last(node)))


@gradient("RMSNormalization", "SimplifiedLayerNormalization")
def _(b: GradientBuilder, node: Node, dy: Value | None, *saved_grads: Value | None) -> Grads:
    dy = b.zeros(node.outputs[0]) if dy is None else dy
    x, scale = input_of(node, 0), input_of(node, 1)
    axes = b.ints(*_last(node))
    wide, grad = widened(b, x), widened(b, dy)
    square = b.ReduceMean(b.Mul(wide, wide), axes, keepdims=1)
    inverse = b.Reciprocal(b.Sqrt(b.Add(square, node.attrs["epsilon"])))
    normal, inner = b.Mul(wide, inverse), b.Mul(grad, widened(b, scale))
    dx = _projected_gradient(b, inner, inner, normal, inverse, axes)
    if any(g is not None for g in saved_grads):
        dx = b.Add(dx, _through_statistics(b, node, (wide, inverse), [None, *saved_grads]))
    dscale = b.sum_to(b.Mul(grad, normal), scale)
    return [b.cast(dx, x.tensor.dtype), b.cast(dscale, scale.tensor.dtype)]


@decompose("InstanceNormalization", "GroupNormalization")
def _(b: GradientBuilder, node: Node) -> Value:
    x, scale, bias = (input_of(node, i) for i in range(3))
    grouped, axes = widened(b, x), range(2, ranked(x).rank)
    if node.op.name == "GroupNormalization":
        grouped, axes = b.Reshape(grouped, b.ints(0, node.attrs["num_groups"], -1)), range(2, 3)
    centred, inverse = _deviation(b, grouped, b.ints(*axes), node.attrs["epsilon"])
    normal = b.reshape(b.Mul(centred, inverse), x)
    scaled = b.Mul(normal, per_channel(b, scale, x))
    return b.cast(b.Add(scaled, per_channel(b, bias, x)), x.tensor.dtype)


@decompose("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Grads:
    x, skip, scale, *vectors = (optional_input(node, i) for i in range(5))
    is_rms = node.op.name == "SkipSimplifiedLayerNormalization"
    bias, epsilon = vectors[0 if is_rms else 1], node.attrs["epsilon"]
    total = b.Add(x, skip) if bias is None else b.Add(b.Add(x, skip), bias)
    if is_rms:
        return [b.RMSNormalization(total, scale, epsilon=epsilon), None, None, total]
    return [b.LayerNormalization(total, scale, vectors[0], epsilon=epsilon), None, None, total]


@gradient("LRN")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """y = x s^-beta with s = bias + alpha mean(x^2): dx has a part through x and one through s."""
    x, attrs = input_of(node, 0), node.attrs
    wide, grad, size = widened(b, x), widened(b, dy), attrs["size"]
    before, after = (size - 1) // 2, size // 2
    mean = _channel_means(b, b.Mul(wide, wide), size, before, after)
    s = b.Add(b.Mul(mean, attrs["alpha"]), attrs["bias"])
    direct = b.Mul(grad, b.Pow(s, b.const(-attrs["beta"], s.tensor.dtype)))
    through = b.Div(b.Mul(direct, wide), s)
    # The windows that read a channel reach as far to the other side.
    spread = _channel_means(b, through, size, after, before)
    dx = b.Sub(direct, b.Mul(b.Mul(wide, spread), 2 * attrs["alpha"] * attrs["beta"]))
    return b.cast(dx, x.tensor.dtype)


def _channel_means(b: GradientBuilder, x: Value, size: int, before: int, after: int) -> Value:
    """Return means over windows of channels, where channels that do not exist are 0."""
    sizes = b.shape(x)
    batch, channels = (b.element(sizes, i) for i in range(2))
    rest = b.ReduceProd(b.Slice(sizes, b.ints(2), b.ints(LAST)), keepdims=1)
    image = b.Reshape(x, b.Concat(batch, b.ints(1), channels, rest, axis=0), allowzero=1)
    window = {"kernel_shape": (size, 1), "pads": (before, 0, after, 0)}
    return b.reshape(b.AveragePool(image, count_include_pad=1, **window), x)


@decompose("LpNormalization")
def _(b: GradientBuilder, node: Node) -> Value:
    x, axis = input_of(node, 0), b.ints(node.attrs["axis"])
    wide = widened(b, x)
    norm = (b.ReduceL1 if node.attrs["p"] == 1 else b.ReduceL2)(wide, axis, keepdims=1)
    # A row of zeros has no direction: its result is 0, and so is its gradient.
    is_zero = b.Equal(norm, 0.0)
    ratio = b.Div(wide, b.Where(is_zero, b.const(1, norm.tensor.dtype), norm))
    return b.cast(b.where(b.Not(is_zero), ratio), x.tensor.dtype)


@decompose("MeanVarianceNormalization")
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    wide, axes = widened(b, x), b.ints(*axes_of(node.attrs["axes"], ranked(x).rank))
    centred = b.Sub(wide, b.ReduceMean(wide, axes, keepdims=1))
    variance = b.ReduceMean(b.Mul(centred, centred), axes, keepdims=1)
    # The square root has no derivative at 0, where all elements are equal.
    is_flat = b.Equal(variance, 0.0)
    root = b.Sqrt(b.Where(is_flat, b.const(1, variance.tensor.dtype), variance))
    deviation = b.Add(b.where(b.Not(is_flat), root), 1e-9)
    return b.cast(b.Div(centred, deviation), x.tensor.dtype)
