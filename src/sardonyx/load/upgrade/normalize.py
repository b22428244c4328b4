"""Older forms of the normalizations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("BatchNormalization", below=14)
def outputs_decided_on_training(b: Builder, node: OldNode) -> Any:
    """A node with more than one output was in training, whatever is_test said of it."""
    kept = {k: v for k, v in node.attrs.items() if k in ("epsilon", "momentum")}
    inputs = node.given(5)
    is_per_channel = bool(node.attr("spatial", 1))
    if not is_per_channel:  # every activation has its own statistics: as many channels
        rows = (b.Reshape(row, b.ints(-1)) for row in inputs[1:])
        inputs = (b.Flatten(inputs[0], axis=1), *rows)
    if node.n_outputs == 1:
        made = b.BatchNormalization(*inputs, **kept)
        return made if is_per_channel else b.Reshape(made, b.Shape(node.needed(0)))
    y, mean, var = b.node("BatchNormalization", *inputs, outputs=3, training_mode=1, **kept).outputs
    saved = [mean, var, *_statistics(b, inputs[0])]
    if is_per_channel:
        return y, *saved
    shape = b.Shape(node.needed(1))
    return b.Reshape(y, b.Shape(node.needed(0))), *(b.Reshape(row, shape) for row in saved)


def _statistics(b: Builder, x: Value | None) -> tuple[Any, Any]:
    """The batch's own mean and variance, which older forms saved for the gradient."""
    flat = b.Reshape(x, b.ints(0, 0, -1))
    axes = b.ints(0, 2)
    mean = b.ReduceMean(flat, axes, keepdims=1)
    off = b.Sub(flat, mean)
    var = b.ReduceMean(b.Mul(off, off), axes, keepdims=0)
    return b.Reshape(mean, b.ints(-1)), var


@upgrade("InstanceNormalization", below=6)
def inputs_are_not_consumed(b: Builder, node: OldNode) -> Any:
    """A hint on memory that meant nothing for the result."""
    kept = {k: v for k, v in node.attrs.items() if k == "epsilon"}
    return b.InstanceNormalization(*node.inputs, **kept)


@upgrade("GroupNormalization", below=21)
def scales_become_per_channel(b: Builder, node: OldNode) -> Any:
    """Scale and bias were one number per group."""
    x, *rows = node.given(3)
    groups = node.attr("num_groups")
    if groups is None:
        raise InvalidGraph("GroupNormalization needs the attribute num_groups")
    channels = b.Gather(b.Shape(x), b.ints(1), axis=0)
    each = b.Div(channels, b.ints(groups))
    shape = b.Concat(b.ints(1), each, axis=0)
    spread = [b.Reshape(b.Expand(b.Unsqueeze(row, b.ints(1)), shape), b.ints(-1)) for row in rows]
    return b.GroupNormalization(x, *spread, **node.attrs)


@upgrade("SimplifiedLayerNormalization", below=2, domain="com.microsoft")
def simplified_is_in_the_standard_domain(b: Builder, node: OldNode) -> Any:
    """Some exporters put it where the others of its kind are."""
    name = "SimplifiedLayerNormalization"
    return b.node(name, *node.inputs, outputs=node.n_outputs, **node.attrs).outputs


@upgrade("GatedRMSNorm", below=ANY, domain=MICROSOFT)
def gated_norm(b: Builder, node: OldNode) -> Any:
    """Groups as long as the scale are normalized, then multiplied by their gates."""
    x, factor, gate = node.given(3)
    how = node.attr("activation", b"silu")
    if how not in (b"silu", b"swish", b"sigmoid"):
        raise InvalidGraph(f"activation {how!r} is none of silu, swish, sigmoid")
    shape = b.Concat(b.Shape(x, end=-1), b.ints(-1), b.Shape(factor), axis=0)
    groups = b.Reshape(b.Cast(x, to=F32.onnx), shape)
    epsilon = {"epsilon": node.attr("epsilon", float(np.float32(1e-5)))}
    y = b.Reshape(
        b.RMSNormalization(groups, b.Cast(factor, to=F32.onnx), **epsilon), b.Shape(x), allowzero=1
    )
    gate = b.Cast(gate, to=F32.onnx)
    opened = b.Sigmoid(gate) if how == b"sigmoid" else b.Mul(gate, b.Sigmoid(gate))
    return b.CastLike(b.Mul(y, opened), x)


UPGRADES: Final = (
    *outputs_decided_on_training,
    *inputs_are_not_consumed,
    *scales_become_per_channel,
    *simplified_is_in_the_standard_domain,
    *gated_norm,
)
