"""Replaces the gradient ops of onnxruntime-training (com.microsoft) by standard ops.

Ops that are given the input of the forward op, and little of its result, become a request for the
gradient of that op (`vector_jacobian`), which is expanded once shapes are known.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, I64, U32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.graph.op import GRADIENT, MICROSOFT
from sardonyx.load.gradient_nodes import vector_jacobian
from sardonyx.load.upgrade import OldNode, Upgrades, number_like
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()
_FIRST: Final = 0
_LAST: Final = 2**63 - 1  # as the end of a Slice: to the end


def scaled(b: Builder, x: Value | None, number: float) -> Value:
    """Return a value times a number, in the value's type."""
    return b.Mul(x, number_like(b, number, x))


def zeros(b: Builder, shape: Value | None, like: Value | None) -> Value:
    """Return zeros of a shape, in the type of a value."""
    return b.Expand(number_like(b, 0, like), b.Cast(shape, to=I64.onnx))


# Activations.


@UPGRADES.rule("ReluGrad", domain=MICROSOFT)
def relu(b: Builder, node: OldNode) -> Any:
    dy, x = node.checked_inputs(2)
    zero = number_like(b, 0, dy)
    return b.Where(b.Greater(x, zero), dy, zero)


@UPGRADES.rule("LeakyReluGrad", domain=MICROSOFT)
def leaky_relu(b: Builder, node: OldNode) -> Any:
    dy, y = node.checked_inputs(2)
    slope = scaled(b, dy, node.attr("alpha", 0.01))
    return b.Where(b.Greater(y, number_like(b, 0, y)), dy, slope)


@UPGRADES.rule("TanhGrad", domain=MICROSOFT)
def tanh(b: Builder, node: OldNode) -> Any:
    dy, y = node.checked_inputs(2)
    return b.Mul(dy, b.Sub(number_like(b, 1, y), b.Mul(y, y)))


@UPGRADES.rule("SigmoidGrad", domain=MICROSOFT)
def sigmoid(b: Builder, node: OldNode) -> Any:
    dy, y = node.checked_inputs(2)
    return b.Mul(dy, b.Mul(y, b.Sub(number_like(b, 1, y), y)))


@UPGRADES.rule("GeluGrad FastGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX", domain=MICROSOFT)
def gelu(b: Builder, node: OldNode) -> Any:
    """The gradient with respect to x; with a bias, that of x + bias is the same."""
    has_bias = node.op_type.startswith("Bias")
    dy, x, *bias = node.checked_inputs(3 if has_bias else 2)
    x = b.Add(x, bias[0]) if has_bias else x
    kind = b"tanh" if "Fast" in node.op_type else b"none"
    return vector_jacobian(b, b.Gelu(x, approximate=kind), dy, [x])


@UPGRADES.rule("QuickGeluGrad", domain=MICROSOFT)
def quick_gelu(b: Builder, node: OldNode) -> Any:
    dy, x = node.checked_inputs(2)
    gate = b.Sigmoid(scaled(b, x, node.attr("alpha", 1.702)))
    return vector_jacobian(b, b.Mul(x, gate), dy, [x])


# Softmax and losses.


@UPGRADES.rule("SoftmaxGrad_13 LogSoftmaxGrad_13", domain=MICROSOFT)
def softmax(b: Builder, node: OldNode) -> Any:
    dy, y = node.checked_inputs(2)
    return _softmax(b, node.op_type, dy, y, node.attr("axis", -1))


@UPGRADES.rule("SoftmaxGrad LogSoftmaxGrad", domain=MICROSOFT)
def softmax_over_flattened_axes(b: Builder, node: OldNode) -> Any:
    """As softmax before opset 13: of the rows of a matrix, flattened at the axis."""
    dy, y = node.checked_inputs(2)
    axis = node.attr("axis", 1)
    flat = _softmax(b, node.op_type, b.Flatten(dy, axis=axis), b.Flatten(y, axis=axis), 1)
    return b.Reshape(flat, b.Shape(y), allowzero=1)


def _softmax(b: Builder, kind: str, dy: Any, y: Any, axis: int) -> Value:
    """Return the gradient from the result y of a softmax, or of its logarithm."""
    axes = b.ints(axis)
    if kind.startswith("Log"):
        return b.Sub(dy, b.Mul(b.Exp(y), b.ReduceSum(dy, axes, keepdims=1)))
    return b.Mul(y, b.Sub(dy, b.ReduceSum(b.Mul(dy, y), axes, keepdims=1)))


