"""Decides which nodes the torch provider accepts, and gives the reason for each refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.place.provider import No, why_not_ranked
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.index import KERNELS
from sardonyx.providers.torch.kernel import TorchKernel

COPY: Final = (INTERNAL, "Copy")
SIZES: Final = (INTERNAL, "Sizes")
NBITS_MATMUL: Final = (INTERNAL, "FusedMatMulNBits")
MAX_RANK: Final = 25  # limit of torch's CUDA kernels (TensorIterator)


def _shape(x: Any, *, start: int, end: int | None) -> Any:
    return np.array(tuple(x.shape)[start:end], np.int64)


def _size(x: Any) -> Any:
    return np.array(x.numel(), np.int64)


# Ops that read a tensor's shape only; their results are arrays on the host.
SHAPE_OPS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("", "Shape"): _shape,
    ("", "Size"): _size,
}


def kernel_of(node: Node) -> TorchKernel | No:
    """Return the kernel of a node, or the reason why it has none."""
    kernel = KERNELS.get(node.op.key)
    if kernel is None:
        return No(f"{node.op} has no kernel in torch")
    # Inputs read on the host are numpy arrays of any type.
    read = [v for i, v in enumerate(node.inputs) if v is not None and i not in kernel.host]
    for value in (*read, *node.outputs):
        if why := why_unsupported(value) or _wrong_type(value, kernel):
            return No(why)
    why = kernel.refuses(node)
    return No(why) if why else kernel


def why_unsupported(value: Value) -> str:
    """Return why torch cannot represent a value; empty if it can."""
    if why := why_not_ranked(value, MAX_RANK):
        return why
    dtype = value.tensor.dtype
    if dtype not in TORCH and (dtype.bits >= 8 or value.const is None):
        return f"torch has no element type {dtype}, the type of {value}"
    return ""


def _wrong_type(value: Value, kernel: TorchKernel) -> str:
    dtype = value.tensor.dtype
    if dtype in kernel.types:
        return ""
    return f"the kernel does not support {dtype}, the type of {value}"
