"""Ops that become several nodes when their images have the channels last."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from sardonyx.graph.const import Held
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops import lookup

# Activations of FusedConv that are ops, with the attributes that activation_params stands for.
_ACTIVATIONS: Final[dict[str, tuple[str, ...]]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}


class Maker:
    """Adds nodes whose facts are known: nothing is inferred again."""

    __slots__ = ("graph", "node")

    def __init__(self, graph: Graph, node: Node | None) -> None:
        self.graph = graph
        self.node = node  # that the new ones stand for

    def __call__(
        self, op: str, *inputs: Value | None, like: Fact, domain: str = "", **attrs: Any
    ) -> Value:
        """The output of a new node, which has the type and shape of `like`."""
        found = lookup(domain, op)
        assert found is not None
        made = Value("", like.plain())
        node = self.graph.add(found, inputs, {**found.defaults, **attrs}, [made])
        if self.node is not None:
            node.name, node.marks = self.node.name, self.node.marks
        return made


def int64s(numbers: Iterable[int]) -> Value:
    """A constant vector, as axes and shapes are."""
    return constant(Held(np.array(list(numbers), np.int64)))


def floats(array: Any, dtype: DType) -> Value:
    """A constant of an element type."""
    return constant(Held(np.asarray(array, dtype.np)))


def last_fact(fact: Fact) -> Fact:
    """The fact of an image with its channels last."""
    dims = fact.dims
    return Fact(fact.dtype, (dims[0], *dims[2:], dims[1]))


def can_build(node: Node) -> bool:
    """Whether the activation of a fused convolution, if it has one, is an op of its own."""
    name: bytes | None = node.attrs.get("activation")
    if not name:
        return True
    settings = _ACTIVATIONS.get(name.decode("utf-8", "replace"))
    return settings is not None and len(settings) == len(node.attrs["activation_params"] or ())


def build_conv(make: Maker, node: Node, images: list[Value]) -> Value:
    """The product, then its bias, what is added to it, and its activation, each a node."""
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    name = "ConvTranspose" if node.op.name == "ConvTranspose" else "Conv"
    fact = last_fact(node.outputs[0].tensor)
    y = make(name, images[0], node.inputs[1], like=fact, domain=INTERNAL, **attrs)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        y = make("Add", y, node.inputs[2], like=fact)
    for added in images[1:]:
        y = make("Add", y, added, like=fact)
    act: bytes | None = node.attrs.get("activation")
    return _activation(make, y, act.decode(), node) if act else y


def _activation(make: Maker, y: Value, name: str, node: Node) -> Value:
    params = node.attrs["activation_params"] or ()
    fact = y.tensor
    if name == "Clip":
        return make(name, y, *(floats(p, fact.dtype) for p in params), like=fact)
    return make(name, y, like=fact, **dict(zip(_ACTIVATIONS[name], params, strict=True)))


def build_norm(make: Maker, node: Node, images: list[Value]) -> Value:
    """BatchNormalization by constants: a factor and a shift for each channel."""
    gamma, beta, centre, spread = (
        v.const.read().astype(np.float64)  # type: ignore[union-attr]
        for v in node.inputs[1:5]
    )
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(spread + node.attrs["epsilon"])
        shift = beta - centre * factor
    fact = last_fact(node.outputs[0].tensor)
    y = make("Mul", images[0], floats(factor, fact.dtype), like=fact)
    return make("Add", y, floats(shift, fact.dtype), like=fact)


def build_instance_norm(make: Maker, node: Node, images: list[Value]) -> Value:
    """Each channel of each image, less its mean, over its deviation; then factor and shift."""
    (x,) = images
    fact = x.tensor
    spatial = range(1, fact.rank - 1)
    one = Fact(fact.dtype, (fact.dims[0], *(1 for _ in spatial), fact.dims[-1]))
    mean = make("ReduceMean", x, int64s(spatial), like=one)
    centred = make("Sub", x, mean, like=fact)
    variance = _mean_square(make, centred, one)
    epsilon = floats(node.attrs["epsilon"], fact.dtype)
    spread = make("Sqrt", make("Add", variance, epsilon, like=one), like=one)
    factor = make("Div", node.inputs[1], spread, like=one)
    y = make("Mul", centred, factor, like=fact)
    return make("Add", y, node.inputs[2], like=fact)


def _mean_square(make: Maker, x: Value, one: Fact) -> Value:
    """Over all spatial axes. Where their sizes are known, the squares are never all there."""
    fact = x.tensor
    axes, sizes = int64s(range(1, fact.rank - 1)), fact.dims[1:-1]
    count = math.prod(d for d in sizes if isinstance(d, int))
    is_wide = fact.dtype.bits >= 32  # halves hold means of squares that are too large to add up
    if is_wide and all(isinstance(d, int) for d in sizes) and count > 0:
        total = make("ReduceSumSquare", x, axes, like=one)
        return make("Div", total, floats(float(count), fact.dtype), like=one)
    return make("ReduceMean", make("Mul", x, x, like=fact), axes, like=one)


def build_shuffle(make: Maker, node: Node, images: list[Value]) -> Value:
    """DepthToSpace and SpaceToDepth: blocks of pixels to channels, or back."""
    (x,) = images
    fact, out = x.tensor, last_fact(node.outputs[0].tensor)
    size = node.attrs["blocksize"]
    batch, *(height, width, channels) = fact.dims
    if node.op.name == "SpaceToDepth":
        split: list[Any] = [batch, out.dims[1], size, out.dims[2], size, channels]
        order = (0, 1, 3, 2, 4, 5)
    elif node.attrs["mode"] == b"CRD":
        split = [batch, height, width, out.dims[3], size, size]
        order = (0, 1, 4, 2, 5, 3)
    else:
        split = [batch, height, width, size, size, out.dims[3]]
        order = (0, 1, 3, 2, 4, 5)
    parts = make("Reshape", x, _batched(split), like=Fact(fact.dtype, tuple(split)))
    moved = Fact(fact.dtype, tuple(split[i] for i in order))
    turned = make("Transpose", parts, like=moved, perm=order)
    return make("Reshape", turned, _batched(list(out.dims)), like=out)


def _batched(dims: list[Any]) -> Value:
    """A target shape whose first size may be open."""
    return int64s([0 if not isinstance(dims[0], int) else dims[0], *dims[1:]])
