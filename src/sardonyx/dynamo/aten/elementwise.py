"""Elementwise ops: arithmetic, comparisons, logic, functions that ONNX has too, casts."""

from __future__ import annotations

from typing import Any, Final

import torch

from sardonyx.dynamo.aten.shape import is_zeros
from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported
from sardonyx.dynamo.table import in_float32, lowers
from sardonyx.graph import dtype as types
from sardonyx.graph.graph import Value, input_of

# ATen overload -> ONNX op, where both compute the same of one tensor in the type of the result.
_UNARY: Final = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "log": "Log", "reciprocal": "Reciprocal", "relu": "Relu",
    "round": "Round", "sigmoid": "Sigmoid", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh", "mish": "Mish", "hardsigmoid": "HardSigmoid",
    "hardswish": "HardSwish",
}  # fmt: skip
# What these return of integers, for which the ONNX op is not defined.
_ROUNDING: Final = ("ceil", "floor", "round", "trunc")
# ATen op -> op of numbers, op of bools; the operands are cast to the type of the result.
_BINARY: Final = {
    "mul": ("Mul", "And"),
    "maximum": ("Max", "Or"),
    "minimum": ("Min", "And"),
}
_COMPARISONS: Final = {
    "eq": "Equal", "lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual",
}  # fmt: skip
_BITWISE: Final = {
    "and": ("And", "BitwiseAnd"),
    "or": ("Or", "BitwiseOr"),
    "xor": ("Xor", "BitwiseXor"),
}


def _register_unary(name: str, op: str) -> None:
    attrs: dict[str, Any] = {"alpha": 1 / 6} if op == "HardSigmoid" else {}

    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value) -> Value:
        if name in _ROUNDING and not x.tensor.dtype.is_float:
            return x
        if name in ("relu", "abs") and x.tensor.dtype is types.U8:
            return x
        (x,) = b.like_out(x)
        return b.node(op, x, **attrs).outputs[0]


def _register_binary(name: str, op: str, logical: str) -> None:
    @lowers(f"{name}.Tensor", f"{name}.Scalar", f"{name}.default")
    def _(b: AtenBuilder, x: Any, y: Any) -> Value:
        if b.out_type is torch.bool:
            return b.node(logical, *b.like_out(x, y)).outputs[0]
        return b.rounded(b.node(op, *_operands(b, x, y)).outputs[0])


def _register_comparison(name: str, op: str) -> None:
    @lowers(f"{name}.Tensor", f"{name}.Scalar")
    def _(b: AtenBuilder, x: Any, y: Any) -> Value:
        x, y = b.promoted(x, y)
        if x.tensor.dtype is types.BOOL and op != "Equal":  # ONNX does not order bools
            x, y = b.cast(x, types.U8), b.cast(y, types.U8)
        return b.node(op, x, y).outputs[0]


def _register_bitwise(name: str, logical: str, bitwise: str) -> None:
    bitwise_overloads = ("Tensor", "Scalar", "Scalar_Tensor")

    @lowers(
        *(f"bitwise_{name}.{overload}" for overload in bitwise_overloads),
        f"__{name}__.Tensor",
        f"__{name}__.Scalar",
    )
    def _(b: AtenBuilder, x: Any, y: Any) -> Value:
        op = logical if b.out_type is torch.bool else bitwise
        return b.node(op, *b.like_out(x, y)).outputs[0]

    @lowers(f"logical_{name}.default")
    def _(b: AtenBuilder, x: Any, y: Any) -> Value:
        return b.node(logical, b.to(x, torch.bool), b.to(y, torch.bool)).outputs[0]


def _register_shift(name: str, direction: bytes) -> None:
    @lowers(
        f"bitwise_{name}_shift.Tensor",
        f"bitwise_{name}_shift.Tensor_Scalar",
        f"bitwise_{name}_shift.Scalar_Tensor",
        f"__{name[0]}shift__.Tensor",
        f"__{name[0]}shift__.Scalar",
    )
    def _(b: AtenBuilder, x: Any, y: Any) -> Value:
        if b.out_type.is_floating_point:
            raise Unsupported("shifts of floats are products with powers of 2")
        return b.BitShift(*b.like_out(x, y), direction=direction)


for _name, _op in _UNARY.items():
    _register_unary(_name, _op)
for _name, (_op, _logical) in _BINARY.items():
    _register_binary(_name, _op, _logical)
