"""Standard ops in terms of older ones, for models in an older opset.

Reductions over computed axes are written as ReduceSum, the only one whose axes are an input before
opset 18; constant axes become an attribute when the model is saved (`save/older_forms.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from sardonyx.graph.dtype import FLOAT8, I64, by_onnx
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need, ranked


def _sum(b: Builder, x: Value, node: Node) -> Value:
    """Return the sum of a value over the axes of a reduction."""
    axes = optional_input(node, 1)
    attrs = {k: node.attrs[k] for k in ("keepdims", "noop_with_empty_axes")}
    return b.ReduceSum(x, *([] if axes is None else [axes]), **attrs)


def _normalized(b: Builder, node: Node, centers: bool) -> Value:
    """Return a layer normalization, computed in the type that the node names."""
    x, scale, bias = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    ranked(x)
    dtype, stash = x.tensor.dtype, by_onnx(node.attrs["stash_type"])
    need(stash is not None, "stash_type is not a type")
    need(len(node.outputs) == 1, "there are further outputs")
    assert stash is not None
    rank = x.tensor.rank
    axes = b.ints(*range(node.attrs["axis"] % rank, rank))
    wide = b.cast(x, stash)
    if centers:
        wide = b.Sub(wide, b.ReduceMean(wide, axes))
    variance = b.ReduceMean(b.Mul(wide, wide), axes)
    y = b.Div(wide, b.Sqrt(b.Add(variance, node.attrs["epsilon"])))
    y = b.Mul(b.cast(y, dtype), b.cast(scale, dtype))
    return y if bias is None else b.Add(y, bias)


def _gelu(b: Builder, node: Node) -> Value:
    x = input_of(node, 0)
    if node.attrs["approximate"] == b"tanh":
        cube = b.Mul(b.Mul(x, x), x)
        inner = b.Mul(b.Add(x, b.Mul(cube, 0.044715)), math.sqrt(2 / math.pi))
        return b.Mul(b.Mul(x, 0.5), b.Add(b.Tanh(inner), 1.0))
    return b.Mul(b.Mul(x, 0.5), b.Add(b.Erf(b.Div(x, math.sqrt(2))), 1.0))


def _group_norm(b: Builder, node: Node) -> Value:
    x, scale, bias = (input_of(node, i) for i in range(3))
    ranked(x)
    groups, rank, dtype = node.attrs["num_groups"], x.tensor.rank, x.tensor.dtype
    split = b.Reshape(x, b.ints(0, groups, -1))
    ones = b.Expand(b.const(1.0, dtype), b.ints(groups))
    zeros = b.Expand(b.const(0.0, dtype), b.ints(groups))
    y = b.InstanceNormalization(split, ones, zeros, epsilon=node.attrs["epsilon"])
    channels = b.ints(*[-1 if axis == 1 else 1 for axis in range(rank)])
    y = b.Reshape(y, b.Shape(x))
    return b.Add(b.Mul(y, b.Reshape(scale, channels)), b.Reshape(bias, channels))


def _swish(b: Builder, node: Node) -> Value:
    x, alpha = input_of(node, 0), node.attrs["alpha"]
    return b.Mul(x, b.Sigmoid(x if alpha == 1 else b.Mul(x, alpha)))


def _cast_like(b: Builder, node: Node) -> Value:
    dtype = input_of(node, 1).tensor.dtype
    need(dtype not in FLOAT8, "how float8 saturates is an attribute of its own")
    return b.Cast(input_of(node, 0), to=dtype.onnx)


def _hard_swish(b: Builder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.HardSigmoid(x, alpha=1 / 6, beta=0.5))


def _mish(b: Builder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Tanh(b.Softplus(x)))


def _split(b: Builder, node: Node) -> Any:
    """Return a Split into a number of parts with the sizes of the parts."""
    x = input_of(node, 0)
    ranked(x)
    size = x.tensor.dims[node.attrs["axis"]]
    count = node.attrs["num_outputs"]
    need(isinstance(size, int) and count is not None, "the size is not known")
    assert isinstance(size, int)
    part = -(-size // count)
    sizes = [part] * (count - 1) + [size - part * (count - 1)]
    return b.node(
        "Split", x, b.const(sizes, I64), axis=node.attrs["axis"], outputs=len(node.outputs)
    ).outputs


Build = Callable[[Builder, Node], Any]

OLDER: Final[Mapping[str, Build]] = {
    "CastLike": _cast_like,
    "Gelu": _gelu,
    "GroupNormalization": _group_norm,
    "HardSwish": _hard_swish,
    "LayerNormalization": lambda b, node: _normalized(b, node, centers=True),
    "Mish": _mish,
    "RMSNormalization": lambda b, node: _normalized(b, node, centers=False),
    "ReduceL1": lambda b, node: _sum(b, b.Abs(input_of(node, 0)), node),
    "ReduceL2": lambda b, node: b.Sqrt(_sum(b, b.Mul(*_twice(node)), node)),
    "ReduceLogSum": lambda b, node: b.Log(_sum(b, input_of(node, 0), node)),
    "ReduceSumSquare": lambda b, node: _sum(b, b.Mul(*_twice(node)), node),
    "Split": _split,
    "Swish": _swish,
}


def _twice(node: Node) -> tuple[Value, Value]:
    return input_of(node, 0), input_of(node, 0)
