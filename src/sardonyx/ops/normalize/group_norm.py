"""GroupNorm and SkipGroupNorm of com.microsoft: usually NHWC, with a skip connection and SiLU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, required
from sardonyx.ops.arrays import Array, float32, wide
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.elementwise.arithmetic import sigmoid
from sardonyx.ops.inference import to_channels_first, to_channels_last
from sardonyx.ops.normalize import standard

_FLOATS: Final = frozenset((F32, F16))
_DECLARED: Final[dict[str, Any]] = {
    "domain": MICROSOFT,
    "attrs": {
        "activation": required("int"),
        "channels_last": 1,
        "epsilon": float32(1e-5),
        "groups": required("int"),
    },
    "types": {"T": _FLOATS, "M": _FLOATS},
}

group_norm: Final = Op("GroupNorm", 1, "X:T gamma:M beta:M", "Y:T", **_DECLARED)
skip_group_norm: Final = Op(
    "SkipGroupNorm", 1, "X:T gamma:M beta:M skip:T bias:T?", "Y:T S:T?", **_DECLARED
)


@group_norm.infer
def _infer(g: Scope, x: Fact, gamma: Fact, beta: Fact, **attrs: Any) -> Fact:
    same_rank(4, X=x)
    channels, groups = x.dims[-1 if attrs["channels_last"] else 1], attrs["groups"]
    if groups < 1:
        raise InvalidGraph(f"groups must be at least 1, got {groups}")
    if attrs["activation"] not in (0, 1):
        raise InvalidGraph(f"activation must be 0 (none) or 1 (SiLU), got {attrs['activation']}")
    g.divides(groups, channels, "groups must divide the channels")
    same_dims(g, gamma.dims, (channels,), "gamma")
    same_dims(g, beta.dims, (channels,), "beta")
    return x.without_contents()


@skip_group_norm.infer
def _(
    g: Scope, x: Fact, gamma: Fact, beta: Fact, skip: Fact, bias: Fact | None, **attrs: Any
) -> tuple[Fact, Fact]:
    y: Fact = _infer(g, x, gamma, beta, **attrs)
    channel_axis = 3 if attrs["channels_last"] else 1
    batch, channels = x.dims[0], x.dims[channel_axis]
    if skip.rank == 2:
        same_dims(g, skip.dims, (batch, channels), "skip")
    else:
        same_rank(4, skip=skip)
        g.equal(skip.dims[0], batch, "skip has another batch than X")
        for axis in range(1, 4):
            if axis == channel_axis:
                g.equal(skip.dims[axis], channels, "skip has other channels than X")
            else:
                g.equal_or_one(skip.dims[axis], x.dims[axis], "skip does not broadcast to X")
    if bias is not None:
        same_dims(g, bias.dims, (channels,), "bias")
    return y, x.without_contents()


def _normalized(x: Array, gamma: Array, beta: Array, attrs: dict[str, Any]) -> Array:
    """Group-normalize float32 images, in the node's layout."""
    images = x.transpose(to_channels_first(4)) if attrs["channels_last"] else x
    norm_attrs = {"epsilon": attrs["epsilon"], "num_groups": attrs["groups"], "stash_type": 1}
    y: Array = standard.group_norm.run((images, wide(gamma), wide(beta)), norm_attrs)[0]
    if attrs["activation"]:
        y = y * sigmoid(y)
    return np.ascontiguousarray(y.transpose(to_channels_last(4))) if attrs["channels_last"] else y


@group_norm.reference
@np.errstate(all="ignore")
def _(x: Array, gamma: Array, beta: Array, **attrs: Any) -> Array:
    return _normalized(wide(x), gamma, beta, attrs).astype(x.dtype)


@skip_group_norm.reference
@np.errstate(all="ignore")
def _(
    x: Array, gamma: Array, beta: Array, skip: Array, bias: Array | None = None, **attrs: Any
) -> tuple[Array, Array]:
    # A skip of rank 2 is one number per image and channel.
    shape = (skip.shape[0], 1, 1, -1) if attrs["channels_last"] else (skip.shape[0], -1, 1, 1)
    total = wide(x) + wide(skip.reshape(shape) if skip.ndim == 2 else skip)
    if bias is not None:
        total = total + wide(bias).reshape(shape[1:])
    return _normalized(total, gamma, beta, attrs).astype(x.dtype), total.astype(x.dtype)


@group_norm.decompose
@skip_group_norm.decompose
def _(b: Builder, node: Node) -> Outputs:
    """GroupNorm and SkipGroupNorm."""
    x, gamma, beta = (input_of(node, i) for i in range(3))
    skip, bias = optional_input(node, 3), optional_input(node, 4)
    is_last = node.attrs["channels_last"]
    total = x
    if skip is not None:
        axes = b.ints(1, 2) if is_last else b.ints(2, 3)
        total = b.Add(x, b.Unsqueeze(skip, axes) if skip.tensor.rank == 2 else skip)
    if bias is not None:
        total = b.Add(total, bias if is_last else b.Unsqueeze(bias, b.ints(1, 2)))
    # The standard GroupNormalization is NCHW.
    y: Value = b.Transpose(total, perm=to_channels_first(4)) if is_last else total
    vectors = (b.cast(v, x.tensor.dtype) for v in (gamma, beta))
    groups, epsilon = node.attrs["groups"], node.attrs["epsilon"]
    y = b.GroupNormalization(y, *vectors, num_groups=groups, epsilon=epsilon)
    # SiLU: y * sigmoid(y).
    if node.attrs["activation"]:
        y = b.Mul(y, b.Sigmoid(y))
    if is_last:
        y = b.Transpose(y, perm=to_channels_last(4))
    return y, None if skip is None else b.Identity(total)


OPS: Final = (group_norm, skip_group_norm)