@UPGRADES.rule("SoftmaxCrossEntropyLossInternal", domain=MICROSOFT)
def cross_entropy(b: Builder, node: OldNode) -> Any:
    """The loss, with ignore_index as an input and perhaps another type of its result."""
    scores, labels = node.required_input(0), node.required_input(1)
    attrs = {"reduction": node.attr("reduction", b"mean"), "ignore_index": _ignored(node, 3)}
    outputs = b.node(
        "SoftmaxCrossEntropyLoss", scores, labels, node.input(2), outputs=2, **attrs
    ).outputs
    to = node.attr("output_type")
    return tuple(v if to is None else b.Cast(v, to=to) for v in outputs)


@UPGRADES.rule("SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad", domain=MICROSOFT)
def cross_entropy_gradient(b: Builder, node: OldNode) -> Any:
    """Through the likelihood of the labels, then the softmax, whose logarithm is given."""
    dy, log_prob, labels = (node.required_input(i) for i in range(3))
    is_internal = node.op_type.endswith("InternalGrad")
    ignored = _ignored(node, 4) if is_internal else node.attr("ignore_index")
    loss = b.NegativeLogLikelihoodLoss(
        log_prob, labels, node.input(3), reduction=node.attr("reduction", b"mean"),
        ignore_index=ignored,
    )  # fmt: skip
    (likelihood,) = vector_jacobian(b, loss, dy, [log_prob])
    grad = _softmax(b, "Log", likelihood, log_prob, 1)
    to, bias = node.attr("output_type"), node.input(5)
    grad = grad if to is None else b.Cast(grad, to=to)
    return grad if bias is None else b.Add(grad, b.Reshape(bias, b.Shape(grad), allowzero=1))


def _ignored(node: OldNode, position: int) -> int | None:
    """Return the constant input ignore_index."""
    value = node.input(position)
    if value is None:
        return None
    if value.const is None:
        raise InvalidGraph(f"{node} has an ignore_index that is not constant")
    return int(value.const.read().reshape(-1)[0])


# Indices and movement.


@UPGRADES.rule("GatherGrad", domain=MICROSOFT)
def gather(b: Builder, node: OldNode) -> Any:
    shape, indices, dy = node.checked_inputs(3)
    data = zeros(b, shape, dy)
    return vector_jacobian(b, b.Gather(data, indices, axis=node.attr("axis", 0)), dy, [data])


@UPGRADES.rule("GatherElementsGrad", domain=MICROSOFT)
def gather_elements(b: Builder, node: OldNode) -> Any:
    dy, shape, indices = node.checked_inputs(3)
    data = zeros(b, shape, dy)
    y = b.GatherElements(data, indices, axis=node.attr("axis", 0))
    return vector_jacobian(b, y, dy, [data])


@UPGRADES.rule("GatherNDGrad", domain=MICROSOFT)
def gather_nd(b: Builder, node: OldNode) -> Any:
    shape, indices, dy = node.checked_inputs(3)
    data = zeros(b, shape, dy)
    y = b.GatherND(data, indices, batch_dims=node.attr("batch_dims", 0))
    return vector_jacobian(b, y, dy, [data])


@UPGRADES.rule("SliceGrad", domain=MICROSOFT)
def slice_(b: Builder, node: OldNode) -> Any:
    dy, shape, *bounds = node.checked_inputs(4, 6)
    data = zeros(b, shape, dy)
    return vector_jacobian(b, b.Slice(data, *bounds), dy, [data])


@UPGRADES.rule("ConcatTraining", domain=MICROSOFT)
def concat(b: Builder, node: OldNode) -> Any:
    """Concat, and the sizes of the inputs along the axis."""
    (axis,) = node.required_attrs("axis")
    sizes = [b.Slice(b.Shape(x), b.ints(axis), _end(b, axis)) for x in node.inputs]
    return b.Concat(*node.inputs, axis=axis), b.Concat(*sizes, axis=0)


def _end(b: Builder, axis: int) -> Value:
    return b.ints(axis + 1 if axis != -1 else _LAST)


@UPGRADES.rule("SplitTraining", domain=MICROSOFT)
def split(b: Builder, node: OldNode) -> Any:
    x, sizes = node.checked_inputs(2)
    return b.node("Split", x, sizes, axis=node.attr("axis", 0), outputs=node.n_outputs).outputs


@UPGRADES.rule("PadAndUnflatten", domain=MICROSOFT)
def pad_and_unflatten(b: Builder, node: OldNode) -> Any:
    """Rows of x at some of m rows, the others 0; then the first axis is split in two."""
    x, indices, dims = node.checked_inputs(3)
    rest = b.Slice(b.Shape(x), b.ints(1), b.ints(_LAST))
    dims = b.Cast(dims, to=I64.onnx)
    rows = b.Concat(b.ReduceProd(dims, keepdims=1), rest, axis=0)
    where = b.Unsqueeze(b.Cast(indices, to=I64.onnx), b.ints(1))
    filled = b.ScatterND(zeros(b, rows, x), where, x)
    return b.Reshape(filled, b.Concat(dims, rest, axis=0), allowzero=1)


