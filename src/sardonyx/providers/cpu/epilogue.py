"""What follows the sums of a convolution, split into what tiles do themselves and a program."""

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
_PRODUCT: Final = 0  # the number of the sums among the values of a code
Test = Callable[[Value], bool]


@frozen
class Epilogue:
    """Operands behind the image and the weights, and what a kernel is told about them."""

    operands: tuple[Value, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    shares: tuple[tuple[int, int], ...]  # as a Call has them


def epilogue(node: Node) -> Epilogue | No:
    """The epilogue of a node whose operands follow two inputs, in f32."""
    given = [v for v in node.inputs[2:] if v is not None]
    rest = Rest(list(node.attrs["code"] or ()), given)
    y = node.outputs[0]
    bias, start = rest.take_sums(lambda v: is_row(v, y), lambda v: is_like(v, y))
    flags, bound = rest.take_activation()
    end = rest.take_added(lambda v: is_like(v, y)) if flags else None
    program = encode(tuple(rest.code), [(F32, None), *((v.tensor.dtype, v) for v in rest.operands)])
    if isinstance(program, No):
        return program
    first = tuple(v for v in (bias, start, end) if v is not None)
    for flag, value in ((_BIAS, bias), (_START, start), (_END, end)):
        flags |= 0 if value is None else flag
    shares = tuple((2 + i, 0) for i, v in enumerate(first) if v is not bias)
    return Epilogue((*first, *rest.operands), (flags, *program[0]), (bound, *program[1]), shares)


class Rest:
    """A code whose first instructions on the product are taken away."""

    def __init__(self, code: list[Instruction], operands: list[Value]) -> None:
        self.code = code
        self.operands = operands

    def take_sums(self, is_bias: Test, is_start: Test) -> tuple[Value | None, Value | None]:
        """What is added to the product first: a row for all of its rows, and what is like it."""
        bias = self.take_added(is_bias)
        start = self.take_added(is_start)
        return self.take_added(is_bias) if bias is None else bias, start

    def take_added(self, fits: Test) -> Value | None:
        """The operand that is added to the product first, if it fits and nobody else reads it."""
        readers = self._readers(_PRODUCT)
        if len(readers) != 1:
            return None
        it = self.code[readers[0]]
        number = max(it.args)
        if not self._is(it, "Add") or not 0 < number <= len(self.operands):
            return None
        if not fits(self.operands[number - 1]) or self._readers(number) != readers:
            return None
        taken = self.operands[number - 1]
        self._remove(readers, [number])
        return taken

    def take_activation(self) -> tuple[int, float]:
        """Flags of what is then done to the product, and its upper bound."""
        readers = self._readers(_PRODUCT)
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
        if len(readers) == 2 and self._is(it, "Sigmoid"):
            gate = len(self.operands) + 1 + readers[0]
            second = self.code[readers[1]]
            is_gated = self._is(second, "Mul") and set(second.args) == {_PRODUCT, gate}
            if is_gated and self._readers(gate) == readers[1:]:
                self._remove(readers, [])
                return _SWISH, math.inf
        return 0, math.inf

    def take_relu(self) -> bool:
        """Whether the product is then cut off at 0, by an instruction that is taken away."""
        readers = self._readers(_PRODUCT)
        if len(readers) != 1 or not self._is(self.code[readers[0]], "Relu"):
            return False
        self._remove(readers, [])
        return True

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


def is_row(bias: Value, y: Value) -> bool:
    """Whether a value is one number of f32 for each column of y."""
    shape = bias.tensor.static
    if bias.tensor.dtype is not F32 or not shape:
        return False
    return shape[-1] == y.tensor.dims[-1] and all(d == 1 for d in shape[:-1])


def is_like(value: Value, y: Value) -> bool:
    """Whether a value has one number of f32 for each element of y."""
    fact = value.tensor
    return fact.dtype is F32 and y.tensor.dtype is F32 and fact.dims == y.tensor.dims


def alike(operands: Sequence[Value], y: Value, first: int) -> tuple[tuple[int, int], ...]:
    """The shares of a program whose product is not in y: operands, from input `first` on."""
    size, dims = y.tensor.dtype.itemsize, y.tensor.dims
    fits = (v.tensor.dims == dims and v.tensor.dtype.itemsize == size for v in operands)
    return tuple((first + i, 0) for i, is_fit in enumerate(fits) if is_fit)
