"""What follows the sums of a convolution, split into what tiles do themselves and a program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.chain import ABSENT, Instruction
from sardonyx.ops.declare import ONNX
from sardonyx.place.provider import No
from sardonyx.providers.cpu.chain import encode

_BIAS, _RELU, _BOUND, _SWISH = 1, 2, 4, 8  # of native/kernels/conv/epilogue.h
_PRODUCT: Final = 0  # the number of the sums among the values of a code


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Operands behind the image and the weights, and what a kernel is told about them."""

    operands: tuple[Value, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]


def epilogue(node: Node) -> Epilogue | No:
    """The epilogue of a node whose operands follow two inputs, in f32."""
    given = [v for v in node.inputs[2:] if v is not None]
    rest = _Rest(list(node.attrs["code"] or ()), given)
    bias = rest.take_bias(node.outputs[0])
    flags, bound = rest.take_activation()
    program = encode(tuple(rest.code), [(F32, None), *((v.tensor.dtype, v) for v in rest.operands)])
    if isinstance(program, No):
        return program
    first = () if bias is None else (bias,)
    flags |= _BIAS if first else 0
    return Epilogue((*first, *rest.operands), (flags, *program[0]), (bound, *program[1]))


class _Rest:
    """A code whose first instructions on the product are taken away."""

    def __init__(self, code: list[Instruction], operands: list[Value]) -> None:
        self.code = code
        self.operands = operands

    def take_bias(self, y: Value) -> Value | None:
        """The operand that is added to the product first, one number for each column."""
        readers = self._readers(_PRODUCT)
        if len(readers) != 1:
            return None
        it = self.code[readers[0]]
        number = max(it.args)
        if not self._is(it, "Add") or not 0 < number <= len(self.operands):
            return None
        if not _is_row(self.operands[number - 1], y) or self._readers(number) != readers:
            return None
        bias = self.operands[number - 1]
        self._remove(readers, [number])
        return bias

    def take_activation(self) -> tuple[int, float]:
        """Flags of what is then done to the product, and its upper bound."""
        readers = self._readers(_PRODUCT)
        if not readers:
            return 0, math.inf
        it = self.code[readers[0]]
        if len(readers) == 1 and self._is(it, "Relu"):
            self._remove(readers, [])
            return _RELU, math.inf
        if len(readers) == 1 and self._is(it, "Clip") and (bound := self._bound(it)) is not None:
            self._remove(readers, [a for a in it.args[1:] if a != ABSENT])
            return _RELU | _BOUND, bound
        if len(readers) == 1 and self._is(it, "Swish") and dict(it.attrs)["alpha"] == 1:
            self._remove(readers, [])
            return _SWISH, math.inf
        if len(readers) == 2 and self._is(it, "Sigmoid"):
            gate = len(self.operands) + 1 + readers[0]
            second = self.code[readers[1]]
            is_gated = self._is(second, "Mul") and set(second.args) == {_PRODUCT, gate}
            if is_gated and self._readers(gate) == readers[1:]:
                self._remove(readers, [])
                return _SWISH, math.inf
        return 0, math.inf

    def _is(self, it: Instruction, name: str) -> bool:
        return it.op == (ONNX, name) and it.dtype is F32

    def _readers(self, number: int) -> list[int]:
        return [i for i, it in enumerate(self.code) if number in it.args]

    def _bound(self, it: Instruction) -> float | None:
        """The upper of two bounds, where the lower one is 0 and nothing else reads them."""
        if len(it.args) != 3 or ABSENT in it.args or len(set(it.args)) != 3:
            return None
        bounds = []
        for number in it.args[1:]:
            value = self.operands[number - 1] if 0 < number <= len(self.operands) else None
            const = None if value is None else value.const
            if const is None or const.count != 1 or len(self._readers(number)) != 1:
                return None
            bounds.append(float(const.read().reshape(-1)[0]))
        return bounds[1] if bounds[0] == 0 and bounds[1] >= 0 else None

    def _remove(self, gone: list[int], operands: list[int]) -> None:
        """Takes instructions away, the last of which made the new product, and operands."""
        n = len(self.operands)
        kept = [k for k in range(1, n + 1) if k not in operands]
        moved = {old: 1 + new for new, old in enumerate(kept)}
        moved[n + 1 + gone[-1]] = _PRODUCT
        left = [i for i in range(len(self.code)) if i not in gone]
        moved |= {n + 1 + old: len(kept) + 1 + new for new, old in enumerate(left)}
        self.operands = [self.operands[k - 1] for k in kept]
        self.code = [_renumbered(self.code[i], moved) for i in left]


def _renumbered(it: Instruction, moved: dict[int, int]) -> Instruction:
    return Instruction(it.op, tuple(moved.get(a, a) for a in it.args), it.dtype, it.attrs)


def _is_row(bias: Value, y: Value) -> bool:
    """Whether a value is one number of f32 for each column of y."""
    shape = bias.tensor.static
    if bias.tensor.dtype is not F32 or not shape:
        return False
    return shape[-1] == y.tensor.dims[-1] and all(d == 1 for d in shape[:-1])
