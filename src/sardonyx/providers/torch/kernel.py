"""The kernel of an op in torch: a function over tensors, and how it is to be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from sardonyx.graph.graph import Node, Value

REALS: Final = frozenset((F32, F64, F16, BF16))
WHOLE: Final = frozenset((I8, I16, I32, I64, U8))  # integers that torch computes with
PLAIN: Final = REALS | WHOLE | {BOOL}

# Weight layouts that kernels prefer: the same elements in another memory order.
CHANNELS_LAST: Final = "channels last"  # rank 4
COLUMNS: Final = "columns"  # rank 2, column-major, with padding columns
ALIGNED_BYTES: Final = 16  # alignment of rows, for the vectorized loads of cuBLAS kernels


def padded(count: int, dtype: torch.dtype) -> int:
    """Return a count of elements rounded up to a multiple of ALIGNED_BYTES."""
    per_block = max(1, ALIGNED_BYTES // dtype.itemsize)
    return -(-count // per_block) * per_block


def takes_all(node: Node) -> str:
    """Refuse no node."""
    return ""


@frozen
class Packing:
    """Constants that a function receives as one prepacked object, built once on the device."""

    # Applies if all of these are constants. The first becomes the object, the others None.
    inputs: tuple[int, ...]
    make: Callable[..., Any]  # from the tensors, with the node's attributes as keywords


@frozen
class TorchKernel:
    """An op's function, with the signature of the op's numpy reference, over tensors.

    It returns new tensors or views, and never writes to its inputs, except where the keyword
    `shares` allows it.
    """

    function: Callable[..., Any]
    types: frozenset[DType] = PLAIN  # of all inputs and outputs but those in `host`
    host: tuple[int, ...] = ()  # inputs read on the host: passed as numpy arrays
    numbers: tuple[int, ...] = ()  # inputs passed as arrays if they are constant scalars
    columns: tuple[int, ...] = ()  # constant matrices [K, N] to be stored with aligned rows
    images: tuple[int, ...] = ()  # 4-d constants to be stored channels-last
    sized: bool = False  # takes `shapes`: a tuple of sizes per output, None if data-dependent
    syncs: bool = False  # synchronizes with the device: cannot be captured in a CUDA graph
    # (input, output) pairs: with the keyword `shares` true, they are the same memory (in place).
    shares: tuple[tuple[int, int], ...] = ()
    packing: Packing | None = None
    # Takes `next_waits`: the next kernel is one of ours and may start early (dependent launch).
    dependent_launch: bool = False
    # Takes `gives_fixed_point`: only n-bit matmuls read the first output.
    fixed_point: bool = False
    refuses: Callable[[Node], str] = takes_all  # the reason for a refusal; empty if accepted

    def is_array(self, position: int, value: Value | None) -> bool:
        """Return whether an input is passed as a numpy array."""
        if position in self.host:
            return True
        const = None if value is None else value.const
        return position in self.numbers and const is not None and const.count == 1


TorchKernels = dict[tuple[str, str], TorchKernel]  # by domain and name
