"""NHWC forms of ops that become several nodes: convolutions, normalizations, shuffles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, optional_input
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.ops import lookup
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS
from sardonyx.passes.replace import attribute_to


class NodeMaker:
    """Adds nodes whose facts are known, so that nothing is inferred again."""

    __slots__ = ("graph", "node")

    def __init__(self, graph: Graph, node: Node | None) -> None:
        self.graph = graph
        self.node = node  # gives the new nodes their name and annotations

    def __call__(
        self, op: str, *inputs: Value | None, like: Fact, domain: str = "", **attrs: Any
    ) -> Value:
        """The output of a new node, with the type and shape of `like`."""
        declared = lookup(domain, op)
        assert declared is not None
        output = Value("", like.without_contents())
        node = self.graph.add(declared, inputs, {**declared.defaults, **attrs}, [output])
        if self.node is not None:
            attribute_to([node], self.node)
        return output


def int64s(numbers: Iterable[int]) -> Value:
    """A constant int64 vector, for axes and shapes."""
    return constant(ArrayConst(np.array(list(numbers), np.int64)))


def typed_constant(array: Any, dtype: DType) -> Value:
    """A constant of an element type."""
    return constant(ArrayConst(np.asarray(array, dtype.np)))


def nhwc_fact(fact: Fact) -> Fact:
    """The fact of an NCHW image in NHWC."""
    dims = fact.dims
    return Fact(fact.dtype, (dims[0], *dims[2:], dims[1]))


def can_build(node: Node) -> bool:
    """Whether the activation of a FusedConv, if it has one, is a standard op."""
    activation: bytes | None = node.attrs.get("activation")
    if not activation:
        return True
    # ScaledTanh and ParametricSoftplus are activations, but no ops.
    name = activation.decode("utf-8", "replace")
    if name not in ACTIVATION_ATTRS or lookup(ONNX, name) is None:
        return False
    return len(ACTIVATION_ATTRS[name]) == len(node.attrs["activation_params"] or ())


def build_conv(make: NodeMaker, node: Node, images: list[Value]) -> Value:
    """The internal Conv, followed by separate nodes for bias, residual and activation.

    Elementwise fusion makes these the epilogue of the convolution again.
    """
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    name = "ConvTranspose" if node.op.name == "ConvTranspose" else "Conv"
    fact = nhwc_fact(node.outputs[0].tensor)
    # The weights keep their ONNX layout: the kernel's packing permutes them.
    y = make(name, images[0], node.inputs[1], like=fact, domain=INTERNAL, **attrs)
    bias = optional_input(node, 2)
    for added in (*(() if bias is None else (bias,)), *images[1:]):
        y = make("Add", y, added, like=fact)
    activation: bytes | None = node.attrs.get("activation")
    if not activation:
        return y
    name, params = activation.decode(), node.attrs["activation_params"] or ()
    if name == "Clip":  # its bounds are inputs
        return make(name, y, *(typed_constant(p, fact.dtype) for p in params), like=fact)
    return make(name, y, like=fact, **dict(zip(ACTIVATION_ATTRS[name], params, strict=True)))


def build_batch_norm(make: NodeMaker, node: Node, images: list[Value]) -> Value:
    """BatchNormalization with constant statistics: a factor and a shift per channel."""
    gamma, beta, mean, variance = (
        v.const.read().astype(np.float64)  # type: ignore[union-attr]
        for v in node.inputs[1:5]
    )
    # In float64, then rounded once. A variance below -epsilon gives NaN, as the op does.
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + node.attrs["epsilon"])
        shift = beta - mean * factor
    fact = nhwc_fact(node.outputs[0].tensor)
    y = make("Mul", images[0], typed_constant(factor, fact.dtype), like=fact)
    return make("Add", y, typed_constant(shift, fact.dtype), like=fact)


def build_instance_norm(make: NodeMaker, node: Node, images: list[Value]) -> Value:
    """InstanceNormalization: (x - mean) / sqrt(variance + eps) * scale + bias per channel."""
    (x,) = images
    fact = x.tensor
    spatial = range(1, fact.rank - 1)
    one = Fact(fact.dtype, (fact.dims[0], *(1 for _ in spatial), fact.dims[-1]))
    mean = make("ReduceMean", x, int64s(spatial), like=one)
    # Two passes: E[x^2] - E[x]^2 would cancel for means far from 0.
    centred = make("Sub", x, mean, like=fact)
    variance = _mean_square(make, centred, one)
    epsilon = typed_constant(node.attrs["epsilon"], fact.dtype)
    stddev = make("Sqrt", make("Add", variance, epsilon, like=one), like=one)
    factor = make("Div", node.inputs[1], stddev, like=one)
    y = make("Mul", centred, factor, like=fact)
    return make("Add", y, node.inputs[2], like=fact)


def _mean_square(make: NodeMaker, x: Value, one: Fact) -> Value:
    """The mean of squares over the spatial axes."""
    fact = x.tensor
    axes, sizes = int64s(range(1, fact.rank - 1)), fact.dims[1:-1]
    count = math.prod(d for d in sizes if isinstance(d, int))
    # A sum of squares needs no tensor of squares, but float16 would overflow in it.
    is_wide = fact.dtype.bits >= 32
    if is_wide and all(isinstance(d, int) for d in sizes) and count > 0:
        total = make("ReduceSumSquare", x, axes, like=one)
        return make("Div", total, typed_constant(float(count), fact.dtype), like=one)
    return make("ReduceMean", make("Mul", x, x, like=fact), axes, like=one)


def build_depth_space(make: NodeMaker, node: Node, images: list[Value]) -> Value:
    """DepthToSpace and SpaceToDepth as Reshape, Transpose, Reshape."""
    (x,) = images
    fact, out = x.tensor, nhwc_fact(node.outputs[0].tensor)
    size = node.attrs["blocksize"]
    batch, *(height, width, channels) = fact.dims
    # In NHWC a block is split from height and width, or from the channels, whose order (DCR or CRD)
    # says whether block positions or depth come first.
    if node.op.name == "SpaceToDepth":
        split: list[Any] = [batch, out.dims[1], size, out.dims[2], size, channels]
        order = (0, 1, 3, 2, 4, 5)
    elif node.attrs["mode"] == b"CRD":
        split = [batch, height, width, out.dims[3], size, size]
        order = (0, 1, 4, 2, 5, 3)
    else:
        split = [batch, height, width, size, size, out.dims[3]]
        order = (0, 1, 3, 2, 4, 5)
    blocks = make("Reshape", x, _reshape_dims(split), like=Fact(fact.dtype, tuple(split)))
    # NodeMaker infers nothing, so the fact is permuted here.
    permuted_fact = Fact(fact.dtype, tuple(split[i] for i in order))
    permuted = make("Transpose", blocks, like=permuted_fact, perm=order)
    return make("Reshape", permuted, _reshape_dims(list(out.dims)), like=out)


def _reshape_dims(dims: list[Any]) -> Value:
    """A Reshape target whose batch size may be symbolic: a 0 copies it."""
    return int64s([0 if not isinstance(dims[0], int) else dims[0], *dims[1:]])
