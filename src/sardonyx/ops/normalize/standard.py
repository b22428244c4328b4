"""The ONNX normalizations: batch, instance, group, layer, RMS, Lp, LRN and mean-variance."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, F16, F32, FLOATS, DType, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, Reference, required
from sardonyx.ops.arrays import Array, float32, in_wide, narrow, wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import axes_of, axis_of

EPSILON: Final = float32(1e-5)
Axes = tuple[int, ...]


def _mean(x: Array, axes: Axes) -> Array:
    """Return the mean with keepdims; over no elements it is NaN."""
    count = math.prod(x.shape[a] for a in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / x.dtype.type(count))


def _standardize(x: Array, axes: Axes, epsilon: float) -> tuple[Array, Array, Array]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean, and the reciprocal deviation."""
    mean = _mean(x, axes)
    y = x - mean
    scale = 1 / np.sqrt(_mean(y * y, axes) + x.dtype.type(epsilon))
    y *= scale
    return y, mean, scale


def _per_channel(param: Array, like: Array) -> Array:
    """Reshape a per-channel parameter to broadcast, in the type of the computation."""
    return param.reshape(-1, *(1,) * (like.ndim - 2)).astype(like.dtype, copy=False)


def _check_per_channel(g: Scope, channels: Size, **params: Fact) -> None:
    for name, param in params.items():
        if param.rank != 1:
            raise ShapeError(f"{name} must be a vector, got rank {param.rank}")
        g.equal(param.dims[0], channels, f"{name} does not hold one number per channel")


def _channels(x: Fact) -> Size:
    if x.rank < 2:
        raise ShapeError(f"x has rank {x.rank}, and needs batch and channels")
    return x.dims[1]


batch_norm = Op(
    "BatchNormalization",
    15,
    "x:T scale:T1 b:T1 mean:T2 var:T2",
    "y:T running_mean:T2? running_var:T2?",
    attrs={"epsilon": EPSILON, "momentum": float32(0.9), "training_mode": 0},
    types={"T": FLOATS, "T1": FLOATS, "T2": FLOATS},
)


@batch_norm.infer
def _(g: Scope, x: Fact, *params: Fact, training_mode: int, **_: Any) -> tuple[Fact, ...]:
    scale, b, mean, var = params
    channels = 1 if x.rank == 1 else _channels(x)  # ONNX allows rank 1: batch only, one channel
    _check_per_channel(g, channels, scale=scale, B=b, input_mean=mean, input_var=var)
    y = x.without_contents()
    return (y, mean.without_contents(), var.without_contents()) if training_mode else (y,)


@batch_norm.reference
@np.errstate(all="ignore")
def _(x: Array, *params: Array, **attrs: Any) -> tuple[Array, ...]:
    wide_x = wide(x) if x.ndim > 1 else wide(x)[:, None]
    scale, b, mean, var = (_per_channel(wide(p), wide_x) for p in params)
    if attrs["training_mode"]:
        axes = (0, *range(2, wide_x.ndim))
        mean = _mean(wide_x, axes)
        var = _mean(np.square(wide_x - mean), axes)
    y = (wide_x - mean) * (scale / np.sqrt(var + wide_x.dtype.type(attrs["epsilon"]))) + b
    y = y.reshape(x.shape).astype(x.dtype, copy=False)
    if not attrs["training_mode"]:
        return (y,)
    pairs = zip(params[2:], (mean, var), strict=True)
    return y, *(_running(old, new, attrs["momentum"]) for old, new in pairs)


def _running(old: Array, batch_statistic: Array, momentum: float) -> Array:
    """Return the moving average of a statistic, in its stored type."""
    value = wide(old)
    kind, new = value.dtype.type, batch_statistic.reshape(-1).astype(value.dtype)
    return np.asarray((value * kind(momentum) + new * kind(1 - momentum)).astype(old.dtype))


def _norm(name: str, since: int, inputs: str, reference: Reference, **attrs: Any) -> Op:
    """Declare a normalization in which all inputs and the output have one float type."""
    op = Op(name, since, inputs, "y:T", attrs=attrs, types={"T": FLOATS})
    op.reference(in_wide(reference))
    return op


def _grouped_norm(x: Array, scale: Array, bias: Array, groups: int, epsilon: float) -> Array:
    """Normalize each image's groups of channels, then scale each channel."""
    each = math.prod(x.shape[1:]) // max(1, groups)
    y, _, _ = _standardize(x.reshape(x.shape[0], groups, each), (2,), epsilon)
    return y.reshape(x.shape) * _per_channel(scale, x) + _per_channel(bias, x)


