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
from sardonyx.graph.op import Op, required
from sardonyx.ops.arrays import Array, in_wide, narrow, wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import axes_of, axis_of

EPSILON: Final = float(np.float32(1e-5))
MOMENTUM: Final = float(np.float32(0.9))
ALPHA: Final = float(np.float32(1e-4))
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
            raise ShapeError(f"{name} has rank {param.rank}, and must be a vector")
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
    attrs={"epsilon": EPSILON, "momentum": MOMENTUM, "training_mode": 0},
    types={"T": FLOATS, "T1": FLOATS, "T2": FLOATS},
)


@batch_norm.infer
def _(g: Scope, x: Fact, *params: Fact, training_mode: int, **_: Any) -> tuple[Fact, ...]:
    scale, b, mean, var = params
    channels = 1 if x.rank == 1 else _channels(x)  # ONNX allows rank 1: batch only, one channel
    _check_per_channel(g, channels, scale=scale, B=b, input_mean=mean, input_var=var)
    return (x.plain(), mean.plain(), var.plain()) if training_mode else (x.plain(),)


def _batch_norm(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, **attrs: Any
) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        y, batch_mean, batch_var = _normalize_batch(x, (scale, b, mean, var), attrs)
        if not attrs["training_mode"]:
            return (y,)
        pairs = ((mean, batch_mean), (var, batch_var))
        return (
            y,
            *(_running(old, batch_statistic, attrs["momentum"]) for old, batch_statistic in pairs),
        )


def _running(old: Array, batch_statistic: Array, momentum: float) -> Array:
    value = wide(old)
    kind = value.dtype.type
    mixed = value * kind(momentum) + batch_statistic.reshape(-1).astype(value.dtype) * kind(
        1 - momentum
    )
    return np.asarray(mixed.astype(old.dtype))


def _normalize_batch(
    x: Array, params: tuple[Array, ...], attrs: dict[str, Any]
) -> tuple[Array, Array, Array]:
    wide_x = wide(x) if x.ndim > 1 else wide(x)[:, None]
    scale, b, mean, var = (_per_channel(wide(r), wide_x) for r in params)
    if attrs["training_mode"]:
        axes = (0, *range(2, wide_x.ndim))
        mean = _mean(wide_x, axes)
        y = wide_x - mean
        var = _mean(y * y, axes)
    else:
        y = wide_x - mean
    y *= scale / np.sqrt(var + wide_x.dtype.type(attrs["epsilon"]))
    y += b
    return y.reshape(x.shape).astype(x.dtype, copy=False), mean, var


batch_norm.reference(_batch_norm)

instance_norm = Op(
    "InstanceNormalization",
    22,
    "x:T scale:T b:T",
    "y:T",
    attrs={"epsilon": EPSILON},
    types={"T": FLOATS},
)


@instance_norm.infer
def _(g: Scope, x: Fact, scale: Fact, b: Fact, *, epsilon: float) -> Fact:
    _check_per_channel(g, _channels(x), scale=scale, B=b)
    return x.plain()


def _instance_norm(x: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    y, _, _ = _standardize(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), (2,), epsilon)
    y = y.reshape(x.shape)
    y *= _per_channel(scale, x)
    y += _per_channel(b, x)
    return y


instance_norm.reference(in_wide(_instance_norm))

group_norm = Op(
    "GroupNormalization",
    21,
    "x:T scale:T bias:T",
    "y:T",
    attrs={"epsilon": EPSILON, "num_groups": required("int"), "stash_type": 1},
    types={"T": FLOATS},
)


@group_norm.infer
def _(g: Scope, x: Fact, scale: Fact, bias: Fact, *, num_groups: int, **_: Any) -> Fact:
    if num_groups < 1:
        raise ShapeError(f"num_groups is {num_groups}, and must be 1 or more")
    g.divides(num_groups, _channels(x), "num_groups must divide the channels")
    _check_per_channel(g, x.dims[1], scale=scale, bias=bias)
    return x.plain()


def _group_norm(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int, stash_type: int
) -> Array:
    each = math.prod(x.shape[1:]) // num_groups
    y, _, _ = _standardize(x.reshape(x.shape[0], num_groups, each), (2,), epsilon)
    y = y.reshape(x.shape)
    y *= _per_channel(scale, x)
    y += _per_channel(bias, x)
    return y


group_norm.reference(in_wide(_group_norm))


def _stash(stash_type: int) -> DType:
    """Return the type of saved statistics; they are computed in it or in a wider type."""
    dtype = by_onnx(stash_type)
    if dtype is None or dtype not in FLOATS:
        raise ShapeError(f"stash_type is {stash_type}, and must name a float type: 1 is float32")
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


layer_norm = Op(
    "LayerNormalization",
    17,
    "x:T scale:T b:T?",
    "y:T mean:U? inv_std_dev:U?",
    attrs={"axis": -1, "epsilon": EPSILON, "stash_type": 1},
    types={"T": FLOATS, "U": frozenset((F32, BF16))},
    unranked=True,
)


@layer_norm.infer
def _(
    g: Scope, x: Fact, scale: Fact, b: Fact | None, *, axis: int, stash_type: int, **_: Any
) -> tuple[Fact, ...]:
    saved = Fact(_stash(stash_type), _reduced(x, axis))
    if x.shape is not None:
        _check_broadcasts(g, x.shape, Scale=scale, B=b)
    return x.plain(), saved, saved


def _layer_norm(
    x: Array, scale: Array, b: Array | None = None, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array, Array]:
    with np.errstate(all="ignore"):
        y, mean, inverse = _standardize(wide(x), _last_axes(x, axis), epsilon)
        y *= wide(scale)
        if b is not None:
            y += wide(b)
        saved = _stash(stash_type).np
        return narrow(y, x.dtype), mean.astype(saved), inverse.astype(saved)


