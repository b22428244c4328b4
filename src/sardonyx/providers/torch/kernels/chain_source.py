"""Generates the source of the Triton kernel of a chain of elementwise ops.

The source is built from fixed identifiers and numbers only, never from strings of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sardonyx.ops.elementwise.fusible import BOOL, CUSTOM, FLOAT, FUSIBLE, INT, NUMBER

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


def _gelu(v: Sequence[str], a: Attrs) -> str:
    return f"{'gelu_by_tanh' if a.get('approximate') == b'tanh' else 'gelu'}({v[0]})"


def _mean(v: Sequence[str], a: Attrs) -> str:
    return f"divide({' + '.join(v)}, full({v[0]}, {len(v)}))"


def _fast_gelu(v: Sequence[str], a: Attrs) -> str:
    return f"gelu_by_tanh({' + '.join(x for x in v if x)})"


# Ops whose source depends on attributes or on the operands that they have.
_CUSTOM: Final[dict[str, Emit]] = {
    "Max": _fold("maximum"),
    "Min": _fold("minimum"),
    "Sum": lambda v, a: f"({' + '.join(v)})",
    "Mean": _mean,
    "Clip": _clip,
    "Gelu": _gelu,
    "FastGelu": _fast_gelu,
    "IsInf": _is_inf,
}
_TAKES: Final = {
    FLOAT: frozenset(_FLOATS),
    NUMBER: frozenset((*_FLOATS, *_INTS)),
    BOOL: frozenset(("bool",)),
    INT: frozenset(_INTS),
}


def _emit(key: tuple[str, str], types: Sequence[str]) -> Emit | None:
    """How an op on operands of these types is written; None if it is not."""
    op = FUSIBLE.get(key)
    if op is None or not op.triton or not _TAKES[op.operands].issuperset(types):
        return None
    # The math functions are accurate to float32 only.
    if "f64" in types and not op.is_exact:
        return None
    # Templates and custom emitters are ours; attributes enter as numbers only.
    template = op.triton
    if template == CUSTOM:
        return _CUSTOM[key[1]]
    return lambda v, a: template.format(*v, **{k: _source(x) for k, x in a.items()})


def _source(value: Any) -> str:
    """An attribute as source, where it is a number."""
    return number(value) if isinstance(value, (int, float)) else ""


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
    emit = _emit(instruction.op, operand_types)
    return None if emit is None else emit(operands, dict(instruction.attrs))


def body(code: Code, operands: Sequence[str]) -> list[str] | None:
    """Return lines that compute v0, v1, .. from x0, x1, ..; None if an op is not supported."""
    if any(t not in _TYPES for t in operands):
        return None
    lines = []
    values = [f"x{i}" for i in range(len(operands))]
    types = list(operands)
    # 16-bit floats are widened once; only the result, and explicit casts, are rounded.
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