def _instance_norm(x: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    return _grouped_norm(x, scale, b, x.shape[1], epsilon)


instance_norm = _norm(
    "InstanceNormalization", 22, "x:T scale:T b:T", _instance_norm, epsilon=EPSILON
)


@instance_norm.infer
def _(g: Scope, x: Fact, scale: Fact, b: Fact, *, epsilon: float) -> Fact:
    _check_per_channel(g, _channels(x), scale=scale, B=b)
    return x.without_contents()


def _group_norm(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int, stash_type: int
) -> Array:
    return _grouped_norm(x, scale, bias, num_groups, epsilon)


_GROUPS: Final = {"epsilon": EPSILON, "num_groups": required("int"), "stash_type": 1}
group_norm = _norm("GroupNormalization", 21, "x:T scale:T bias:T", _group_norm, **_GROUPS)


@group_norm.infer
def _(g: Scope, x: Fact, scale: Fact, bias: Fact, *, num_groups: int, **_: Any) -> Fact:
    if num_groups < 1:
        raise ShapeError(f"num_groups must be at least 1, got {num_groups}")
    g.divides(num_groups, _channels(x), "num_groups must divide the channels")
    _check_per_channel(g, x.dims[1], scale=scale, bias=bias)
    return x.without_contents()


# Layer and RMS normalization: over all axes from `axis` on. stash_type names the type of the saved
# statistics.
def _stash(stash_type: int) -> DType:
    """Return the type of saved statistics; they are computed in it or in a wider type."""
    dtype = by_onnx(stash_type)
    if dtype is None or dtype not in FLOATS:
        raise ShapeError(
            f"stash_type must be a float type, such as 1 for float32, got {stash_type}"
        )
    return dtype


def _check_broadcasts(g: Scope, to: Shape, **facts: Fact | None) -> None:
    """Require each fact to broadcast to the shape (unidirectionally)."""
    for name, fact in facts.items():
        if fact is None or fact.shape is None:
            continue
        if fact.rank > len(to):
            raise ShapeError(f"{name} has rank {fact.rank}, more than the {len(to)} of x")
        for have, size in zip(reversed(fact.dims), reversed(to), strict=False):
            g.equal_or_one(have, size, f"{name} does not broadcast to x")


def _reduced(x: Fact, axis: int) -> Shape | None:
    """Return the shape of statistics over the axes from `axis` on."""
    if x.shape is None:
        return None
    first = axis_of(axis, x.rank)
    return (*x.shape[:first], *(1,) * (x.rank - first))


def _last_axes(x: Array, axis: int) -> Axes:
    return tuple(range(axis_of(axis, x.ndim), x.ndim))


_OVER_LAST: Final[dict[str, Any]] = {
    "attrs": {"axis": -1, "epsilon": EPSILON, "stash_type": 1},
    "unranked": True,
}
layer_norm = Op(
    "LayerNormalization",
    17,
    "x:T scale:T b:T?",
    "y:T mean:U? inv_std_dev:U?",
    types={"T": FLOATS, "U": frozenset((F32, BF16))},
    **_OVER_LAST,
)


@layer_norm.infer
def _(
    g: Scope, x: Fact, scale: Fact, b: Fact | None, *, axis: int, stash_type: int, **_: Any
) -> tuple[Fact, ...]:
    saved = Fact(_stash(stash_type), _reduced(x, axis))
    if x.shape is not None:
        _check_broadcasts(g, x.shape, Scale=scale, B=b)
    return x.without_contents(), saved, saved


@layer_norm.reference
@np.errstate(all="ignore")
def _(
    x: Array, scale: Array, b: Array | None = None, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array, Array]:
    y, mean, inverse = _standardize(wide(x), _last_axes(x, axis), epsilon)
    y *= wide(scale)
    if b is not None:
        y += wide(b)
    saved = _stash(stash_type).np
    return narrow(y, x.dtype), mean.astype(saved), inverse.astype(saved)


@np.errstate(all="ignore")
def _rms_norm(
    x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array]:
    value = wide(x)
    square = _mean(value * value, _last_axes(x, axis))
    inverse = 1 / np.sqrt(square + value.dtype.type(epsilon))
    y = value * inverse * wide(scale)
    return y.astype(scale.dtype, copy=False), inverse.astype(_stash(stash_type).np)


def _rms_facts(
    g: Scope, x: Fact, scale: Fact, *, axis: int, stash_type: int, **_: Any
) -> tuple[Fact, Fact]:
    saved = Fact(_stash(stash_type), _reduced(x, axis))
    if x.shape is not None:
        _check_broadcasts(g, x.shape, scale=scale)
    return Fact(scale.dtype, x.shape), saved  # the output has the scale's type


_RMS: Final = {"T": FLOATS, "V": FLOATS}
rms_norm = Op("RMSNormalization", 23, "x:T scale:V", "y:V", types=_RMS, **_OVER_LAST)
rms_norm.infer(lambda *facts, **attrs: _rms_facts(*facts, **attrs)[0])
rms_norm.reference(lambda *arrays, **attrs: _rms_norm(*arrays, **attrs)[0])

# onnxruntime's RMS norm, older than ONNX's; it is in the ONNX domain nevertheless.
simplified = Op(
    "SimplifiedLayerNormalization", 1, "x:T scale:V", "y:V inv_std_var:U?", types=_RMS, **_OVER_LAST
)
simplified.infer(_rms_facts)
simplified.reference(_rms_norm)


def _lp_norm(x: Array, *, axis: int, p: int) -> Array:
    if p == 1:
        norm = np.abs(x).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt((x * x).sum(axis=axis, keepdims=True))
    # A row of zeros has no direction: its result is zeros, not NaN.
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype)


