"""Upgrades of the normalizations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import check_choice

UPGRADES: Final = Upgrades()


@UPGRADES.rule("BatchNormalization", below=14)
def batch_norm_training_mode(b: Builder, node: OldNode) -> Any:
    """A node with more than one output trained, whatever its attribute is_test says.

    With spatial=0 every activation has its own statistics, as if it were a channel.
    """
    kept = {k: v for k, v in node.attrs.items() if k in ("epsilon", "momentum")}
    inputs = node.checked_inputs(5)
    is_per_channel = bool(node.attr("spatial", 1))
    if not is_per_channel:
        vectors = (b.Reshape(v, b.ints(-1)) for v in inputs[1:])
        inputs = (b.Flatten(inputs[0], axis=1), *vectors)
    if node.n_outputs == 1:
        y = b.BatchNormalization(*inputs, **kept)
        return y if is_per_channel else b.Reshape(y, b.Shape(node.inputs[0]))
    y, mean, var = b.node("BatchNormalization", *inputs, outputs=3, training_mode=1, **kept).outputs
    saved = [mean, var, *_statistics(b, inputs[0])]
    if is_per_channel:
        return y, *saved
    shape = b.Shape(node.inputs[1])
    return b.Reshape(y, b.Shape(node.inputs[0])), *(b.Reshape(v, shape) for v in saved)


def _statistics(b: Builder, x: Value | None) -> tuple[Any, Any]:
    """Return the mean and variance of the batch, which older versions saved for the gradient."""
    flat = b.Reshape(x, b.ints(0, 0, -1))
    axes = b.ints(0, 2)
    mean = b.ReduceMean(flat, axes, keepdims=1)
    deviation = b.Sub(flat, mean)
    var = b.ReduceMean(b.Mul(deviation, deviation), axes, keepdims=0)
    return b.Reshape(mean, b.ints(-1)), var


@UPGRADES.rule("InstanceNormalization", below=6)
def instance_norm_without_consumed_inputs(b: Builder, node: OldNode) -> Any:
    """Opset 1 listed the inputs that a node might overwrite (consumed_inputs)."""
    kept = {k: v for k, v in node.attrs.items() if k == "epsilon"}
    return b.InstanceNormalization(*node.inputs, **kept)


@UPGRADES.rule("GroupNormalization", below=21)
def scales_become_per_channel(b: Builder, node: OldNode) -> Any:
    """Before opset 21, scale and bias were one number per group."""
    x, *per_group = node.checked_inputs(3)
    (groups,) = node.required_attrs("num_groups")
    channels = b.Gather(b.Shape(x), b.ints(1), axis=0)
    shape = b.Concat(b.ints(1), b.Div(channels, b.ints(groups)), axis=0)
    columns = (b.Unsqueeze(v, b.ints(1)) for v in per_group)
    per_channel = (b.Reshape(b.Expand(v, shape), b.ints(-1)) for v in columns)
    return b.GroupNormalization(x, *per_channel, **node.attrs)


@UPGRADES.rule("LayerNormalization", below=17)
def layer_norm_of_two_types(b: Builder, node: OldNode) -> Any:
    """The op that onnxruntime had before ONNX: outputs have the type of the scale, not of x."""
    x, scale, *rest = node.checked_inputs(2, 3)
    if x is not None and scale is not None and scale.fact is not None and not _same_type(x, scale):
        x = b.CastLike(x, scale)
    inputs, attrs = (x, scale, *rest), node.attrs
    return b.node("LayerNormalization", *inputs, outputs=node.n_outputs, **attrs).outputs


def _same_type(x: Value, scale: Value) -> bool:
    """Return whether two values are known to have one element type."""
    a, b = x.fact, scale.fact
    return isinstance(a, Fact) and isinstance(b, Fact) and a.dtype is b.dtype


@UPGRADES.rule("SimplifiedLayerNormalization", below=2, domain=MICROSOFT)
def simplified_is_in_the_standard_domain(b: Builder, node: OldNode) -> Any:
    """Some exporters write it with the domain of the contrib normalizations."""
    return b.node(node.op_type, *node.inputs, outputs=node.n_outputs, **node.attrs).outputs


@UPGRADES.rule("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(b: Builder, node: OldNode) -> Any:
    """RMS norm over groups as long as the scale, multiplied by the activated gate."""
    x, factor, gate = node.checked_inputs(3)
    activation = node.attr("activation", b"silu")
    check_choice("activation", activation, (b"silu", b"swish", b"sigmoid"), InvalidGraph)
    shape = b.Concat(b.Shape(x, end=-1), b.ints(-1), b.Shape(factor), axis=0)
    groups = b.Reshape(b.Cast(x, to=F32.onnx), shape)
    epsilon = node.attr("epsilon", float(np.float32(1e-5)))
    y = b.RMSNormalization(groups, b.Cast(factor, to=F32.onnx), epsilon=epsilon)
    y = b.Reshape(y, b.Shape(x), allowzero=1)
    gate = b.Cast(gate, to=F32.onnx)
    activated = b.Sigmoid(gate) if activation == b"sigmoid" else b.Mul(gate, b.Sigmoid(gate))
    return b.CastLike(b.Mul(y, activated), x)