for _name, _op in _COMPARISONS.items():
    _register_comparison(_name, _op)
for _name, (_logical, _bitwise) in _BITWISE.items():
    _register_bitwise(_name, _logical, _bitwise)
_register_shift("left", b"LEFT")
_register_shift("right", b"RIGHT")


def _operands(b: AtenBuilder, *operands: Any) -> list[Value]:
    """Return operands in a type that loses nothing before the op rounds.

    Two tensors of 16-bit floats stay as they are: the kernel computes in float32. Numbers and
    tensors of other types are not rounded to 16 bits first.
    """
    out = b.out_type
    is_own = all(isinstance(x, Value) and x.tensor.dtype.is_float for x in operands) and all(
        x.tensor.dtype is operands[0].tensor.dtype for x in operands
    )
    return (
        b.like_out(*operands) if is_own or out is b.compute_type else b.in_compute_type(*operands)
    )


def _scaled(b: AtenBuilder, y: Value, alpha: Any) -> Value:
    if isinstance(alpha, (int, float)) and alpha == 1:
        return y
    return b.Mul(y, b.cast(b.in_compute_type(alpha)[0], y.tensor.dtype))


def _arithmetic(b: AtenBuilder, x: Any, y: Any, alpha: Any) -> list[Value]:
    """Return x and alpha * y."""
    is_one = isinstance(alpha, (int, float)) and alpha == 1
    x, y = _operands(b, x, y) if is_one else b.in_compute_type(x, y)
    return [x, _scaled(b, y, alpha)]


def _is_lone_scatter(b: AtenBuilder, x: Any, position: int) -> bool:
    """Whether an argument adds rows to zeros, as gradients of embeddings do, for this call alone.

    The rows can be added to the other argument then: tied embeddings need no second gradient.
    """
    node = x.node if isinstance(x, Value) else None
    if node is None or node.op.name != "ScatterND" or node.attrs["reduction"] != b"add":
        return False
    return is_zeros(input_of(node, 0)) and len(b.call_node.args[position].users) == 1


def _is_like(x: Any, y: Value) -> bool:
    """Whether an argument has the type and the shape of a value."""
    if not isinstance(x, Value) or x.node is None:
        return False
    return x.tensor.dtype is y.tensor.dtype and x.tensor.shape == y.tensor.shape


