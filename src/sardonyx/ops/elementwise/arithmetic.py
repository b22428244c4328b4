"""Elementwise mathematics, logic and comparisons, with broadcasting."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, RuntimeException, ShapeError
from sardonyx.graph.dim import Size, is_at_least, is_equal, least, maximum, minimum, modulo, product
from sardonyx.graph.dtype import BOOL, FLOAT8, FLOATS, INDEX, INTS, NUMBERS, SIGNED, STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, Reference, required
from sardonyx.ops.arrays import Array, in_wide, wide
from sardonyx.ops.inference import broadcast_shapes, like_first
from sardonyx.ops.sizes import CLASSIC

_MAX_SYMBOLIC_BOOLS: Final = 8  # results of a comparison that inference tracks; masks are longer

Types = frozenset[DType]

BOOLS: Final = frozenset((BOOL,))


def unary(name: str, since: int, reference: Reference, types: Types = FLOATS, **attrs: Any) -> Op:
    """An op of one input whose output has the same type and shape."""
    op = Op(name, since, "x:T", "y:T", types={"T": types}, attrs=attrs, unranked=True)
    op.infer(like_first)
    op.reference(in_wide(reference))
    return op


def _broadcast(g: Scope, *xs: Fact, **_: Any) -> Fact:
    return Fact(xs[0].dtype, broadcast_shapes(g, *(x.dims for x in xs)))


def binary(name: str, since: int, reference: Reference, types: Types, **attrs: Any) -> Op:
    """An op of two inputs that broadcast; the output has their type."""
    op = Op(name, since, "a:T b:T", "c:T", types={"T": types}, attrs=attrs)
    op.infer(_broadcast)
    op.reference(in_wide(reference))
    return op


def compare(name: str, since: int, reference: Reference, types: Types) -> Op:
    """A comparison: two inputs that broadcast, and a bool output."""
    op = Op(name, since, "a:T b:T", "c:B", types={"T": types, "B": BOOLS})
    op.infer(lambda g, a, b: _broadcast(g, a, b).with_dtype(BOOL))
    op.reference(reference)
    return op


def _broadcast_all(g: Scope, *xs: Fact | None) -> Fact:
    present = [x for x in xs if x is not None]
    if not present or len(present) != len(xs):
        raise InvalidGraph(
            f"{len(present)} of {len(xs)} inputs are present: one or more are needed, all of them"
        )
    for x in present:
        if x.dtype is not present[0].dtype:
            raise ShapeError(
                f"inputs must have the same type, got {present[0].dtype} and {x.dtype}"
            )
    return _broadcast(g, *present)


def variadic(name: str, since: int, reference: Reference, types: Types) -> Op:
    """An op of one or more inputs that broadcast together."""
    op = Op(name, since, "xs:T*", "y:T", types={"T": types})
    op.infer(_broadcast_all)
    op.reference(in_wide(reference))
    return op


_erf_of: Final = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function, by the C library in float64 (numpy has none)."""
    return np.asarray(_erf_of(x.astype(np.float64))).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), with no overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)), x.dtype)


def _is_inf(x: Array, *, detect_negative: int, detect_positive: int) -> Any:
    x = wide(x)
    return (bool(detect_negative) & (x == -np.inf)) | (bool(detect_positive) & (x == np.inf))


def _div(a: Array, b: Array) -> Any:
    if a.dtype.kind not in "iu":
        return a / b
    if a.size and not np.all(b):
        raise RuntimeException("integer division by zero")
    if a.dtype.kind == "u":
        return a // b
    quotient, rest = a // b, a % b
    return (quotient + ((rest != 0) & ((a < 0) ^ (b < 0)))).astype(a.dtype)  # towards zero


def _pow(a: Array, b: Array) -> Any:
    base, exponent = wide(a), wide(b)
    with np.errstate(all="ignore"):
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            return _int_pow(base.astype(np.int64), exponent).astype(a.dtype)
        # A type that holds both: a 32-bit exponent rounded to float32 may change from odd to even.
        common = np.result_type(base.dtype, exponent.dtype, np.float32)
        if exponent.size == 1 and exponent.item() == 2:  # many times faster than a power
            square = np.square(base.astype(common, copy=False))
            return square.reshape(np.broadcast_shapes(a.shape, b.shape)).astype(a.dtype)
        # Exponents are expanded: for a scalar exponent of 0.5 numpy calls sqrt, and sqrt(-inf) and
        # sqrt(-0) differ from the powers that C's pow gives.
        bases, exponents = np.broadcast_arrays(base.astype(common), exponent.astype(common))
        result = np.power(np.atleast_1d(bases), np.atleast_1d(exponents).copy())
        return result.reshape(bases.shape).astype(a.dtype)


