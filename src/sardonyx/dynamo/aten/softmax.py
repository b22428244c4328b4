"""Softmax and its backward ops."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.dynamo.aten.reduce import reduced
from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import in_float32, lowers
from sardonyx.graph.graph import Value, input_of

_FORWARD: Final = {"_softmax": "Softmax", "_log_softmax": "LogSoftmax"}


def _along(b: AtenBuilder, op: str, x: Value, dim: int) -> Value:
    """Return a softmax; a scalar is a vector of one element."""
    if x.tensor.rank:
        return b.node(op, x, axis=dim).outputs[0]
    return b.Reshape(b.node(op, b.Reshape(x, b.ints(1)), axis=0).outputs[0], b.ints())


def _register(name: str, op: str) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value, dim: int, half_to_float: Any = False) -> Value:
        (x,) = b.like_out(x)
        return _along(b, op, x, dim)


for _name, _op in _FORWARD.items():
    _register(_name, _op)


@lowers("_safe_softmax.default")
def _(b: AtenBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    (x,) = b.like_out(x)
    y = _along(b, "Softmax", x, dim)
    # A row that is masked out entirely gives zeros, not NaN.
    top = reduced(b, "ReduceMax", x, dim, True)
    return b.Where(b.Equal(top, float("-inf")), b.const(0, y.tensor.dtype), y)


@lowers("_softmax_backward_data.default")
@in_float32
def _(b: AtenBuilder, dy: Value, y: Value, dim: int, dtype: Any) -> Value:
    product = b.Mul(dy, y)
    return b.Sub(product, b.Mul(y, reduced(b, "ReduceSum", product, dim, True)))


@lowers("_log_softmax_backward_data.default")
@in_float32
def _(b: AtenBuilder, dy: Value, y: Value, dim: int, dtype: Any) -> Value:
    scattered = _scattered(dy, dim)
    if scattered is None:
        return b.Sub(dy, b.Mul(b.Exp(y), reduced(b, "ReduceSum", dy, dim, True)))
    # Cross entropy: dy has one element g per row, so dx = g onehot - g softmax, and neither the
    # one-hot matrix nor its sums exist.
    indices, grads = scattered
    product = b.Mul(b.Exp(y), b.Neg(grads))
    return b.ScatterElements(product, indices, grads, axis=dim, reduction=b"add")


def _scattered(dy: Value, dim: int) -> tuple[Value, Value] | None:
    """Return indices and values of the gradient of nll_loss: one element per row, else zeros."""
    node = dy.node
    if node is None or node.op.name != "ScatterElements" or node.attrs["axis"] != dim:
        return None
    zeros, indices, values = (input_of(node, i) for i in range(3))
    source = zeros.node
    if source is None or source.op.name != "Expand" or indices.tensor.dims[dim] != 1:
        return None
    fill = input_of(source, 0).const
    return None if fill is None or fill.read().any() else (indices, values)
