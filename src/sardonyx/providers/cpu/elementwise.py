"""Elementwise ops on the CPU: programs of the row `chain`, and epilogues of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, I64, U64, DType
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.elementwise.chain import (
    ABSENT,
    ELEMENTWISE,
    QUANTIZED_TYPES,
    TYPES,
    Code,
    Instruction,
    instruction_of,
)
from sardonyx.ops.elementwise.fusible import FUSIBLE
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

_NUMBER: Final = {name: i for i, name in enumerate(native.elementwise_ops)}
MAX_VALUES: Final = 64  # operands and native instructions of a program
_HALVES: Final = (F16, BF16)


class Unfit(Exception):  # how encoding says no, not an error
    """An instruction has no native form; the text says why."""


class Writer:
    """Writes one native program. Values have numbers, and types without halves."""

    def __init__(self, operands: Sequence[tuple[DType, Value | None]]) -> None:
        """Types of the operands, and the operands themselves where they are at hand."""
        self.given = operands
        self.rows: list[tuple[str, DType, DType, tuple[int, ...], tuple[float, ...]]] = []
        self.types = [dtype for dtype, _ in operands]
        self._wide: dict[int, int] = {}
        for dtype in self.types:
            if dtype not in TYPES:
                raise Unfit(f"no kernel for {dtype}")

    def emit(
        self,
        op: str,
        args: Sequence[int],
        to: DType | None = None,
        params: Sequence[float] = (),
        of: DType | None = None,
    ) -> int:
        """The number of the result of an instruction, whose arguments have one type."""
        type_ = of or self.types[args[-1]]
        self.rows.append((op, type_, to or type_, tuple(args), tuple(params)))
        self.types.append(to or type_)
        return len(self.types) - 1

    def wide(self, number: int) -> int:
        """A value in a type that instructions compute in."""
        if self.types[number] not in _HALVES:
            return number
        if number not in self._wide:
            self._wide[number] = self.emit("cast", (number,), F32)
        return self._wide[number]

    def cast(self, number: int, to: DType) -> int:
        """A value in another type, halves included."""
        source = self.types[number]
        if source is to:
            return number
        if to in _HALVES and source not in (F32, *_HALVES):
            exact = source.is_float or source.bits > 16
            number = self.emit("cast", (number,), F64 if exact else F32)
            number = self.emit("round_odd", (number,), F32) if exact else number
        elif to in _HALVES or source in _HALVES:
            number = self.wide(number)
        if self.types[number] is to:
            return number
        return self.emit("cast", (number,), to)

    def constant(self, number: int) -> float | None:
        """The number that an operand always is; None for others."""
        value = self.given[number][1] if number < len(self.given) else None
        const = None if value is None else value.const
        if const is None or const.count != 1 or const.dtype not in TYPES:
            return None
        return float(const.read().reshape(-1)[0])

    def numbers(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The program as kernels read it (native/kernels/elementwise/chain.h)."""
        if len(self.types) > MAX_VALUES:
            raise Unfit(f"a program of more than {MAX_VALUES} values")
        ints: list[int] = [len(self.rows), len(self.given)]
        floats: list[float] = []
        for op, type_, to, args, params in self.rows:
            ints += (_NUMBER[op], type_.onnx, to.onnx, *args, *(ABSENT,) * (3 - len(args)))
            floats += (*params, *(0.0,) * (2 - len(params)))
        return tuple(ints), tuple(floats)


Encoder = Callable[[Writer, Instruction, tuple[int, ...]], int]