lp_norm = _norm("LpNormalization", 22, "x:T", _lp_norm, axis=-1, p=2)


@lp_norm.infer
def _(g: Scope, x: Fact, *, axis: int, p: int) -> Fact:
    axis_of(axis, x.rank)
    if p not in (1, 2):
        raise ShapeError(f"p must be 1 or 2, got {p}")
    return x.without_contents()


def _lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int) -> Array:
    square = x * x
    channels = x.shape[1]
    total = np.zeros_like(x)
    before, after = (size - 1) // 2, size // 2  # of an even size, the extra channel is after
    for shift in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        total[:, low:high] += square[:, low + shift : high + shift]
    kind = x.dtype.type
    return np.asarray(x / (kind(bias) + kind(alpha / size) * total) ** kind(beta))


lrn = _norm("LRN", 13, "x:T", _lrn, alpha=float32(1e-4), beta=0.75, bias=1.0, size=required("int"))


@lrn.infer
def _(g: Scope, x: Fact, *, size: int, **_: Any) -> Fact:
    _channels(x)
    if size < 1:
        raise ShapeError(f"size must be at least 1, got {size}")
    return x.without_contents()


def _mean_variance(x: Array, *, axes: Axes) -> Array:
    over = axes_of(axes, x.ndim)
    y = x - _mean(x, over)
    # ONNX's function body adds 1e-9 to the deviation, so that constant input gives 0.
    y /= np.sqrt(_mean(y * y, over)) + x.dtype.type(1e-9)
    return y


mean_variance = _norm("MeanVarianceNormalization", 13, "x:T", _mean_variance, axes=(0, 2, 3))


@mean_variance.infer
def _(g: Scope, x: Fact, *, axes: Axes) -> Fact:
    axes_of(axes, x.rank)
    return x.without_contents()


def widened(b: Builder, x: Value) -> Value:
    """A value in the type to normalize in: float32 for float16 and bfloat16."""
    return b.cast(x, F32) if x.tensor.dtype in (F16, BF16) else x


def per_channel(b: Builder, vector: Value, x: Value) -> Value:
    """One number per channel in a shape that broadcasts over an image."""
    rank = x.tensor.rank
    wide = widened(b, vector)
    return b.Reshape(wide, b.ints(-1, *(1,) * (rank - 2))) if rank > 2 else wide


@batch_norm.decompose(when=lambda node: bool(node.attrs["training_mode"]))
def _(b: Builder, node: Node) -> list[Value]:
    x, scale, bias, mean, var = (input_of(node, i) for i in range(5))
    wide, attrs = widened(b, x), node.attrs
    scale, bias, centre, variance = (per_channel(b, p, x) for p in (scale, bias, mean, var))
    if attrs["training_mode"]:
        axes = b.ints(0, *range(2, x.tensor.rank))
        centre = b.ReduceMean(wide, axes, keepdims=1)
    centred = b.Sub(wide, centre)
    if attrs["training_mode"]:
        variance = b.ReduceMean(b.Mul(centred, centred), axes, keepdims=1)
    normal = b.Mul(centred, b.Reciprocal(b.Sqrt(b.Add(variance, attrs["epsilon"]))))
    outputs = [b.cast(b.Add(b.Mul(normal, scale), bias), x.tensor.dtype)]
    if not attrs["training_mode"]:
        return outputs
    # The running statistics: moving averages over the batches.
    for now, before in ((centre, mean), (variance, var)):
        new = b.Mul(b.cast(b.Reshape(now, b.ints(-1)), before.tensor.dtype), 1 - attrs["momentum"])
        outputs.append(b.Add(b.Mul(before, attrs["momentum"]), new))
    return outputs


OPS: Final = (
    batch_norm, instance_norm, group_norm, layer_norm, rms_norm, simplified, lp_norm, lrn,
    mean_variance,
)  # fmt: skip
