"""Replaces the gradients of layers of onnxruntime-training: norms, convolutions, pools, Resize."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.gradient_nodes import vector_jacobian
from sardonyx.load.upgrade import OldNode, Upgrades, number_like
from sardonyx.load.upgrade.training import scaled, zeros
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()
_FIRST: Final = 0
_LAST: Final = 2**63 - 1  # as the end of a Slice: to the end


# Normalizations.


@UPGRADES.rule("LayerNormalizationGrad", domain=MICROSOFT)
def layer_norm(b: Builder, node: OldNode) -> Any:
    dy, x, scale_, mean, inverse = node.checked_inputs(5)
    normal = b.Mul(b.Sub(b.Cast(x, to=F32.onnx), _wide(b, mean)), _wide(b, inverse))
    return _layer_norm(b, node, normal, (dy, x, scale_, inverse), has_mean=True)


@UPGRADES.rule("InvertibleLayerNormalizationGrad", domain=MICROSOFT)
def invertible_layer_norm(b: Builder, node: OldNode) -> Any:
    """The normalized x, from the output."""
    dy, y, scale_, bias, inverse = node.checked_inputs(5)
    normal = b.Div(b.Sub(_wide(b, y), _wide(b, bias)), _wide(b, scale_))
    return _layer_norm(b, node, normal, (dy, y, scale_, inverse), has_mean=True)


@UPGRADES.rule("SimplifiedLayerNormalizationGrad", domain=MICROSOFT)
def simplified_layer_norm(b: Builder, node: OldNode) -> Any:
    dy, x, scale_, inverse = node.checked_inputs(4)
    normal = b.Mul(_wide(b, x), _wide(b, inverse))
    return _layer_norm(b, node, normal, (dy, x, scale_, inverse), has_mean=False)[:2]


def _wide(b: Builder, x: Value | None) -> Value:
    return b.Cast(x, to=F32.onnx)


def _layer_norm(
    b: Builder,
    node: OldNode,
    normal: Value,
    values: tuple[Value | None, ...],
    has_mean: bool,
) -> list[Value]:
    """Return the gradients of x, scale and bias from the normalized x."""
    dy, x, scale_, inverse = values
    axes, others = _axes(b, normal, node.attr("axis", -1))
    grad = _wide(b, dy)
    inner = b.Mul(grad, _wide(b, scale_))
    share = b.ReduceMean(b.Mul(inner, normal), axes, keepdims=1)
    rest = b.Sub(inner, b.ReduceMean(inner, axes, keepdims=1)) if has_mean else inner
    dx = b.Mul(b.Sub(rest, b.Mul(normal, share)), _wide(b, inverse))
    sums = [b.ReduceSum(g, others, keepdims=0, noop_with_empty_axes=1)
            for g in (b.Mul(grad, normal), grad)]  # fmt: skip
    return [b.CastLike(dx, x), *(b.CastLike(b.Reshape(s, b.Shape(scale_)), scale_) for s in sums)]


def _axes(b: Builder, x: Value, axis: int) -> tuple[Value, Value]:
    """Return the axes from one on, and those before it."""
    rank = b.Size(b.Shape(x))
    zero, one, first = b.const(0, I64), b.const(1, I64), b.const(axis, I64)
    first = first if axis >= 0 else b.Add(rank, first)
    return b.Range(first, rank, one), b.Range(zero, first, one)


@UPGRADES.rule("BatchNormInternal", domain=MICROSOFT)
def batch_norm(b: Builder, node: OldNode) -> Any:
    """A batch norm that returns also the statistics of the batch."""
    operands = node.checked_inputs(5)
    epsilon, momentum = node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    attrs = {"epsilon": epsilon, "training_mode": node.attr("training_mode", 1)}
    if not attrs["training_mode"]:
        return b.node("BatchNormalization", *operands, **attrs).outputs
    y, mean, variance = b.node(
        "BatchNormalization", *operands, momentum=0.0, outputs=3, **attrs
    ).outputs
    running = [
        b.Add(scaled(b, old, momentum), scaled(b, new, 1 - momentum))
        for old, new in zip(operands[3:], (mean, variance), strict=True)
    ]
    root = b.Sqrt(b.Add(variance, number_like(b, epsilon, variance)))
    return y, *running, mean, b.Reciprocal(root)


@UPGRADES.rule("BatchNormalizationGrad", domain=MICROSOFT)
def batch_norm_gradient(b: Builder, node: OldNode) -> Any:
    dy, x, scale_, mean, inverse = node.checked_inputs(5)
    bias = zeros(b, b.Shape(scale_), scale_)
    y = b.BatchNormalization(
        x, scale_, bias, mean, inverse, epsilon=node.attr("epsilon", 1e-5), training_mode=1
    )
    return vector_jacobian(b, y, dy, [x, scale_, bias])


# Convolutions, pools and Resize.

_WINDOW: Final = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding",
                  "output_shape", "pads", "strides")  # fmt: skip


@UPGRADES.rule("ConvGrad ConvTransposeGrad", domain=MICROSOFT)
def conv(b: Builder, node: OldNode) -> Any:
    dy, x, w = node.checked_inputs(3)
    attrs = {name: node.attrs[name] for name in _WINDOW if name in node.attrs}
    is_transposed = node.op_type == "ConvTransposeGrad"
    axis, group_ = (1, node.attr("group", 1)) if is_transposed else (0, 1)
    n_maps = b.Mul(b.Slice(b.Shape(w), b.ints(axis), b.ints(axis + 1)), b.ints(group_))
    bias = zeros(b, n_maps, w)
    y = b.node(node.op_type.removesuffix("Grad"), x, w, bias, **attrs).outputs[0]
    return vector_jacobian(b, y, dy, [x, w, bias][: max(1, node.n_outputs)])


@UPGRADES.rule("MaxPoolGrad")
@UPGRADES.rule("MaxPoolGrad", domain=MICROSOFT)
def max_pool(b: Builder, node: OldNode) -> Any:
    """Gradients at the indices of a MaxPool, whose input has the shape of the result."""
    dy, indices = node.checked_inputs(2)
    pool = None if indices is None else indices.node
    if pool is None or pool.op.name != "MaxPool":
        raise InvalidGraph(f"the indices of {node} are not those of a MaxPool")
    shape = b.Shape(pool.inputs[_FIRST])
    flat = zeros(b, b.ReduceProd(shape, keepdims=1), dy)
    rows = (b.Reshape(v, b.ints(-1)) for v in (indices, dy))
    added = b.ScatterElements(flat, *rows, axis=0, reduction=b"add")
    return b.Reshape(added, shape, allowzero=1)


@UPGRADES.rule("AveragePoolGrad")
@UPGRADES.rule("AveragePoolGrad", domain=MICROSOFT)
def average_pool(b: Builder, node: OldNode) -> Any:
    """The input has the least sizes that give this output: the op does not say them."""
    (dy,) = node.checked_inputs(1)
    (kernel,) = node.required_attrs("kernel_shape")
    if node.attr("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise InvalidGraph(f"{node} with auto_pad is not supported")
    n = len(kernel)
    strides, pads = node.attr("strides") or (1,) * n, node.attr("pads") or (0,) * 2 * n
    steps = b.Sub(b.Slice(b.Shape(dy), b.ints(2), b.ints(_LAST)), b.ints(*(1,) * n))
    ends = [k - p - q for k, p, q in zip(kernel, pads[:n], pads[n:], strict=True)]
    sizes = b.Add(b.Mul(steps, b.ints(*strides)), b.ints(*ends))
    shape = b.Concat(b.Slice(b.Shape(dy), b.ints(0), b.ints(2)), sizes, axis=0)
    x = zeros(b, shape, dy)
    attrs = {"strides": tuple(strides), "pads": tuple(pads), "kernel_shape": tuple(kernel)}
    attrs["count_include_pad"] = node.attr("count_include_pad", 0)
    return vector_jacobian(b, b.AveragePool(x, **attrs), dy, [x])


@UPGRADES.rule("ResizeGrad", domain=MICROSOFT)
def resize(b: Builder, node: OldNode) -> Any:
    dy, x, *rest = node.checked_inputs(2, 4)
    return vector_jacobian(b, b.node("Resize", x, *rest, **node.attrs).outputs[0], dy, [x])
