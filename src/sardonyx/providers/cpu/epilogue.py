"""Epilogues of matmul and convolution: options of the tile kernels, then an elementwise program.

Passes fuse elementwise ops into a node as code over the accumulated result, register 0, and further
operands. The first instructions of the code that the tile kernels have as options are removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ONNX
from sardonyx.ops.elementwise.chain import ABSENT, Instruction
from sardonyx.place.provider import No
from sardonyx.providers.cpu.elementwise import encode

# Of native/kernels/conv/epilogue.h.
_BIAS, _RELU, _BOUND, _SWISH, _START, _END = 1, 2, 4, 8, 16, 32
_RESULT: Final = 0  # the register of the accumulated result in the code
Predicate = Callable[[Value], bool]


@frozen
class Epilogue:
    """Operands after the first two, and the arguments of a kernel that describe them."""

    operands: tuple[Value, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    shares: tuple[tuple[int, int], ...]  # as a Call has them


def epilogue_of(node: Node) -> Epilogue | No:
    """Return the epilogue of a float32 convolution."""
    operands = [v for v in node.inputs[2:] if v is not None]
    rest = EpilogueSplitter(list(node.attrs["code"] or ()), operands)
    y = node.outputs[0]
    # The order of the kernel: accumulators begin with `start`, then bias, activation and `end`.
    bias, start = rest.take_addends(lambda v: is_row(v, y), lambda v: is_like(v, y))
    flags, bound = rest.take_activation()
    # Without an activation an addend could have been taken as `start`.
    end = rest.take_addend(lambda v: is_like(v, y)) if flags else None
    program = rest.encoded()
    if isinstance(program, No):
        return program
    first = tuple(v for v in (bias, start, end) if v is not None)
    for flag, value in ((_BIAS, bias), (_START, start), (_END, end)):
        flags |= 0 if value is None else flag
    # Tiles read these addends where they write y, and before: y may be in their memory.
    shares = tuple((2 + i, 0) for i, v in enumerate(first) if v is not bias)
    return Epilogue((*first, *rest.operands), (flags, *program[0]), (bound, *program[1]), shares)


class EpilogueSplitter:
    """Code from which the first instructions on the result are removed, one by one.

    Registers: 0 is the result, 1 to n the operands, n + 1 + i the result of instruction i. Removing
    instructions renumbers them, and the result of the last one removed becomes register 0.
    """

    def __init__(self, code: list[Instruction], operands: list[Value]) -> None:
        self.code = code
        self.operands = operands

    def encoded(self) -> tuple[tuple[int, ...], tuple[float, ...]] | No:
        """Return the remaining code as a native program."""
        operands = [(v.tensor.dtype, v) for v in self.operands]
        return encode(tuple(self.code), [(F32, None), *operands])

    def take_addends(
        self, is_bias: Predicate, is_start: Predicate
    ) -> tuple[Value | None, Value | None]:
        """Remove the first additions, in either order; return bias and initial accumulators."""
        bias = self.take_addend(is_bias)
        start = self.take_addend(is_start)
        return self.take_addend(is_bias) if bias is None else bias, start

    def take_addend(self, fits: Predicate) -> Value | None:
        """Remove the first addition, if its operand fits and has no other reader; return that."""
        readers = self._readers(_RESULT)
        if len(readers) != 1:  # another instruction needs the result without the addend
            return None
        it = self.code[readers[0]]
        number = max(it.args)  # of the operand: the result is 0
        if not self._is(it, "Add") or not 0 < number <= len(self.operands):
            return None
        if not fits(self.operands[number - 1]) or self._readers(number) != readers:
            return None
        addend = self.operands[number - 1]
        self._remove(readers, [number])
        return addend

    def take_activation(self) -> tuple[int, float]:
        """Remove an activation that kernels have; return its flags and its upper bound."""
        readers = self._readers(_RESULT)
        if not readers:
            return 0, math.inf
        it = self.code[readers[0]]
        if self.take_relu():
            return _RELU, math.inf
        if len(readers) == 1 and self._is(it, "Clip") and (bound := self._bound(it)) is not None:
            self._remove(readers, [a for a in it.args[1:] if a != ABSENT])
            return _RELU | _BOUND, bound
        if len(readers) == 1 and self._is(it, "Swish") and dict(it.attrs)["alpha"] == 1:
            self._remove(readers, [])
            return _SWISH, math.inf
        if len(readers) == 2 and self._is(it, "Sigmoid"):  # x * Sigmoid(x) is Swish too
            gate = len(self.operands) + 1 + readers[0]
            second = self.code[readers[1]]
            is_gated = self._is(second, "Mul") and set(second.args) == {_RESULT, gate}
            if is_gated and self._readers(gate) == readers[1:]:
                self._remove(readers, [])
                return _SWISH, math.inf
        return 0, math.inf

    def take_relu(self) -> bool:
        """Remove a Relu; return whether there was one."""
        readers = self._readers(_RESULT)
        if len(readers) != 1 or not self._is(self.code[readers[0]], "Relu"):
            return False
        self._remove(readers, [])
        return True

    def _is(self, it: Instruction, name: str) -> bool:
        return it.op == (ONNX, name) and it.dtype is F32

    def _readers(self, number: int) -> list[int]:
        return [i for i, it in enumerate(self.code) if number in it.args]

    def _bound(self, it: Instruction) -> float | None:
        """Return the upper bound of a Clip from 0, if no other instruction reads its bounds."""
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
        """Remove instructions, the last of which computes the new result, and operands."""
        n = len(self.operands)
        kept = [k for k in range(1, n + 1) if k not in operands]
        renumbered = {old: 1 + new for new, old in enumerate(kept)}
        renumbered[n + 1 + gone[-1]] = _RESULT
        left = [i for i in range(len(self.code)) if i not in gone]
        renumbered |= {n + 1 + old: len(kept) + 1 + new for new, old in enumerate(left)}
        self.operands = [self.operands[k - 1] for k in kept]
        self.code = [
            Instruction(it.op, tuple(renumbered.get(a, a) for a in it.args), it.dtype, it.attrs)
            for it in (self.code[i] for i in left)
        ]


def is_row(bias: Value, y: Value) -> bool:
    """Whether a value has one float32 for each column (channel) of y."""
    shape = bias.tensor.static
    if bias.tensor.dtype is not F32 or not shape:
        return False
    return shape[-1] == y.tensor.dims[-1] and all(d == 1 for d in shape[:-1])


def is_like(value: Value, y: Value) -> bool:
    """Whether a value and y are float32 tensors of one shape."""
    fact = value.tensor
    return fact.dtype is F32 and y.tensor.dtype is F32 and fact.dims == y.tensor.dims


def alias_shares(operands: Sequence[Value], y: Value, first: int) -> tuple[tuple[int, int], ...]:
    """Return `Call.shares` of operands that may alias y; they are the inputs from `first` on."""
    size, dims = y.tensor.dtype.itemsize, y.tensor.dims
    fits = (v.tensor.dims == dims and v.tensor.dtype.itemsize == size for v in operands)
    return tuple((first + i, 0) for i, is_fit in enumerate(fits) if is_fit)
