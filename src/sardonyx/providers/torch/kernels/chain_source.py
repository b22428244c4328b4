"""The source of a kernel for a chain of elementwise ops: our identifiers and numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sardonyx.ops.elementwise.chain import Code, Instruction

_HALVES: Final = ("f16", "bf16")
_FLOATS: Final = ("f32", "f64", *_HALVES)
# Element types that kernels compute with, as Triton calls them. Halves are float32 inside.
_TYPES: Final = {
    "f32": "tl.float32", "f64": "tl.float64", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64",
    "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
_INTS: Final = ("i8", "i16", "i32", "i64", "u8")

Attrs = dict[str, Any]
Emit = Callable[[Sequence[str], Attrs], str]


def number(value: float) -> str:
    """A float as source."""
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
    signs = [s for s, wanted in (("-", "detect_negative"), ("", "detect_positive")) if a[wanted]]
    return " | ".join(f'({x} == float("{s}inf"))' for s in signs) or f"({x} != {x}) & ({x} == {x})"


def _selu(v: Sequence[str], a: Attrs) -> str:
    x, alpha, gamma = v[0], number(a["alpha"]), number(a["gamma"])
    return f"({gamma} * tl.where({x} > 0, {x}, {alpha} * below({x})))"


def _celu(v: Sequence[str], a: Attrs) -> str:
    x, alpha = v[0], number(a["alpha"])
    inner = f"{alpha} * expm1(divided({x}, full({x}, {alpha})))"
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
    return f"divided({' + '.join(v)}, full({v[0]}, {len(v)}))"


# By what the op takes: floats, floats and integers, truth values; and gives.
_FLOAT: Final[dict[str, Emit]] = {
    "Ceil": _call("tl.ceil"), "Floor": _call("tl.floor"), "Round": _call("rint"),
    "Sqrt": _call("sqrt"), "Exp": _call("exp"), "Log": _call("log"),
    "Reciprocal": lambda v, a: f"divided(full({v[0]}, 1), {v[0]})",
    "Sin": _call("tl.sin"), "Cos": _call("tl.cos"), "Tanh": _call("tanh"), "Erf": _call("erf"),
    "Sigmoid": _call("sigmoid"), "Div": lambda v, a: f"divided({v[0]}, {v[1]})",
    "Sum": lambda v, a: f"({' + '.join(v)})", "Mean": _mean,
    "LeakyRelu": lambda v, a: f"tl.where({v[0]} < 0, {v[0]} * {number(a['alpha'])}, {v[0]})",
    "Elu": lambda v, a: f"tl.where({v[0]} < 0, {number(a['alpha'])} * below({v[0]}), {v[0]})",
    "Selu": _selu, "Celu": _celu,
    "HardSigmoid": lambda v, a: _hard(v[0], a["alpha"], a["beta"]),
    "HardSwish": lambda v, a: f"({v[0]} * {_hard(v[0], 1 / 6, 0.5)})",
    "Softplus": _call("softplus"),
    "Softsign": lambda v, a: f"divided({v[0]}, 1 + tl.abs({v[0]}))",
    "ThresholdedRelu": _threshold,
    "Shrink": _shrink, "Mish": lambda v, a: f"({v[0]} * tanh(softplus({v[0]})))",
    "Swish": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}))",
    "QuickGelu": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}))",
    "SwiGLU": lambda v, a: f"({v[0]} * sigmoid({v[0]} * {number(a['alpha'])}) * {v[1]})",
    "Gelu": _gelu, "BiasGelu": lambda v, a: f"gelu({v[0]} + {v[1]})",
    "FastGelu": lambda v, a: f"gelu_by_tanh({' + '.join(x for x in v if x)})",
    "IsNaN": lambda v, a: f"({v[0]} != {v[0]})", "IsInf": _is_inf,
}  # fmt: skip
_NUMBER: Final[dict[str, Emit]] = {
    "Abs": _call("tl.abs"), "Neg": lambda v, a: f"(-{v[0]})", "Sign": _call("sign"),
    "Add": _infix("+"), "Sub": _infix("-"), "Mul": _infix("*"),
    "Equal": _infix("=="), "Greater": _infix(">"), "Less": _infix("<"),
    "GreaterOrEqual": _infix(">="), "LessOrEqual": _infix("<="),
    "Max": _fold("maximum"), "Min": _fold("minimum"), "Clip": _clip,
    "Relu": lambda v, a: f"maximum({v[0]}, full({v[0]}, 0))",
    "PRelu": lambda v, a: f"tl.where({v[0]} < 0, {v[0]} * {v[1]}, {v[0]})",
}  # fmt: skip
_TRUTH: Final[dict[str, Emit]] = {
    "Not": lambda v, a: f"({v[0]} == 0)",
    "And": _infix("&"), "Or": _infix("|"), "Xor": _infix("^"),
}  # fmt: skip
_BITS: Final[dict[str, Emit]] = {
    "BitwiseNot": lambda v, a: f"(~{v[0]})",
    "BitwiseAnd": _infix("&"), "BitwiseOr": _infix("|"), "BitwiseXor": _infix("^"),
}  # fmt: skip
# Constants above are float32 in kernels: in float64 ops that have any, or that stand on functions
# of float32, would lose half of their digits.
_ANY_WIDTH: Final = frozenset((*_NUMBER, "Div", "Sum", "Sqrt", "Reciprocal", "Ceil", "Floor"))


def _emit(name: str, types: Sequence[str]) -> Emit | None:
    """How an op on operands of these types is written; None if it is not."""
    for table, allowed in (
        (_FLOAT, _FLOATS), (_NUMBER, (*_FLOATS, *_INTS)), (_TRUTH, ("bool",)), (_BITS, _INTS),
    ):  # fmt: skip
        if name in table and all(t in allowed for t in types):
            is_double = "f64" in types and name not in _ANY_WIDTH
            return None if is_double else table[name]
    return None


def _cast(x: str, source: str, to: str) -> str | None:
    """A conversion, with the rounding that it brings."""
    if to == "bool":
        return f"({x} != 0)"
    if to in _HALVES:
        if source not in ("f32", "f16", "bf16", "bool", "i8", "i16", "u8"):
            return None
        return f"{x}.to(tl.float32).to({_TYPES[to]}).to(tl.float32)"
    if source in _FLOATS and to in _INTS:  # small ones by way of a wider one, whose low bits stay
        wide = "tl.int64" if to == "i64" else "tl.int32"
        return f"{x}.to({wide}).to({_TYPES[to]})"
    return f"{x}.to({_TYPES[to]})"


def expression(instruction: Instruction, values: Sequence[str], types: Sequence[str]) -> str | None:
    """An instruction over named values of these types; None if it has none."""
    name = instruction.op[1]
    to = instruction.dtype.name
    given = [values[i] if i >= 0 else "" for i in instruction.args]
    known = [types[i] for i in instruction.args if i >= 0]
    if to not in _TYPES or any(t not in _TYPES for t in known):
        return None
    if name == "Cast":
        return _cast(given[0], known[0], to)
    if name == "Where":
        return f"tl.where({given[0]}, {given[1]}, {given[2]})"
    emit = _emit(name, known)
    return None if emit is None else emit(given, dict(instruction.attrs))


def body(code: Code, operands: Sequence[str]) -> list[str] | None:
    """Lines that compute v.. from the operands x0, x1, ..; None if an op cannot be written."""
    if any(t not in _TYPES for t in operands):
        return None
    lines = []
    values = [f"x{i}" for i in range(len(operands))]
    types = list(operands)
    for i, t in enumerate(operands):
        if t in _HALVES:
            lines.append(f"x{i} = x{i}.to(tl.float32)")
    for i, instruction in enumerate(code):
        text = expression(instruction, values, types)
        if text is None:
            return None
        lines.append(f"v{i} = {text}")
        values.append(f"v{i}")
        types.append(instruction.dtype.name)
    return lines