def _tree(tree: tuple[Any, ...]) -> Encoder:
    """The instructions of a tree of `FusibleOp.native`."""

    def encode(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
        op, *rest = tree
        attrs = dict(it.attrs)
        values = [_tree(r)(w, it, args) if isinstance(r, tuple) else args[r] for r in rest
                  if not isinstance(r, str)]  # fmt: skip
        params = [float(attrs[r]) for r in rest if isinstance(r, str)]
        return w.emit(op, values, _result(it), params)

    return encode


def _plain(op: str) -> Encoder:
    """One instruction of all arguments."""
    return lambda w, it, args: w.emit(op, args, _result(it))


def _result(it: Instruction) -> DType | None:
    """The type of a predicate's result; None for that of the arguments."""
    return BOOL if it.dtype is BOOL else None


def _folded(op: str) -> Encoder:
    def encode(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
        result = args[0]
        for arg in args[1:]:
            result = w.emit(op, (result, arg))
        return result if len(args) > 1 else w.emit("cast", args, w.types[result])

    return encode


def _mean(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    total = args[0]
    for arg in args[1:]:
        total = w.emit("add", (total, arg))
    return w.emit("divide_by", (total,), None, (float(len(args)),))


def _clip(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    x = args[0]
    for op, bound in zip(("max", "min"), args[1:], strict=False):
        if bound != ABSENT:
            x = w.emit(op, (x, bound))
    return x if x != args[0] else w.emit("cast", (x,), w.types[x])


def _mod(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    return w.emit("fmod" if dict(it.attrs)["fmod"] else "mod", args)


def _shift(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    return w.emit("shift_left" if dict(it.attrs)["direction"] == b"LEFT" else "shift_right", args)


def _pow(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    base, exponent = args
    kind, other = w.types[base], w.types[exponent]
    power = w.constant(exponent)
    if power in (2.0, 3.0) and (kind.is_float or other.is_integer):
        square = w.emit("mul", (base, base))
        return square if power == 2 else w.emit("mul", (square, base))
    if kind.is_integer and other.is_integer:
        if other is U64:
            raise Unfit("no kernel for powers with exponents of u64")
        return w.cast(w.emit("pow", (w.cast(base, I64), w.cast(exponent, I64))), kind)
    # The type that holds both: an exponent rounded to float32 may turn from odd to even.
    both = F64 if np.result_type(kind.np, other.np, np.float32) == np.float64 else F32
    return w.cast(w.emit("pow", (w.cast(base, both), w.cast(exponent, both))), kind)


def _erf(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    kind = w.types[args[0]]
    x = args[0] if kind.is_float else w.cast(args[0], F64)
    return w.cast(w.emit("erf", (x,)), kind)


def _shrink(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    attrs = dict(it.attrs)
    kind = w.types[args[0]]
    x = args[0] if kind.is_float else w.cast(args[0], F64)
    return w.cast(w.emit("shrink", (x,), None, (attrs["lambd"], attrs["bias"])), kind)


def _cast(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    made = w.cast(args[0], it.dtype)
    return made if made != args[0] else w.emit("cast", (made,), it.dtype)


def _gelu(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    by_tanh = dict(it.attrs).get("approximate") == b"tanh"
    return w.emit("gelu_tanh" if by_tanh else "gelu", args)


def _fast_gelu(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    x = args[0] if len(args) < 2 or args[1] == ABSENT else w.emit("add", args)
    return w.emit("gelu_tanh", (x,))


def _quantize(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    x, scale, zero = (*args, ABSENT)[:3]
    if it.dtype not in QUANTIZED_TYPES or w.types[x] is not F32 or w.types[scale] is not F32:
        raise Unfit(f"no kernel that quantizes {w.types[x]} by {w.types[scale]} to {it.dtype}")
    if zero != ABSENT:
        zero = w.cast(zero, F32)
    return w.emit("quantize", (x, scale, zero), it.dtype, (float(zero != ABSENT),), F32)


def _dequantize(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    x, scale, zero = (*args, ABSENT)[:3]
    if w.types[x] not in QUANTIZED_TYPES or w.types[scale] is not F32:
        raise Unfit(f"no kernel that dequantizes {w.types[x]} by {w.types[scale]}")
    if zero != ABSENT:
        zero = w.cast(zero, F32)
    return w.emit("dequantize", (scale, zero, x), F32, (float(zero != ABSENT),))


def _qordered_gelu(w: Writer, it: Instruction, args: tuple[int, ...]) -> int:
    x, x_scale, y_scale = args
    y = w.emit("gelu", (_dequantize(w, it, (x, x_scale)),))
    return _quantize(w, it, (y, y_scale))


# Ops whose instructions depend on attributes, types or the number of operands.
_CUSTOM: Final[dict[tuple[str, str], Encoder]] = {
    (ONNX, "Max"): _folded("max"),
    (ONNX, "Min"): _folded("min"),
    (ONNX, "Sum"): _folded("add"),
    (ONNX, "Mean"): _mean,
    (ONNX, "Erf"): _erf,
    (ONNX, "Shrink"): _shrink,
    (ONNX, "Clip"): _clip,
    (ONNX, "Mod"): _mod,
    (ONNX, "BitShift"): _shift,
    (ONNX, "Pow"): _pow,
    (ONNX, "Cast"): _cast,
    (ONNX, "DequantizeLinear"): _dequantize,
    (ONNX, "QuantizeLinear"): _quantize,
    (ONNX, "Gelu"): _gelu,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "FastGelu"): _fast_gelu,
    (MICROSOFT, "QOrderedGelu"): _qordered_gelu,
}


@cache
def encoder(key: tuple[str, str]) -> Encoder:
    """What writes the native instructions of an op."""
    if key in _CUSTOM:
        return _CUSTOM[key]
    form = FUSIBLE[key].native
    return _plain(form) if isinstance(form, str) else _tree(form)


def encode(
    code: Code | None, operands: Sequence[tuple[DType, Value | None]]
) -> tuple[tuple[int, ...], tuple[float, ...]] | No:
    """Ints and floats of a native program; that of no code is empty.

    Each operand is a type and the value, or None for the product that comes in.
    """
    if not code:
        return (0, 0), ()
    try:
        return _written(code, operands)
    except Unfit as reason:
        return No(str(reason))


def _written(
    code: Code, operands: Sequence[tuple[DType, Value | None]]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    w = Writer(operands)
    numbers = list(range(len(operands)))
    gates = _gates(code, len(operands))
    for i, instruction in enumerate(code):
        if instruction.dtype not in TYPES:
            raise Unfit(f"no kernel for {instruction.dtype}")
        args = tuple(a if a == ABSENT else numbers[a] for a in instruction.args)
        if len(operands) + i in gates.values():
            numbers.append(args[0])  # of the sigmoid, which the product computes
            continue
        if instruction.op != (ONNX, "Cast"):
            args = tuple(a if a == ABSENT else w.wide(a) for a in args)
        if i in gates:
            made = w.emit("swish", args[:1], None, (1.0,))
        else:
            made = encoder(instruction.op)(w, instruction, args)
        is_last = i == len(code) - 1
        numbers.append(w.cast(made, instruction.dtype) if is_last else made)
    return w.numbers()


def _gates(code: Code, n_operands: int) -> dict[int, int]:
    """Products of a value and its own sigmoid, which is read nowhere else, by their place."""
    uses: dict[int, int] = {}
    for instruction in code:
        for arg in instruction.args:
            uses[arg] = uses.get(arg, 0) + 1
    found: dict[int, int] = {}
    for i, instruction in enumerate(code):
        if instruction.op != (ONNX, "Mul"):
            continue
        for gate, x in (instruction.args, instruction.args[::-1]):
            maker = code[gate - n_operands] if gate >= n_operands else instruction
            if maker.op == (ONNX, "Sigmoid") and maker.args == (x,) and uses[gate] == 1:
                found[i] = gate
    return found


def elementwise(node: Node) -> Call | No:
    """One op as a program of its own."""
    values = list(dict.fromkeys(v for v in node.inputs if v is not None))
    return _call((instruction_of(node, values.index),), values, node.outputs[0])


def chain(node: Node) -> Call | No:
    """Several ops as one program."""
    return _call(node.attrs["code"], [v for v in node.inputs if v is not None], node.outputs[0])


def _call(code: Code, values: Sequence[Value], y: Value) -> Call | No:
    program = encode(code, [(v.tensor.dtype, v) for v in values])
    if isinstance(program, No):
        return program
    size = y.tensor.dtype.itemsize
    shares = tuple((i, 0) for i, v in enumerate(values) if v.tensor.dtype.itemsize == size)
    return Call("chain", tuple(values), *program, shares=shares, writes_rows=True)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    (INTERNAL, "Chain"): chain,
}