def _int_pow(base: Array, exponent: Array) -> Any:
    """Powers modulo 2**64, whose low bits are those of narrower types."""
    if exponent.dtype == np.uint64:  # of an exponent beyond int64 only the parity matters
        exponent = np.where(exponent >> 63, (exponent & 1) + 64, exponent)
    exponent = exponent.astype(np.int64)
    whole = np.power(base, np.where(exponent < 0, exponent & 1, exponent))
    return np.where((exponent < 0) & (np.abs(base) != 1), 0, whole)  # 1 / n truncates to 0


def _mod(a: Array, b: Array, *, fmod: int) -> Any:
    if a.dtype.kind in "iu" and a.size and not np.all(b):
        raise RuntimeException("integer remainder by zero")
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _shift(a: Array, b: Array, *, direction: bytes) -> Array:
    bits = a.dtype.itemsize * 8
    # Undefined in C: a shift by the width or more, which shifts all bits out here.
    in_range = b.astype(np.uint64) < bits
    amount = np.where(in_range, b, 0).astype(b.dtype)
    if direction == b"LEFT":
        return np.where(in_range, a << amount, 0).astype(a.dtype)
    sign_fill = np.where(a < 0, -1, 0)  # an arithmetic shift by all bits
    return np.where(in_range, a >> amount, sign_fill).astype(a.dtype)


def _fold(function: Callable[[Any, Any], Any]) -> Reference:
    def run(*xs: Array) -> Any:
        result: Any = xs[0]
        for x in xs[1:]:
            result = function(result, x)
        return np.array(result) if len(xs) == 1 else result

    return run


def _clip(x: Array, low: Array | None, high: Array | None) -> Array:
    if low is not None:
        x = np.maximum(x, low.reshape(()))
    return np.array(x) if high is None else np.minimum(x, high.reshape(()))


UNARY: Final = (
    unary("Abs", 13, np.abs, NUMBERS),
    unary("Neg", 13, np.negative, FLOATS | SIGNED),
    unary("Ceil", 13, np.ceil),
    unary("Floor", 13, np.floor),
    unary("Round", 22, np.rint),
    unary("Sign", 13, np.sign, NUMBERS),
    unary("Sqrt", 13, np.sqrt),
    unary("Exp", 13, np.exp),
    unary("Log", 13, np.log),
    unary("Reciprocal", 13, np.reciprocal),
    unary("Sin", 22, np.sin),
    unary("Cos", 22, np.cos),
    unary("Tan", 22, np.tan),
    unary("Asin", 22, np.arcsin),
    unary("Acos", 22, np.arccos),
    unary("Atan", 22, np.arctan),
    unary("Sinh", 22, np.sinh),
    unary("Cosh", 22, np.cosh),
    unary("Tanh", 13, np.tanh),
    unary("Asinh", 22, np.arcsinh),
    unary("Acosh", 22, np.arccosh),
    unary("Atanh", 22, np.arctanh),
    unary("Erf", 13, erf, NUMBERS),  # integers, which opsets below 13 allow, give truncated results
    unary("Sigmoid", 13, sigmoid),
    unary("Not", 1, np.logical_not, BOOLS),
    unary("BitwiseNot", 18, np.invert, INTS),
)

BINARY: Final = (
    binary("Add", 14, np.add, NUMBERS),
    binary("Sub", 14, np.subtract, NUMBERS),
    binary("Mul", 14, np.multiply, NUMBERS),
    binary("Div", 14, _div, NUMBERS),
    binary("Mod", 28, _mod, NUMBERS, fmod=0),
    binary("And", 7, np.logical_and, BOOLS),
    binary("Or", 7, np.logical_or, BOOLS),
    binary("Xor", 7, np.logical_xor, BOOLS),
    binary("BitwiseAnd", 18, np.bitwise_and, INTS),
    binary("BitwiseOr", 18, np.bitwise_or, INTS),
    binary("BitwiseXor", 18, np.bitwise_xor, INTS),
)

COMPARE: Final = (
    compare("Equal", 19, np.equal, NUMBERS | {BOOL, STRING}),
    compare("Greater", 13, np.greater, NUMBERS),
    compare("Less", 13, np.less, NUMBERS),
    compare("GreaterOrEqual", 16, np.greater_equal, NUMBERS),
    compare("LessOrEqual", 16, np.less_equal, NUMBERS),
)

VARIADIC: Final = (
    variadic("Max", 13, _fold(np.maximum), NUMBERS),
    variadic("Min", 13, _fold(np.minimum), NUMBERS),
    variadic("Sum", 13, _fold(np.add), FLOATS),
    variadic("Mean", 13, lambda *xs: _fold(np.add)(*xs) / xs[0].dtype.type(len(xs)), FLOATS),
)

pow_ = Op("Pow", 15, "x:T y:U", "z:T", types={"T": FLOATS | INDEX, "U": NUMBERS})
pow_.infer(_broadcast)
pow_.reference(_pow)

