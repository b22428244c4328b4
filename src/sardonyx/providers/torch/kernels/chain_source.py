"""Generates the source of the Triton kernel of a chain of elementwise ops.

The source is built from fixed identifiers and numbers only, never from strings of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sardonyx.ops.elementwise.chain import Code, Instruction

_SIXTEEN_BITS: Final = ("f16", "bf16")
_FLOATS: Final = ("f32", "f64", *_SIXTEEN_BITS)
# Triton's names of the element types. 16-bit floats are widened to float32 for computation.
_TYPES: Final = {
    "f32": "tl.float32", "f64": "tl.float64", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64",
    "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
_INTS: Final = ("i8", "i16", "i32", "i64", "u8")

Attrs = dict[str, Any]
Emit = Callable[[Sequence[str], Attrs], str]


def number(value: float) -> str:
    """Return a float as source text."""
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f"({value!r})"


def _call(name: str) -> Emit:
    return lambda v, a: f"{name}({v[0]})"


def _infix(sign: str) -> Emit:
    return lambda v, a: f"({v[0]} {sign} {v[1]})"


def _fold(name: str) -> Emit:
    def emit(v: Sequence[str], a: Attrs) -> str:
        text = v[0]
        for other in v[1:]:
            text = f"{name}({text}, {other})"
        return text

    return emit


def _clip(v: Sequence[str], a: Attrs) -> str:
    text = v[0]
    if len(v) > 1 and v[1]:
        text = f"maximum({text}, {v[1]})"
    if len(v) > 2 and v[2]:
        text = f"minimum({text}, {v[2]})"
    return text


def _is_inf(v: Sequence[str], a: Attrs) -> str:
    x = v[0]
    signs = [s for s, name in (("-", "detect_negative"), ("", "detect_positive")) if a[name]]
    return " | ".join(f'({x} == float("{s}inf"))' for s in signs) or f"({x} != {x}) & ({x} == {x})"


def _elu(v: Sequence[str], a: Attrs) -> str:
    x, alpha = v[0], number(a["alpha"])
    return f"tl.where({x} < 0, {alpha} * expm1_negative({x}), {x})"


def _selu(v: Sequence[str], a: Attrs) -> str:
    x, alpha, gamma = v[0], number(a["alpha"]), number(a["gamma"])
    return f"({gamma} * tl.where({x} > 0, {x}, {alpha} * expm1_negative({x})))"


def _celu(v: Sequence[str], a: Attrs) -> str:
    x, alpha = v[0], number(a["alpha"])
    inner = f"{alpha} * expm1(divide({x}, full({x}, {alpha})))"
    return f"(maximum({x}, full({x}, 0)) + minimum({inner}, full({x}, 0)))"


def _hard(x: str, alpha: float, beta: float) -> str:
    inner = f"{x} * {number(alpha)} + {number(beta)}"
    return f"minimum(maximum({inner}, full({x}, 0)), full({x}, 1))"


def _shrink(v: Sequence[str], a: Attrs) -> str:
    x, bias, lambd = v[0], number(a["bias"]), number(a["lambd"])
    inner = f"tl.where({x} > {lambd}, {x} - {bias}, full({x}, 0))"
    return f"tl.where({x} < -{lambd}, {x} + {bias}, {inner})"


def _threshold(v: Sequence[str], a: Attrs) -> str:
    return f"tl.where({v[0]} > {number(a['alpha'])}, {v[0]}, full({v[0]}, 0))"


def _gelu(v: Sequence[str], a: Attrs) -> str:
    return f"{'gelu_by_tanh' if a.get('approximate') == b'tanh' else 'gelu'}({v[0]})"


def _mean(v: Sequence[str], a: Attrs) -> str:
    return f"divide({' + '.join(v)}, full({v[0]}, {len(v)}))"


# Emitters by the operand types of the op: floats; floats and integers; bools; integers.
_FLOAT_OPS: Final[dict[str, Emit]] = {
    "Ceil": _call("tl.ceil"), "Floor": _call("tl.floor"), "Round": _call("rint"),
    "Sqrt": _call("sqrt"), "Exp": _call("exp"), "Log": _call("log"),
    "Reciprocal": lambda v, a: f"divide(full({v[0]}, 1), {v[0]})",
    "Sin": _call("tl.sin"), "Cos": _call("tl.cos"), "Tanh": _call("tanh"), "Erf": _call("erf"),
    "Sigmoid": _call("sigmoid"), "Div": lambda v, a: f"divide({v[0]}, {v[1]})",
    "Sum": lambda v, a: f"({' + '.join(v)})", "Mean": _mean,
    "LeakyRelu": lambda v, a: f"tl.where({v[0]} < 0, {v[0]} * {number(a['alpha'])}, {v[0]})",
    "Elu": _elu, "Selu": _selu, "Celu": _celu,
    "HardSigmoid": lambda v, a: _hard(v[0], a["alpha"], a["beta"]),
    "HardSwish": lambda v, a: f"({v[0]} * {_hard(v[0], 1 / 6, 0.5)})",
    "Softplus": _call("softplus"),
    "Softsign": lambda v, a: f"divide({v[0]}, 1 + tl.abs({v[0]}))",
    "ThresholdedRelu": _threshold,
    "Shrink": _shrink, "Mish": lambda v, a: f"({v[0]} * tanh(softplus({v[0]})))",
    "Swish": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}))",
    "QuickGelu": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}))",
    "SwiGLU": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}) * {v[1]})",
    "Gelu": _gelu, "BiasGelu": lambda v, a: f"gelu({v[0]} + {v[1]})",
    "FastGelu": lambda v, a: f"gelu_by_tanh({' + '.join(x for x in v if x)})",
    "IsNaN": lambda v, a: f"({v[0]} != {v[0]})", "IsInf": _is_inf,
}  # fmt: skip
_NUMBER_OPS: Final[dict[str, Emit]] = {
    "Abs": _call("tl.abs"), "Neg": lambda v, a: f"(-{v[0]})", "Sign": _call("sign"),
    "Add": _infix("+"), "Sub": _infix("-"), "Mul": _infix("*"),
    "Equal": _infix("=="), "Greater": _infix(">"), "Less": _infix("<"),
    "GreaterOrEqual": _infix(">="), "LessOrEqual": _infix("<="),
    "Max": _fold("maximum"), "Min": _fold("minimum"), "Clip": _clip,
    "Relu": lambda v, a: f"maximum({v[0]}, full({v[0]}, 0))",
    "PRelu": lambda v, a: f"tl.where({v[0]} < 0, {v[0]} * {v[1]}, {v[0]})",
}  # fmt: skip
_BOOL_OPS: Final[dict[str, Emit]] = {
    "Not": lambda v, a: f"({v[0]} == 0)",
    "And": _infix("&"), "Or": _infix("|"), "Xor": _infix("^"),
}  # fmt: skip
_BITWISE_OPS: Final[dict[str, Emit]] = {
    "BitwiseNot": lambda v, a: f"(~{v[0]})",
    "BitwiseAnd": _infix("&"), "BitwiseOr": _infix("|"), "BitwiseXor": _infix("^"),
}  # fmt: skip
# Ops that are exact in float64, too. The others use float32 constants or float32 functions, which
# would lose half of the mantissa.
_FLOAT64_OPS: Final = frozenset((*_NUMBER_OPS, "Div", "Sum", "Sqrt", "Reciprocal", "Ceil", "Floor"))


def _emit(name: str, types: Sequence[str]) -> Emit | None:
    """Return the emitter of an op for operands of these types; None if it is not supported."""
    for table, allowed in (
        (_FLOAT_OPS, _FLOATS), (_NUMBER_OPS, (*_FLOATS, *_INTS)), (_BOOL_OPS, ("bool",)),
        (_BITWISE_OPS, _INTS),
    ):  # fmt: skip
        if name in table and all(t in allowed for t in types):
            is_inexact = "f64" in types and name not in _FLOAT64_OPS
            return None if is_inexact else table[name]
    return None


def _cast(x: str, source: str, to: str) -> str | None:
    """Return a conversion; None if it would round twice."""
    if to == "bool":
        return f"({x} != 0)"
    if to in _SIXTEEN_BITS:
        if source not in ("f32", "f16", "bf16", "bool", "i8", "i16", "u8"):
            return None
        return f"{x}.to(tl.float32).to({_TYPES[to]}).to(tl.float32)"
    if source in _FLOATS and to in _INTS:  # via a wide integer, whose low bits wrap as in ONNX
        wide = "tl.int64" if to == "i64" else "tl.int32"
        return f"{x}.to({wide}).to({_TYPES[to]})"
    return f"{x}.to({_TYPES[to]})"


def expression(instruction: Instruction, values: Sequence[str], types: Sequence[str]) -> str | None:
    """Return an instruction's expression over named values; None if it is not supported."""
    name = instruction.op[1]
    to = instruction.dtype.name
    operands = [values[i] if i >= 0 else "" for i in instruction.args]
    operand_types = [types[i] for i in instruction.args if i >= 0]
    if to not in _TYPES or any(t not in _TYPES for t in operand_types):
        return None
    if name == "Cast":
        return _cast(operands[0], operand_types[0], to)
    if name == "Where":
        return f"tl.where({operands[0]}, {operands[1]}, {operands[2]})"
    emit = _emit(name, operand_types)
    return None if emit is None else emit(operands, dict(instruction.attrs))


def body(code: Code, operands: Sequence[str]) -> list[str] | None:
    """Return lines that compute v0, v1, .. from x0, x1, ..; None if an op is not supported."""
    if any(t not in _TYPES for t in operands):
        return None
    lines = []
    values = [f"x{i}" for i in range(len(operands))]
    types = list(operands)
    for i, t in enumerate(operands):
        if t in _SIXTEEN_BITS:
            lines.append(f"x{i} = x{i}.to(tl.float32)")
    for i, instruction in enumerate(code):
        text = expression(instruction, values, types)
        if text is None:
            return None
        lines.append(f"v{i} = {text}")
        values.append(f"v{i}")
        types.append(instruction.dtype.name)
    return lines
