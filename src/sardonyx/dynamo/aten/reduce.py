"""Reductions, and the indices of maxima and minima."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported
from sardonyx.dynamo.table import in_float32, lowers
from sardonyx.graph import dtype as types
from sardonyx.graph.graph import Value

_SUMS: Final = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}
_EXTREMES: Final = {"max": ("ReduceMax", "ArgMax"), "min": ("ReduceMin", "ArgMin")}


def axes_of(x: Value, dim: Any) -> tuple[int, ...]:
    """Return the axes of a reduction; all of them if `dim` is None or empty.

    torch lets scalars be reduced along an axis 0, which they do not have.
    """
    rank = x.tensor.rank
    dims = range(rank) if dim is None or (not isinstance(dim, int) and not len(dim)) else dim
    dims = (dims,) if isinstance(dims, int) else dims
    return tuple(d + rank if d < 0 else d for d in dims) if rank else ()


def reduced(b: AtenBuilder, op: str, x: Value, dim: Any, keepdim: bool) -> Value:
    """Return a reduction over torch's `dim`."""
    axes = axes_of(x, dim)
    if not axes:
        return x
    return b.node(op, x, b.ints(*axes), keepdims=int(keepdim)).outputs[0]


def _register_sum(name: str, op: str) -> None:
    @lowers(f"{name}.default", f"{name}.dim_IntList", f"{name}.dim", f"{name}.dim_int")
    def _(
        b: AtenBuilder, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        out = b.out_type
        (x,) = b.like_out(x)
        if out in (torch.int8, torch.int16, torch.uint8):  # modulo 2**n, whatever the accumulator
            x = b.cast(x, types.I64)
        return b.rounded(reduced(b, op, x, dim, keepdim))


def ordered(b: AtenBuilder, x: Value) -> Value:
    """Return a tensor in a type that ReduceMax compares."""
    return b.cast(x, types.I32) if x.tensor.dtype is types.I16 else x


def _register_extreme(name: str, op: str, arg: str) -> None:
    @lowers(f"a{name}.default")
    def _(b: AtenBuilder, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
        return b.rounded(reduced(b, op, ordered(b, x), dim, keepdim))

    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value) -> Value:
        return b.rounded(reduced(b, op, ordered(b, x), None, False))

    @lowers(f"{name}.dim")
    def _(b: AtenBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        value = b.rounded(reduced(b, op, ordered(b, x), dim, keepdim))
        return value, _index(b, arg, x, dim, keepdim)

    @lowers(f"arg{name}.default")
    def _(b: AtenBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None or not x.tensor.rank:
            return _index(b, arg, x, dim or 0, keepdim)
        index = _index(b, arg, b.Reshape(x, b.ints(-1)), 0, False)
        return b.Reshape(index, b.ints(*[1] * x.tensor.rank)) if keepdim else index


def _index(b: AtenBuilder, op: str, x: Value, dim: int, keepdim: bool) -> Value:
    """Return the first index of the largest or smallest element; NaN is larger and smaller."""
    if not x.tensor.rank:
        return b.const(0, types.I64)
    x = b.cast(x, types.U8) if x.tensor.dtype is types.BOOL else x
    return b.node(op, x, axis=dim, keepdims=int(keepdim)).outputs[0]


def _register_quantifier(name: str, op: str) -> None:
    @lowers(f"{name}.default", f"{name}.dim", f"{name}.dims")
    def _(b: AtenBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if dim is not None and not isinstance(dim, int) and not len(dim):
            return b.rounded(b.cast(x, types.BOOL))  # unlike those of sums, no axes are none
        return b.rounded(reduced(b, op, b.cast(x, types.BOOL), dim, keepdim))


for _name, _op in _SUMS.items():
    _register_sum(_name, _op)
for _name, (_op, _arg) in _EXTREMES.items():
    _register_extreme(_name, _op, _arg)
_register_quantifier("any", "ReduceMax")
_register_quantifier("all", "ReduceMin")


@lowers("logsumexp.default")
def _(b: AtenBuilder, x: Value, dim: Any, keepdim: bool = False) -> Value:
    (x,) = b.like_out(x)
    return reduced(b, "ReduceLogSumExp", x, dim, keepdim)


def _count(b: AtenBuilder, axes: tuple[int, ...]) -> Value:
    """Return how many elements of the first argument are reduced to one, as int64."""
    n = math.prod(b.fake(0).shape[a] for a in axes)
    return b.size(n)


def _variance(b: AtenBuilder, x: Value, dim: Any, correction: Any, keepdim: bool) -> Value:
    """Return the sum of squared deviations over max(0, n - correction)."""
    axes = axes_of(x, dim)
    correction = 1 if correction is None else correction
    n = b.cast(_count(b, axes), x.tensor.dtype)
    divisor = b.Max(b.Sub(n, float(correction)), 0.0)
    mean = reduced(b, "ReduceMean", x, axes, True)
    squares = reduced(b, "ReduceSumSquare", b.Sub(x, mean), axes, keepdim) if axes else b.Sub(x, x)
    return b.Div(squares, divisor)


@lowers("var.correction")
@in_float32
def _(
    b: AtenBuilder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    return _variance(b, x, dim, correction, keepdim)


@lowers("var.dim")
@in_float32
def _(b: AtenBuilder, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Value:
    return _variance(b, x, dim, int(unbiased), keepdim)


@lowers("var_mean.correction")
def _(
    b: AtenBuilder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    (x,) = b.in_compute_type(x)
    variance = _variance(b, x, dim, correction, keepdim)
    return b.rounded(variance), b.rounded(reduced(b, "ReduceMean", x, dim, keepdim))


def _norm(b: AtenBuilder, x: Value, order: float, reduce: Callable[[str, Value], Value]) -> Value:
    simple = {2.0: "ReduceL2", 1.0: "ReduceL1"}.get(float(order))
    if simple and x.tensor.rank:
        return reduce(simple, x)
    size = b.Abs(x)
    if abs(order) == math.inf:
        return reduce("ReduceMax" if order > 0 else "ReduceMin", size)
    if order == 0:
        return reduce("ReduceSum", b.cast(b.Not(b.Equal(x, 0.0)), x.tensor.dtype))
    if not x.tensor.rank:
        return size
    return b.Pow(reduce("ReduceSum", b.Pow(size, float(order))), 1 / float(order))


@lowers("linalg_vector_norm.default")
@in_float32
def _(
    b: AtenBuilder, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    if not x.tensor.dtype.is_float:
        raise Unsupported(f"norms of {x.tensor.dtype}")
    (x,) = b.in_compute_type(x)
    return _norm(b, x, ord, lambda op, v: reduced(b, op, v, dim, keepdim))


@lowers("dist.default")
@in_float32
def _(b: AtenBuilder, x: Value, y: Value, p: Any = 2) -> Value:
    """The norm of a difference."""
    return _norm(b, b.Sub(x, y), p, lambda op, v: reduced(b, op, v, None, False))