@UPGRADES.rule("BroadcastGradientArgs", domain=MICROSOFT)
def broadcast_axes(b: Builder, node: OldNode) -> Any:
    """The axes along which each of two shapes is broadcast to the other, the last one first."""
    shapes = [b.Cast(x, to=I64.onnx) for x in node.checked_inputs(2)]
    ranks = [b.Squeeze(b.Shape(s), b.ints(0)) for s in shapes]
    rank = b.Max(*ranks)
    one, missing, axes, padded = b.ints(1), b.ints(-1), [], []
    for shape, own in zip(shapes, ranks, strict=True):
        lead = b.Unsqueeze(b.Sub(rank, own), b.ints(0))
        padded.append(b.Concat(b.Expand(missing, lead), shape, axis=0))
    for mine, other in (padded, padded[::-1]):
        # Leading axes that a shape lacks are reduced even where the other has 1 there.
        is_kept = b.Or(b.Equal(other, one), b.Equal(other, missing))
        is_reduced = b.And(b.Equal(mine, one), b.Not(is_kept))
        found = b.NonZero(b.Or(is_reduced, b.Equal(mine, missing)))
        last_first = (b.ints(-1), b.ints(-_LAST), b.ints(0), b.ints(-1))
        axes.append(b.Slice(b.Reshape(found, b.ints(-1)), *last_first))
    return tuple(axes)


# Sums and elementwise ops.


@UPGRADES.rule("DivGrad", domain=MICROSOFT)
def div(b: Builder, node: OldNode) -> Any:
    dy, dividend, divisor = node.checked_inputs(3)
    outputs = [dividend, divisor][: max(1, node.n_outputs)]
    return vector_jacobian(b, b.Div(dividend, divisor), dy, outputs)


@UPGRADES.rule("ReduceSumTraining", domain=MICROSOFT)
def reduce_sum(b: Builder, node: OldNode) -> Any:
    x, axes = node.checked_inputs(2)
    attrs = {"keepdims": node.attr("keepdims", 1)}
    attrs["noop_with_empty_axes"] = node.attr("noop_with_empty_axes", 0)
    return b.ReduceSum(x, axes, **attrs)


@UPGRADES.rule("ReduceAllL2", domain=MICROSOFT)
def reduce_all_l2(b: Builder, node: OldNode) -> Any:
    """The norm of all elements of all inputs."""
    squares = [b.ReduceSumSquare(b.Cast(x, to=F32.onnx), keepdims=0) for x in node.inputs]
    return b.Sqrt(squares[0] if len(squares) == 1 else b.Sum(*squares))


@UPGRADES.rule("Scale", domain=MICROSOFT)
def scale(b: Builder, node: OldNode) -> Any:
    x, factor = node.checked_inputs(2)
    number = b.Reshape(b.CastLike(factor, x), b.ints())
    return b.Div(x, number) if node.attr("scale_down", 0) else b.Mul(x, number)


@UPGRADES.rule("ScaledSum", domain=MICROSOFT)
def scaled_sum(b: Builder, node: OldNode) -> Any:
    terms = [scaled(b, x, node.attr(f"scale_{i}", 1.0)) for i, x in enumerate(node.inputs)]
    return b.Sum(*terms)


@UPGRADES.rule("BatchScale", domain=MICROSOFT)
def batch_scale(b: Builder, node: OldNode) -> Any:
    (x,) = node.checked_inputs(1)
    return tuple(scaled(b, x, node.attr(f"scale_{i}", 1.0)) for i in range(node.n_outputs))


@UPGRADES.rule("MixedPrecisionScale", domain=MICROSOFT)
def mixed_precision_scale(b: Builder, node: OldNode) -> Any:
    """Each x times a scale, in another type."""
    factor, *xs = node.checked_inputs(2, len(node.inputs))
    (to,) = node.required_attrs("to")
    if node.attr("fuse_outputs", 0):
        raise InvalidGraph(f"{node} with fuse_outputs is not supported")
    return tuple(
        b.Cast(b.Mul(b.Cast(x, to=F32.onnx), b.Cast(factor, to=F32.onnx)), to=to) for x in xs
    )


@UPGRADES.rule("IsFinite", domain=MICROSOFT)
def is_finite(b: Builder, node: OldNode) -> Any:
    (x,) = node.checked_inputs(1)
    return b.Not(b.Or(b.IsNaN(x), b.IsInf(x)))


