"""Gradients of normalizations."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradients import GradientBuilder, decompose, gradient, ranked, saved
from sardonyx.ops.inference import axis_of

Grads = list[Value | None]


def _wide(b: GradientBuilder, x: Value) -> Value:
    """Cast float16 and bfloat16 to float32, in which they are normalized."""
    return b.cast(x, F32) if x.tensor.dtype in (F16, BF16) else x


def _last(node: Node) -> tuple[int, ...]:
    rank = ranked(given(node, 0)).rank
    return tuple(range(axis_of(node.attrs["axis"], rank), rank))


@gradient("LayerNormalization")
def _(b: GradientBuilder, node: Node, dy: Value | None, *saved_grads: Value | None) -> Grads:
    _refuse_statistics(node, saved_grads)
    assert dy is not None
    x, scale, bias = given(node, 0), given(node, 1), optional(node, 2)
    axes = b.ints(*_last(node))
    wide = _wide(b, x)
    if wide.tensor.dtype is F32 and node.attrs["stash_type"] == F32.onnx:
        centred, inverse = b.Sub(wide, saved(b, node, 1)), saved(b, node, 2)
    else:
        centred, inverse = _deviation(b, wide, axes, node.attrs["epsilon"])
    normal, grad = b.Mul(centred, inverse), _wide(b, dy)
    inner = b.Mul(grad, _wide(b, scale))
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
    x, scale = given(node, 0), given(node, 1)
    axes = b.ints(*_last(node))
    wide, grad = _wide(b, x), _wide(b, dy)
    square = b.ReduceMean(b.Mul(wide, wide), axes, keepdims=1)
    inverse = b.Reciprocal(b.Sqrt(b.Add(square, node.attrs["epsilon"])))
    normal, inner = b.Mul(wide, inverse), b.Mul(grad, _wide(b, scale))
    dx = _projected_gradient(b, inner, inner, normal, inverse, axes)
    dscale = b.sum_to(b.Mul(grad, normal), scale)
    return [b.cast(dx, x.tensor.dtype), b.cast(dscale, scale.tensor.dtype)]


def _per_channel(b: GradientBuilder, param: Value, x: Value) -> Value:
    """Reshape a per-channel parameter to broadcast over an image."""
    rank = ranked(x).rank
    return (
        b.Reshape(_wide(b, param), b.ints(-1, *(1,) * (rank - 2))) if rank > 2 else _wide(b, param)
    )


@decompose("BatchNormalization", replaces=lambda node: bool(node.attrs["training_mode"]))
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    x, scale, bias, mean, var = (given(node, i) for i in range(5))
    wide, attrs = _wide(b, x), node.attrs
    params = [_per_channel(b, param, x) for param in (scale, bias, mean, var)]
    if not attrs["training_mode"]:
        inverse = b.Reciprocal(b.Sqrt(b.Add(params[3], attrs["epsilon"])))
        normal = b.Mul(b.Sub(wide, params[2]), inverse)
        return [b.cast(b.Add(b.Mul(normal, params[0]), params[1]), x.tensor.dtype)]
    axes = (0, *range(2, ranked(x).rank))
    centre = b.ReduceMean(wide, b.ints(*axes), keepdims=1)
    centred = b.Sub(wide, centre)
    variance = b.ReduceMean(b.Mul(centred, centred), b.ints(*axes), keepdims=1)
    normal = b.Mul(centred, b.Reciprocal(b.Sqrt(b.Add(variance, attrs["epsilon"]))))
    y = b.cast(b.Add(b.Mul(normal, params[0]), params[1]), x.tensor.dtype)
    outputs: list[Value | None] = [y]
    for batch_statistic, running in ((centre, mean), (variance, var)):
        new = b.Mul(
            b.cast(b.reshape(batch_statistic, running), running.tensor.dtype), 1 - attrs["momentum"]
        )
        outputs.append(b.Add(b.Mul(running, attrs["momentum"]), new))
    return outputs


@decompose("InstanceNormalization")
def _(b: GradientBuilder, node: Node) -> Value:
    x, scale, bias = (given(node, i) for i in range(3))
    wide = _wide(b, x)
    axes = b.ints(*range(2, ranked(x).rank))
    centred, inverse = _deviation(b, wide, axes, node.attrs["epsilon"])
    scaled = b.Mul(b.Mul(centred, inverse), _per_channel(b, scale, x))
    return b.cast(b.Add(scaled, _per_channel(b, bias, x)), x.tensor.dtype)


@decompose("GroupNormalization")
def _(b: GradientBuilder, node: Node) -> Value:
    x, scale, bias = (given(node, i) for i in range(3))
    wide = _wide(b, x)
    grouped = b.Reshape(wide, b.ints(0, node.attrs["num_groups"], -1))
    centred, inverse = _deviation(b, grouped, b.ints(2), node.attrs["epsilon"])
    normal = b.reshape(b.Mul(centred, inverse), x)
    scaled = b.Mul(normal, _per_channel(b, scale, x))
    return b.cast(b.Add(scaled, _per_channel(b, bias, x)), x.tensor.dtype)


@decompose("SkipLayerNormalization", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    total = _sum(b, node, optional(node, 4))
    scale, bias = given(node, 2), optional(node, 3)
    y = b.LayerNormalization(total, scale, bias, epsilon=node.attrs["epsilon"])
    return [y, None, None, total]


@decompose("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    total = _sum(b, node, optional(node, 3))
    y = b.RMSNormalization(total, given(node, 2), epsilon=node.attrs["epsilon"])
    return [y, None, None, total]


def _sum(b: GradientBuilder, node: Node, bias: Value | None) -> Value:
    total: Value = b.Add(given(node, 0), given(node, 1))
    return total if bias is None else b.Add(total, bias)
