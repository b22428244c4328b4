"""What follows the sums of a convolution, split into what tiles do themselves and a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.chain import Code
from sardonyx.ops.declare import ONNX
from sardonyx.place.provider import No
from sardonyx.providers.cpu.chain import encode

_BIAS, _RELU = 1, 2  # of native/kernels/conv/epilogue.h
_ADD: Final = (ONNX, "Add")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Operands behind the image and the weights, and what a kernel is told about them."""

    operands: tuple[Value, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]


def epilogue(node: Node) -> Epilogue | No:
    """The epilogue of a node whose operands follow two inputs, in f32."""
    operands = [v for v in node.inputs[2:] if v is not None]
    code: Code = node.attrs["code"] or ()
    flags = 0
    first: tuple[Value, ...] = ()
    for i, instruction in enumerate(code):
        number = _bias_of(code, i, len(operands))
        if number and _is_row(operands[number - 1], node.outputs[0]) and instruction.dtype is F32:
            code = _without(code, i, number, len(operands))
            flags, first = _BIAS, (operands.pop(number - 1),)
            break
    if len(code) == 1 and code[0].op == (ONNX, "Relu") and code[0].dtype is F32:
        flags, code = flags | _RELU, ()
    program = encode(code, [(F32, None), *((v.tensor.dtype, v) for v in operands)])
    if isinstance(program, No):
        return program
    return Epilogue((*first, *operands), (flags, *program[0]), program[1])


def _bias_of(code: Code, i: int, n: int) -> int:
    """The operand that instruction i adds to the product, both read by no other; 0 for none."""
    it = code[i]
    if it.op != _ADD or len(it.args) != 2 or 0 not in it.args:
        return 0
    number = max(it.args)
    is_read = any({0, number} & set(o.args) for j, o in enumerate(code) if j != i)
    return number if 0 < number <= n and not is_read else 0


def _without(code: Code, i: int, number: int, n: int) -> Code:
    """The code whose product is the sum of instruction i, and which lacks operand `number`."""
    moved = {n + 1 + i: 0}
    for old in range(1, n + 1):
        moved[old] = old - (old > number)
    for j in range(len(code)):
        if j != i:
            moved[n + 1 + j] = n + j - (j > i)
    return tuple(
        type(o)(o.op, tuple(moved.get(a, a) for a in o.args), o.dtype, o.attrs)
        for j, o in enumerate(code)
        if j != i
    )


def _is_row(bias: Value, y: Value) -> bool:
    """Whether a value is one number of f32 for each column of y."""
    shape = bias.tensor.static
    if bias.tensor.dtype is not F32 or not shape:
        return False
    return shape[-1] == y.tensor.dims[-1] and all(d == 1 for d in shape[:-1])
