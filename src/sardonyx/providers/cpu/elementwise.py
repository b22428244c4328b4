"""Elementwise ops on the CPU: register programs of the kernel `chain`, and of epilogues.

A program computes in float32, float64 or integers: 16-bit floats are widened on reading and rounded
once, at the end.
"""

from __future__ import annotations

from collections import Counter
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
from sardonyx.providers.cpu.index import Lowerings

_NUMBER: Final = {name: i for i, name in enumerate(native.elementwise_ops)}
MAX_VALUES: Final = 64  # operands and native instructions of a program
_FLOAT16: Final = (F16, BF16)
Operands = Sequence[tuple[DType, Value | None]]  # types, and values where they are known
Program = tuple[tuple[int, ...], tuple[float, ...]]  # ints and floats of a native program


class NotEncodable(Exception):
    """An instruction has no native encoding; the text says why. Caught by `encode`."""


class ProgramWriter:
    """Writes one native program; registers are numbered, operands first."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._code: list[tuple[str, DType, DType, tuple[int, ...], tuple[float, ...]]] = []
        self.types = [dtype for dtype, _ in operands]
        self._wide: dict[int, int] = {}
        for dtype in self.types:
            if dtype not in TYPES:
                raise NotEncodable(f"no kernel for {dtype}")

    def emit(
        self,
        op: str,
        args: Sequence[int],
        to: DType | None = None,
        params: Sequence[float] = (),
        of: DType | None = None,
    ) -> int:
        """Append an instruction and return the register of its result.

        Arguments have one type, `of` or that of the last; so has the result, unless `to` differs.
        """
        type_ = of or self.types[args[-1]]
        self._code.append((op, type_, to or type_, tuple(args), tuple(params)))
        self.types.append(to or type_)
        return len(self.types) - 1

    def wide(self, number: int) -> int:
        """Return the register of a value in a type that instructions compute in."""
        if self.types[number] not in _FLOAT16:
            return number
        if number not in self._wide:  # widened once, for all readers
            self._wide[number] = self.emit("cast", (number,), F32)
        return self._wide[number]

    def cast(self, number: int, to: DType) -> int:
        """Return the register of a value in another type."""
        source = self.types[number]
        if source is to:
            return number
        if to in _FLOAT16 and source not in (F32, *_FLOAT16):
            # Types wider than float32: rounding to odd in between avoids double rounding.
            is_wide = source.is_float or source.bits > 16
            number = self.emit("cast", (number,), F64 if is_wide else F32)
            number = self.emit("round_odd", (number,), F32) if is_wide else number
        elif to in _FLOAT16 or source in _FLOAT16:
            number = self.wide(number)
        if self.types[number] is to:
            return number
        return self.emit("cast", (number,), to)

    def constant(self, number: int) -> float | None:
        """Return the value of an operand that is a constant scalar, else None."""
        value = self._operands[number][1] if number < len(self._operands) else None
        const = None if value is None else value.const
        if const is None or const.count != 1 or const.dtype not in TYPES:
            return None
        return float(const.read().reshape(-1)[0])

    def program(self) -> Program:
        """Return the program as kernels read it (native/kernels/elementwise/chain.h)."""
        if len(self.types) > MAX_VALUES:
            raise NotEncodable(f"a program of more than {MAX_VALUES} values")
        ints: list[int] = [len(self._code), len(self._operands)]
        floats: list[float] = []
        for op, type_, to, args, params in self._code:
            # Six ints and two floats per instruction; unused ones are padded.
            ints += (_NUMBER[op], type_.onnx, to.onnx, *args, *(ABSENT,) * (3 - len(args)))
            floats += (*params, *(0.0,) * (2 - len(params)))
        return tuple(ints), tuple(floats)


Encoder = Callable[[ProgramWriter, Instruction, tuple[int, ...]], int]


def _tree(tree: tuple[Any, ...]) -> Encoder:
    """Encode a nested expression of `FusibleOp.native`: op, then arguments and attribute names."""

    def encode(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
        op, *rest = tree
        attrs = dict(it.attrs)
        values = [
            _tree(r)(w, it, args) if isinstance(r, tuple) else args[r]
            for r in rest
            if not isinstance(r, str)
        ]
        params = [float(attrs[r]) for r in rest if isinstance(r, str)]
        return w.emit(op, values, _result(it), params)

    return encode


def _result(it: Instruction) -> DType | None:
    """Return the result type of a predicate; None: that of the arguments."""
    return BOOL if it.dtype is BOOL else None


def _folded(op: str) -> Encoder:
    """Encode a variadic op as a left fold of a binary instruction."""

    def encode(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
        result = args[0]
        for arg in args[1:]:
            result = w.emit(op, (result, arg))
        return result if len(args) > 1 else w.emit("cast", args, w.types[result])

    return encode


def _mean(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    return w.emit("divide_by", (_folded("add")(w, it, args),), None, (float(len(args)),))


def _clip(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    x = args[0]
    for op, bound in zip(("max", "min"), args[1:], strict=False):
        if bound != ABSENT:
            x = w.emit(op, (x, bound))
    return x if x != args[0] else w.emit("cast", (x,), w.types[x])


def _by_attribute(name: str, value: object, op: str, otherwise: str) -> Encoder:
    """Encode as `op` if an attribute has a value, else as `otherwise`."""
    return lambda w, it, args: w.emit(op if dict(it.attrs).get(name) == value else otherwise, args)


def _pow(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    base, exponent = args
    kind, other = w.types[base], w.types[exponent]
    power = w.constant(exponent)
    # Squares and cubes are frequent, and multiplication is faster than pow and exact enough.
    if power in (2.0, 3.0) and (kind.is_float or other.is_integer):
        square = w.emit("mul", (base, base))
        return square if power == 2 else w.emit("mul", (square, base))
    # By repeated squaring, exact modulo 2**64.
    if kind.is_integer and other.is_integer:
        if other is U64:
            raise NotEncodable("no kernel for powers with exponents of u64")
        return w.cast(w.emit("pow", (w.cast(base, I64), w.cast(exponent, I64))), kind)
    # A type that holds both exactly: rounding an odd exponent to float32 could make it even.
    both = F64 if np.result_type(kind.np, other.np, np.float32) == np.float64 else F32
    return w.cast(w.emit("pow", (w.cast(base, both), w.cast(exponent, both))), kind)


def _erf(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    return _in_float(w, "erf", args[0], ())


def _shrink(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    attrs = dict(it.attrs)
    return _in_float(w, "shrink", args[0], (attrs["lambd"], attrs["bias"]))


def _in_float(w: ProgramWriter, op: str, x: int, params: tuple[float, ...]) -> int:
    """Compute integers in float64, which holds all but the largest exactly."""
    kind = w.types[x]
    x = x if kind.is_float else w.cast(x, F64)
    return w.cast(w.emit(op, (x,), None, params), kind)


def _cast(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    result = w.cast(args[0], it.dtype)
    # A program needs an instruction: a cast to the same type is a copy.
    return result if result != args[0] else w.emit("cast", (result,), it.dtype)


def _fast_gelu(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    x = args[0] if len(args) < 2 or args[1] == ABSENT else w.emit("add", args)
    return w.emit("gelu_tanh", (x,))


def _quantize(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    x, scale, zero = (*args, ABSENT)[:3]
    if it.dtype not in QUANTIZED_TYPES or w.types[x] is not F32 or w.types[scale] is not F32:
        raise NotEncodable(
            f"no kernel that quantizes {w.types[x]} by {w.types[scale]} to {it.dtype}"
        )
    zero = zero if zero == ABSENT else w.cast(zero, F32)
    return w.emit("quantize", (x, scale, zero), it.dtype, (float(zero != ABSENT),), F32)


def _dequantize(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
    x, scale, zero = (*args, ABSENT)[:3]
    if w.types[x] not in QUANTIZED_TYPES or w.types[scale] is not F32:
        raise NotEncodable(f"no kernel that dequantizes {w.types[x]} by {w.types[scale]}")
    zero = zero if zero == ABSENT else w.cast(zero, F32)
    return w.emit("dequantize", (scale, zero, x), F32, (float(zero != ABSENT),))


def _qordered_gelu(w: ProgramWriter, it: Instruction, args: tuple[int, ...]) -> int:
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
    (ONNX, "Mod"): _by_attribute("fmod", 0, "mod", "fmod"),
    (ONNX, "BitShift"): _by_attribute("direction", b"LEFT", "shift_left", "shift_right"),
    (ONNX, "Pow"): _pow,
    (ONNX, "Cast"): _cast,
    (ONNX, "DequantizeLinear"): _dequantize,
    (ONNX, "QuantizeLinear"): _quantize,
    (ONNX, "Gelu"): _by_attribute("approximate", b"tanh", "gelu_tanh", "gelu"),
    (MICROSOFT, "Gelu"): _by_attribute("approximate", b"tanh", "gelu_tanh", "gelu"),
    (MICROSOFT, "FastGelu"): _fast_gelu,
    (MICROSOFT, "QOrderedGelu"): _qordered_gelu,
}


@cache
def encoder(key: tuple[str, str]) -> Encoder:
    """Return the function that writes the native instructions of an op."""
    if key in _CUSTOM:
        return _CUSTOM[key]
    form = FUSIBLE[key].native
    if isinstance(form, str):  # one instruction with all arguments
        return lambda w, it, args: w.emit(form, args, _result(it))
    return _tree(form)


def encode(code: Code | None, operands: Operands) -> Program | No:
    """Return the native program of fused code, empty if there is none, or why it has none.

    The value of an operand is None for the result of a matmul or convolution.
    """
    if not code:
        return (0, 0), ()
    try:
        return _encoded(code, operands)
    except NotEncodable as reason:
        return No(str(reason))


def _encoded(code: Code, operands: Operands) -> Program:
    w = ProgramWriter(operands)
    registers = list(range(len(operands)))  # native ones, by register of the code
    gates = _swish_gates(code, len(operands))
    for i, instruction in enumerate(code):
        if instruction.dtype not in TYPES:
            raise NotEncodable(f"no kernel for {instruction.dtype}")
        args = tuple(a if a == ABSENT else registers[a] for a in instruction.args)
        if len(operands) + i in gates.values():
            registers.append(args[0])  # of the Sigmoid: the Mul computes Swish of it
            continue
        if instruction.op != (ONNX, "Cast"):
            args = tuple(a if a == ABSENT else w.wide(a) for a in args)
        if i in gates:
            result = w.emit("swish", args[:1], None, (1.0,))
        else:
            result = encoder(instruction.op)(w, instruction, args)
        # Intermediate results stay wide: only the last is rounded to its type.
        is_last = i == len(code) - 1
        registers.append(w.cast(result, instruction.dtype) if is_last else result)
    return w.program()


def _swish_gates(code: Code, n_operands: int) -> dict[int, int]:
    """Return the Mul instructions of x * Sigmoid(x), with the register of the Sigmoid.

    The Sigmoid must have no other reader: it is not computed by itself.
    """
    uses = Counter(arg for instruction in code for arg in instruction.args)
    found: dict[int, int] = {}
    for i, instruction in enumerate(code):
        if instruction.op != (ONNX, "Mul"):
            continue
        for gate, x in (instruction.args, instruction.args[::-1]):  # Mul is commutative
            source = code[gate - n_operands] if gate >= n_operands else instruction
            if source.op == (ONNX, "Sigmoid") and source.args == (x,) and uses[gate] == 1:
                found[i] = gate
    return found


def elementwise(node: Node) -> Call | No:
    """Lower a single op."""
    # An operand that is read twice, as in Mul(x, x), is one register.
    values = list(dict.fromkeys(v for v in node.inputs if v is not None))
    return _call((instruction_of(node, values.index),), values, node.outputs[0])


def chain(node: Node) -> Call | No:
    """Lower fused ops."""
    return _call(node.attrs["code"], [v for v in node.inputs if v is not None], node.outputs[0])


def _call(code: Code, values: Sequence[Value], y: Value) -> Call | No:
    program = encode(code, [(v.tensor.dtype, v) for v in values])
    if isinstance(program, No):
        return program
    # In place: an element is written after all operands were read at that offset. Native code
    # compares the sizes in bytes.
    size = y.tensor.dtype.itemsize
    shares = tuple((i, 0) for i, v in enumerate(values) if v.tensor.dtype.itemsize == size)
    return Call("chain", tuple(values), *program, shares=shares, writes_rows=True)


LOWERINGS: Final[Lowerings] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    (INTERNAL, "Chain"): chain,
}