shift = binary("BitShift", 28, _shift, INTS, direction=required("bytes"))


@shift.infer
def _(g: Scope, a: Fact, b: Fact, *, direction: bytes) -> Fact:
    if direction not in (b"LEFT", b"RIGHT"):
        raise InvalidGraph(
            f"direction must be LEFT or RIGHT, got {direction.decode(errors='replace')}"
        )
    return _broadcast(g, a, b)


def _classify(name: str, reference: Reference, **attrs: Any) -> Op:
    """A predicate of floats."""
    types = {"T": FLOATS | FLOAT8, "B": BOOLS}
    op = Op(name, 20, "x:T", "y:B", attrs=attrs, types=types, unranked=True)
    op.infer(lambda g, x, **_: x.with_dtype(BOOL))
    op.reference(reference)
    return op


is_nan = _classify("IsNaN", lambda x: np.isnan(wide(x)))
is_inf = _classify("IsInf", _is_inf, detect_negative=1, detect_positive=1)

where = Op("Where", 16, "condition:B x:T y:T", "z:T", types={"B": BOOLS, "T": CLASSIC})
where.infer(lambda g, condition, x, y: _broadcast(g, condition, x, y).with_dtype(x.dtype))
where.reference(np.where)
where.symbolic(lambda condition, x, y: np.frompyfunc(_select, 3, 1)(condition, x, y))

clip = Op("Clip", 13, "x:T low:T? high:T?", "y:T", types={"T": NUMBERS}, unranked=True)
clip.reference(in_wide(_clip))


@clip.infer
def _(g: Scope, x: Fact, low: Fact | None, high: Fact | None) -> Fact:
    for bound, what in ((low, "min"), (high, "max")):
        if bound is not None and bound.shape is not None:
            g.equal(product(bound.shape), 1, f"{what} of Clip is one number, and has more elements")
    return x.without_contents()


@clip.symbolic
def _(x: Array, low: Array | None, high: Array | None) -> Any:
    raised = x if low is None else _each(maximum)(x, low.reshape(()))
    return raised if high is None else _each(minimum)(raised, high.reshape(()))


# Symbolic rules: shapes are computed by small int64 tensors, whose elements inference tracks as
# symbolic sizes. Booleans are 0 or 1, so that logic is arithmetic.
def _select(condition: Size, a: Size, b: Size) -> Size:
    if isinstance(condition, int):
        return a if condition else b
    return condition * a + (1 - condition) * b


def _compared(question: Callable[[Size, Size], Size]) -> Reference:
    """A comparison of symbolic sizes; a long one only where every pair is decided."""

    def run(a: Array, b: Array) -> Array | None:
        answers = np.asarray(np.frompyfunc(question, 2, 1)(a, b), object)
        is_short = answers.size <= _MAX_SYMBOLIC_BOOLS
        return answers if is_short or all(isinstance(x, int) for x in answers.flat) else None

    return run


def _size_div(a: Size, b: Size) -> Size | None:
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if least(a) < 0 or least(b) < 0 or b == 0:
        return None
    # An exact division holds for every b that is not 0, and for 0 the node itself fails.
    return a // b if least(b) > 0 or modulo(a, b) == 0 else None


def _size_mod(a: Size, b: Size) -> Size | None:
    # For non-negative operands fmod and mod agree.
    return modulo(a, b) if least(a) >= 0 and least(b) > 0 else None


def _each(function: Callable[[Any, Any], Any]) -> Reference:
    return _fold(np.frompyfunc(function, 2, 1))


_SYMBOLIC: Final[dict[str, Reference]] = {
    "Add": _each(operator.add),
    "Sub": _each(operator.sub),
    "Mul": _each(operator.mul),
    "Div": _each(_size_div),
    "Mod": lambda a, b, fmod: _each(_size_mod)(a, b),
    "Max": _each(maximum),
    "Min": _each(minimum),
    "Neg": lambda x: x * -1,
    "Equal": _compared(is_equal),
    "Less": _compared(lambda a, b: 1 - is_at_least(a, b)),
    "Greater": _compared(lambda a, b: 1 - is_at_least(b, a)),
    "GreaterOrEqual": _compared(is_at_least),
    "LessOrEqual": _compared(lambda a, b: is_at_least(b, a)),
    "And": _each(operator.mul),
    "Or": _each(lambda a, b: a + b - a * b),
    "Not": lambda x: 1 - x,
}
for _op in (*UNARY, *BINARY, *COMPARE, *VARIADIC):
    if _op.name in _SYMBOLIC:
        _op.symbolic(_SYMBOLIC[_op.name])

OPS: Final = (*UNARY, *BINARY, *COMPARE, *VARIADIC, pow_, shift, is_nan, is_inf, where, clip)