@UPGRADES.rule("PassThrough", domain=MICROSOFT)
def pass_through(b: Builder, node: OldNode) -> Any:
    return tuple(b.Identity(x) for x in node.inputs[: node.n_outputs])


@UPGRADES.rule("Group", domain=MICROSOFT)
def group(b: Builder, node: OldNode) -> Any:
    """True, once the inputs are there: a graph without side effects needs no order."""
    return b.Identity(b.const(True))


@UPGRADES.rule("ZeroGradient", domain=MICROSOFT)
def zero_gradient(b: Builder, node: OldNode) -> Any:
    old, _ = node.checked_inputs(2)
    return b.ConstantOfShape(b.Shape(old)) if _is_float32(old) else zeros(b, b.Shape(old), old)


def _is_float32(x: Value | None) -> bool:
    return x is not None and isinstance(x.fact, Fact) and x.fact.dtype is F32


# Optimizers. Without names for the updated tensors, those that are fed are updated.


@UPGRADES.rule("AdamWOptimizer SGDOptimizerV2", domain=MICROSOFT)
def optimizer(b: Builder, node: OldNode) -> Any:
    is_adamw = node.op_type == "AdamWOptimizer"
    name = "AdamWSequences" if is_adamw else "SGDSequences"
    if node.n_outputs == 1:
        name += "InPlace"
    n_outputs = 4 if is_adamw else 2
    attrs = {**node.attrs, "domain": GRADIENT}
    return b.node(name, *node.inputs, outputs=n_outputs, **attrs).outputs


@UPGRADES.rule("InplaceClipGradNorm ClipGradNorm", domain=MICROSOFT)
def clip(b: Builder, node: OldNode) -> Any:
    (gradients,) = node.checked_inputs(1)
    kind = node.attr("norm_type", b"fro")
    if kind != b"fro":
        raise InvalidGraph(f"{node} has the norm_type {kind!r}, only b'fro' is supported")
    return b.ClipSequence(gradients, domain=GRADIENT, max_norm=node.attr("max_norm", 1.0))


@UPGRADES.rule("InPlaceAccumulatorV2", domain=MICROSOFT)
def accumulator(b: Builder, node: OldNode) -> Any:
    buffer, value, overwrite = (*node.checked_inputs(2, 3), None)[:3]
    value = b.CastLike(value, buffer)
    added = b.node("AccumulateInPlace", buffer, value, overwrite, outputs=2, domain=GRADIENT)
    return added.outputs


@UPGRADES.rule("InPlaceAccumulator", domain=MICROSOFT)
def old_accumulator(b: Builder, node: OldNode) -> Any:
    """The sum as a new tensor."""
    total, value, signal = (*node.checked_inputs(2, 3), None)[:3]
    added = b.Add(total, b.CastLike(value, total))
    return added if signal is None else b.Where(b.Reshape(signal, b.ints()), added, total)


@UPGRADES.rule("SGDOptimizer", domain=MICROSOFT)
def sgd(b: Builder, node: OldNode) -> Any:
    """The updated weight, and the step that was taken."""
    rate, weight, grad = node.checked_inputs(3)
    step = b.Neg(b.Mul(grad, b.Reshape(b.CastLike(rate, grad), b.ints())))
    return b.Add(weight, b.CastLike(step, weight)), step


# Dropout.


@UPGRADES.rule("DropoutGrad BitmaskDropoutGrad", domain=MICROSOFT)
def dropout(b: Builder, node: OldNode) -> Any:
    dy, mask, ratio, training = (*node.checked_inputs(2, 4), None, None)[:4]
    if training is None:
        return b.Identity(dy)
    if node.op_type.startswith("Bitmask"):
        mask = _unpacked(b, mask, b.Shape(dy))
    share = number_like(b, 0.5, dy) if ratio is None else b.CastLike(ratio, dy)
    share = b.Reshape(share, b.ints())
    kept = b.Div(dy, b.Sub(number_like(b, 1, dy), share))
    dropped = b.Where(mask, kept, number_like(b, 0, dy))
    return b.Where(b.Reshape(training, b.ints()), dropped, dy)


def _unpacked(b: Builder, mask: Value | None, shape: Value) -> Value:
    """Return the bits of uint32 numbers as bools in a shape, the lowest bit first."""
    powers = b.const(np.uint32(1) << np.arange(32, dtype=np.uint32))
    bits = b.BitwiseAnd(b.Unsqueeze(mask, b.ints(1)), powers)
    flat = b.Reshape(b.Not(b.Equal(bits, b.const(0, U32))), b.ints(-1))
    count = b.ReduceProd(shape, keepdims=1)
    return b.Reshape(b.Slice(flat, b.ints(0), count), shape, allowzero=1)
