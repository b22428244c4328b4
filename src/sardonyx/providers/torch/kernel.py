"""What an op is in torch: one function over tensors, and what it wants to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from sardonyx.graph.graph import Node, Value

REALS: Final = frozenset((F32, F64, F16, BF16))
WHOLE: Final = frozenset((I8, I16, I32, I64, U8))  # integers that torch computes with
PLAIN: Final = REALS | WHOLE | {BOOL}


def takes_all(node: Node) -> str:
    """No reason to refuse a node."""
    return ""


@frozen
class Packing:
    """Constants that a function takes as one thing, made of them once on the device."""

    inputs: tuple[int, ...]  # where they all are constants; the others come as None then
    make: Callable[..., Any]  # of the tensors, and of the node's attributes by keyword


@frozen
class TorchKernel:
    """An op's function: called as the op's numpy reference is, with tensors in place of arrays.

    It makes new tensors or views, and never writes to what it is given, but where it is told to by
    the keyword `shares`.
    """

    function: Callable[..., Any]
    types: frozenset[DType] = PLAIN  # of all inputs and outputs but those in `host`
    host: tuple[int, ...] = ()  # inputs that it reads on the host: they come as numpy arrays
    numbers: tuple[int, ...] = ()  # those that come as arrays if they are one constant number
    columns: tuple[int, ...] = ()  # constant matrices [K, N], whose rows should be aligned
    images: tuple[int, ...] = ()  # constants of images, with their channels last in memory
    sized: bool = False  # also wants `shapes`: for each output a tuple of sizes, None if open
    syncs: bool = False  # waits for the device, so that it cannot be captured in a CUDA graph
    # (input, output): told that each of these is one memory, it writes there.
    shares: tuple[tuple[int, int], ...] = ()
    packing: Packing | None = None
    leads: bool = False  # takes `leads`: a kernel of ours comes next, and may begin early
    digits: bool = False  # takes `digits`: the first output goes to products of few bits alone
    refuses: Callable[[Node], str] = takes_all  # why a node is not taken; empty if it is

    def is_array(self, position: int, value: Value | None) -> bool:
        """Whether an input comes as an array."""
        if position in self.host:
            return True
        const = None if value is None else value.const
        return position in self.numbers and const is not None and const.count == 1


TorchKernels = dict[tuple[str, str], TorchKernel]  # by domain and name