@lowers("add.Tensor", "add.Scalar")
def add(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Value:
    """x + alpha * y."""
    if b.out_type is torch.bool:
        return b.Or(*b.like_out(x, y)) if alpha else b.to(x, torch.bool)
    if alpha == 1:
        for one, other, position in ((x, y, 1), (y, x, 0)):
            if _is_lone_scatter(b, other, position) and _is_like(one, other):
                return b.ScatterND(one, *other.node.inputs[1:], reduction=b"add")
    return b.rounded(b.Add(*_arithmetic(b, x, y, alpha)))


@lowers("sub.Tensor", "sub.Scalar")
def _(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Value:
    return b.rounded(b.Sub(*_arithmetic(b, x, y, alpha)))


@lowers("rsub.Tensor", "rsub.Scalar")
def _(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Value:
    return b.rounded(b.Sub(*_arithmetic(b, y, x, alpha)))


@lowers("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _(b: AtenBuilder, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return b.rounded(b.Div(*_operands(b, x, y)))
    x, y = b.in_compute_type(x, y)
    if rounding_mode == "floor":
        floor = _floor_div_float if b.out_type.is_floating_point else _floor_div_int
        return b.rounded(floor(b, x, y))
    quotient = b.rounded(b.Div(x, y))  # rounded to 16 bits before truncation, as by torch
    return _trunc(b, quotient) if b.out_type.is_floating_point else quotient


def _floor_div_int(b: AtenBuilder, x: Value, y: Value) -> Value:
    # Div truncates: where the remainder is not 0 and has the other sign, floor is one less.
    quotient = b.Div(x, y)
    rest = b.Sub(x, b.Mul(quotient, y))
    is_less = b.And(b.Not(b.Equal(rest, 0)), b.Xor(b.Less(rest, 0), b.Less(y, 0)))
    return b.Sub(quotient, b.cast(is_less, x.tensor.dtype))


def _floor_div_float(b: AtenBuilder, x: Value, y: Value) -> Value:
    """Return floor(x / y) by the exact remainder, as CPython: 1.0 // 0.1 is 9, not 10."""
    dtype = x.tensor.dtype
    exact = b.Div(x, y)
    rest = b.Mod(x, y, fmod=1)
    quotient = b.Div(b.Sub(x, rest), y)
    is_less = b.And(b.Not(b.Equal(rest, 0.0)), b.Xor(b.Less(rest, 0.0), b.Less(y, 0.0)))
    quotient = b.Sub(quotient, b.cast(is_less, dtype))
    floor = b.Floor(quotient)
    floor = b.Add(floor, b.cast(b.Greater(b.Sub(quotient, floor), 0.5), dtype))
    signed_zero = b.Mul(exact, 0.0)
    result = b.Where(b.Equal(quotient, 0.0), signed_zero, floor)
    return b.Where(b.Equal(y, 0.0), exact, result)


def _trunc(b: AtenBuilder, x: Value) -> Value:
    return b.Where(b.Less(x, 0.0), b.Ceil(x), b.Floor(x))


@lowers("trunc.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return _trunc(b, x) if x.tensor.dtype.is_float else x


@lowers("fmod.Tensor", "fmod.Scalar")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    return b.rounded(b.Mod(*b.in_compute_type(*b.like_out(x, y)), fmod=1))


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    x, y = b.in_compute_type(*b.like_out(x, y))  # torch rounds the divisor first, here and in fmod
    if not x.tensor.dtype.is_float:
        return b.Mod(x, y)  # of integers, with the sign of the divisor
    rest = b.Mod(x, y, fmod=1)
    is_other_sign = b.And(b.Not(b.Equal(rest, 0.0)), b.Xor(b.Less(rest, 0.0), b.Less(y, 0.0)))
    return b.rounded(b.Where(is_other_sign, b.Add(rest, y), rest))


@lowers("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    is_tensors = isinstance(x, Value) and isinstance(y, Value)
    x, *_ = operands = b.in_compute_type(*(b.like_out(x, y) if is_tensors else (x, y)))
    special = _POWERS.get(y) if isinstance(y, (int, float)) else None
    is_root = y in (0.5, -0.5) if special else False
    if special and x.tensor.dtype.is_float and not (is_root and b.out_type is torch.float16):
        return b.rounded(special(b, x))
    if x.tensor.dtype in (types.I8, types.I16, types.U8):  # modulo 2**n, as torch
        operands = [b.cast(v, types.I64) for v in operands]
    return b.rounded(b.Pow(*operands))


# Exponents for which torch calls these instead of pow; (-inf) ** 0.5 is then NaN. In float16
# it calls pow for roots.
_POWERS: Final = {
    0.5: lambda b, x: b.Sqrt(x),
    -0.5: lambda b, x: b.Reciprocal(b.Sqrt(x)),
    1: lambda b, x: x,
    -1: lambda b, x: b.Reciprocal(x),
    2: lambda b, x: b.Mul(x, x),
    3: lambda b, x: b.Mul(b.Mul(x, x), x),
    -2: lambda b, x: b.Reciprocal(b.Mul(x, x)),
}


@lowers("neg.default")
def _(b: AtenBuilder, x: Value) -> Value:
    is_unsigned = x.tensor.dtype is types.U8
    return b.Sub(b.const(0, types.U8), x) if is_unsigned else b.Neg(x)


@lowers("sign.default")
def _(b: AtenBuilder, x: Value) -> Value:
    if x.tensor.dtype is types.BOOL:
        return x
    # torch's sign of NaN is 0: neither comparison holds.
    positive, negative = b.Greater(x, 0), b.Less(x, 0)
    return b.Sub(*(b.cast(p, x.tensor.dtype) for p in (positive, negative)))


@lowers("ne.Tensor", "ne.Scalar")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    return b.Not(b.Equal(*b.promoted(x, y)))


@lowers("logical_not.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return b.Not(b.to(x, torch.bool))


@lowers("bitwise_not.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return b.Not(x) if b.out_type is torch.bool else b.BitwiseNot(x)


@lowers("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _(b: AtenBuilder, condition: Value, x: Any, y: Any) -> Value:
    return b.Where(b.to(condition, torch.bool), *b.like_out(x, y))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _(b: AtenBuilder, x: Value, mask: Value, value: Any) -> Value:
    value, x = b.like_out(value, x)
    return b.Where(mask, value, x)


@lowers("clamp.default", "clamp.Tensor")
def _(b: AtenBuilder, x: Value, low: Any = None, high: Any = None) -> Value:
    (x,) = b.like_out(x)
    if all(isinstance(bound, (int, float)) for bound in (low, high)):
        return b.Clip(x, *b.like_out(low, high))
    if low is not None:
        x = b.Max(x, *b.like_out(low))
    return x if high is None else b.Min(x, *b.like_out(high))


@lowers("clamp_min.default", "clamp_min.Tensor")
def _(b: AtenBuilder, x: Value, low: Any) -> Value:
    return b.Max(*b.like_out(x, low))


@lowers("clamp_max.default", "clamp_max.Tensor")
def _(b: AtenBuilder, x: Value, high: Any) -> Value:
    return b.Min(*b.like_out(x, high))


def _register_number_extreme(name: str, op: str) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value, y: Value) -> Value:
        """The larger or smaller one, or the other one of NaN."""
        x, y = b.like_out(x, y)
        if x.tensor.dtype is types.BOOL:
            return b.Or(x, y) if op == "Max" else b.And(x, y)
        extreme = b.node(op, x, y).outputs[0]
        if not x.tensor.dtype.is_float:
            return extreme
        return b.Where(b.IsNaN(x), y, b.Where(b.IsNaN(y), x, extreme))


_register_number_extreme("fmax", "Max")
_register_number_extreme("fmin", "Min")


@lowers("isnan.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return b.IsNaN(x) if x.tensor.dtype.is_float else b.Not(b.Equal(x, x))


@lowers("isinf.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return b.IsInf(x) if x.tensor.dtype.is_float else b.Not(b.Equal(x, x))


@lowers("addcmul.default", "addcdiv.default")
@in_float32
def _(b: AtenBuilder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    """x + value * y * z, or x + value * y / z."""
    op = "Mul" if b.call_node.target is torch.ops.aten.addcmul.default else "Div"
    x, y, z = b.in_compute_type(x, y, z)
    return b.Add(x, b.node(op, _scaled(b, y, value), z).outputs[0])


@lowers("lerp.Scalar", "lerp.Tensor")
@in_float32
def _(b: AtenBuilder, x: Value, y: Value, weight: Any) -> Value:
    # From the nearer end, so that weights 0 and 1 give x and y exactly.
    is_near: Any = abs(weight) < 0.5 if isinstance(weight, (int, float)) else None
    x, y, weight = b.in_compute_type(x, y, weight)
    difference = b.Sub(y, x)
    if is_near is not None:
        return _from_x(b, x, difference, weight) if is_near else _from_y(b, y, difference, weight)
    ends = _from_x(b, x, difference, weight), _from_y(b, y, difference, weight)
    return b.Where(b.Less(b.Abs(weight), 0.5), *ends)


def _from_x(b: AtenBuilder, x: Value, difference: Value, weight: Value) -> Value:
    return b.Add(x, b.Mul(weight, difference))


def _from_y(b: AtenBuilder, y: Value, difference: Value, weight: Value) -> Value:
    return b.Sub(y, b.Mul(difference, b.Sub(b.const(1, y.tensor.dtype), weight)))


# Copies, casts and constants


@lowers("_to_copy.default", "to.dtype", "prims.convert_element_type.default")
def _(b: AtenBuilder, x: Value, dtype: Any = None, **_: Any) -> Value:
    return b.to(x, b.out_type)


@lowers(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
)
def _(b: AtenBuilder, x: Value, **_: Any) -> Value:
    return x


@lowers("fill.Scalar", "fill.Tensor", "full_like.default")
def _(b: AtenBuilder, x: Value, value: Any, **_: Any) -> Value:
    return b.Expand(b.operand(value, b.out_type), b.Shape(x))


@lowers("prims.scalar_tensor.default")
def _(b: AtenBuilder, value: Any, **_: Any) -> Value:
    return b.operand(value, b.out_type)


@lowers("_efficientzerotensor.default")
def _(b: AtenBuilder, size: Any, **_: Any) -> Value:
    return b.Expand(b.operand(0, b.out_type), b.sizes(size))


@lowers("copy.default")
def _(b: AtenBuilder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    (source,) = b.like_out(source)
    return b.Expand(source, b.Shape(x))
