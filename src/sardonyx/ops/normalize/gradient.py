"""Gradients of normalizations."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradients import GradientBuilder, decompose, gradient, ranked, saved
from sardonyx.ops.inference import axis_of
from sardonyx.ops.normalize.standard import per_channel, widened

Grads = list[Value | None]


def _last(node: Node) -> tuple[int, ...]:
    rank = ranked(input_of(node, 0)).rank
    return tuple(range(axis_of(node.attrs["axis"], rank), rank))


@gradient("LayerNormalization")
def _(b: GradientBuilder, node: Node, dy: Value | None, *saved_grads: Value | None) -> Grads:
    _refuse_statistics(node, saved_grads)
    assert dy is not None
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


def _refuse_statistics(node: Node, grads: tuple[Value | None, ...]) -> None:
    if any(g is not None for g in grads):
        raise NotImplemented(
            f"the loss depends on statistics that {node.op} saves, which have no gradient",
            hint="compute the mean or the deviation by separate ops",
        )


@gradient("RMSNormalization", "SimplifiedLayerNormalization")
def _(b: GradientBuilder, node: Node, dy: Value | None, *saved_grads: Value | None) -> Grads:
    _refuse_statistics(node, saved_grads)
    assert dy is not None
    x, scale = input_of(node, 0), input_of(node, 1)
    axes = b.ints(*_last(node))
    wide, grad = widened(b, x), widened(b, dy)
    square = b.ReduceMean(b.Mul(wide, wide), axes, keepdims=1)
    inverse = b.Reciprocal(b.Sqrt(b.Add(square, node.attrs["epsilon"])))
    normal, inner = b.Mul(wide, inverse), b.Mul(grad, widened(b, scale))
    dx = _projected_gradient(b, inner, inner, normal, inverse, axes)
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