layer_norm.reference(_layer_norm)


def _rms_norm(
    x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        value = wide(x)
        square = _mean(value * value, _last_axes(x, axis))
        inverse = 1 / np.sqrt(square + value.dtype.type(epsilon))
        y = value * inverse
        y = y * wide(scale)
        return y.astype(scale.dtype, copy=False), inverse.astype(_stash(stash_type).np)


def _rms_facts(
    g: Scope, x: Fact, scale: Fact, *, axis: int, stash_type: int, **_: Any
) -> tuple[Fact, Fact]:
    saved = Fact(_stash(stash_type), _reduced(x, axis))
    if x.shape is not None:
        _check_broadcasts(g, x.shape, scale=scale)
    return Fact(scale.dtype, x.shape), saved


RMS: Final[dict[str, Any]] = {"axis": -1, "epsilon": EPSILON, "stash_type": 1}

rms_norm = Op(
    "RMSNormalization",
    23,
    "x:T scale:V",
    "y:V",
    attrs=RMS,
    types={"T": FLOATS, "V": FLOATS},
    unranked=True,
)
rms_norm.infer(lambda *facts, **attrs: _rms_facts(*facts, **attrs)[0])
rms_norm.reference(lambda *arrays, **attrs: _rms_norm(*arrays, **attrs)[0])

# onnxruntime's RMS norm, older than ONNX's; it is in the ONNX domain nevertheless.
simplified = Op(
    "SimplifiedLayerNormalization",
    1,
    "x:T scale:V",
    "y:V inv_std_var:U?",
    attrs=RMS,
    types={"T": FLOATS, "V": FLOATS},
    unranked=True,
)
simplified.infer(_rms_facts)
simplified.reference(_rms_norm)

lp_norm = Op("LpNormalization", 22, "x:T", "y:T", attrs={"axis": -1, "p": 2}, types={"T": FLOATS})


@lp_norm.infer
def _(g: Scope, x: Fact, *, axis: int, p: int) -> Fact:
    axis_of(axis, x.rank)
    if p not in (1, 2):
        raise ShapeError(f"p is {p}, and may be 1 or 2")
    return x.plain()


def _lp_norm(x: Array, *, axis: int, p: int) -> Array:
    if p == 1:
        norm = np.abs(x).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt((x * x).sum(axis=axis, keepdims=True))
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype)


lp_norm.reference(in_wide(_lp_norm))

lrn = Op(
    "LRN",
    13,
    "x:T",
    "y:T",
    attrs={"alpha": ALPHA, "beta": 0.75, "bias": 1.0, "size": required("int")},
    types={"T": FLOATS},
)


@lrn.infer
def _(g: Scope, x: Fact, *, size: int, **_: Any) -> Fact:
    _channels(x)
    if size < 1:
        raise ShapeError(f"size is {size}, and must be 1 or more")
    return x.plain()


def _lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int) -> Array:
    square = x * x
    channels = x.shape[1]
    total = np.zeros_like(x)
    before, after = (size - 1) // 2, size // 2
    for shift in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        total[:, low:high] += square[:, low + shift : high + shift]
    kind = x.dtype.type
    return np.asarray(x / (kind(bias) + kind(alpha / size) * total) ** kind(beta))


lrn.reference(in_wide(_lrn))

mean_variance = Op(
    "MeanVarianceNormalization", 13, "x:T", "y:T", attrs={"axes": (0, 2, 3)}, types={"T": FLOATS}
)


@mean_variance.infer
def _(g: Scope, x: Fact, *, axes: Axes) -> Fact:
    axes_of(axes, x.rank)
    return x.plain()


def _mean_variance(x: Array, *, axes: Axes) -> Array:
    over = axes_of(axes, x.ndim)
    y = x - _mean(x, over)
    # ONNX's function body adds 1e-9 to the deviation, so that constant input gives 0.
    y /= np.sqrt(_mean(y * y, over)) + x.dtype.type(1e-9)
    return y


mean_variance.reference(in_wide(_mean_variance))


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
    rows = [per_channel(b, row, x) for row in (scale, bias, mean, var)]
    if not attrs["training_mode"]:
        inverse = b.Reciprocal(b.Sqrt(b.Add(rows[3], attrs["epsilon"])))
        normal = b.Mul(b.Sub(wide, rows[2]), inverse)
        return [b.cast(b.Add(b.Mul(normal, rows[0]), rows[1]), x.tensor.dtype)]
    axes = (0, *range(2, x.tensor.rank))
    centre = b.ReduceMean(wide, b.ints(*axes), keepdims=1)
    centred = b.Sub(wide, centre)
    variance = b.ReduceMean(b.Mul(centred, centred), b.ints(*axes), keepdims=1)
    normal = b.Mul(centred, b.Reciprocal(b.Sqrt(b.Add(variance, attrs["epsilon"]))))
    y = b.cast(b.Add(b.Mul(normal, rows[0]), rows[1]), x.tensor.dtype)
    outputs = [y]
    for now, before in ((centre, mean), (variance, var)):
        new = b.Mul(b.cast(b.Reshape(now, b.ints(-1)), before.tensor.dtype), 1 - attrs["momentum"])
        outputs.append(b.Add(b.Mul(before, attrs["momentum"]), new))
    return outputs


OPS: Final = (
    batch_norm, instance_norm, group_norm, layer_norm, rms_norm, simplified, lp_norm, lrn,
    mean_variance,
)  # fmt: skip
