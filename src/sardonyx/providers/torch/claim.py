"""Which nodes the torch provider takes, and why it does not take the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.place.provider import No
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.index import KERNELS
from sardonyx.providers.torch.kernel import TorchKernel

COPY: Final = (INTERNAL, "Copy")
SIZES: Final = (INTERNAL, "Sizes")
FEW: Final = (INTERNAL, "FusedMatMulNBits")
MAX_RANK: Final = 25  # of a tensor that CUDA kernels of torch take


def _shape(x: Any, *, start: int, end: int | None) -> Any:
    return np.array(tuple(x.shape)[start:end], np.int64)


def _size(x: Any) -> Any:
    return np.array(x.numel(), np.int64)


# Those which make arrays on the host.
LOOKS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("", "Shape"): _shape,
    ("", "Size"): _size,
}


def row_of(node: Node) -> TorchKernel | No:
    """The function of a node, or why it has none."""
    row = KERNELS.get(node.op.key)
    if row is None:
        return No(f"{node.op} has no function in torch")
    read = [v for i, v in enumerate(node.inputs) if v is not None and i not in row.host]
    for value in (*read, *node.outputs):
        if why := unfit(value) or _untaken(value, row):
            return No(why)
    why = row.refuses(node)
    return No(why) if why else row


def unfit(value: Value) -> str:
    """Why torch cannot hold a value; empty if it can."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return f"{value} is no tensor"
    if fact.shape is None:
        return f"the rank of {value} is not known"
    if len(fact.shape) > MAX_RANK:
        return f"{value} has more than {MAX_RANK} dims"
    if fact.dtype not in TORCH and (fact.dtype.bits >= 8 or value.const is None):
        return f"torch has no {fact.dtype}, which {value} is of"
    return ""


def _untaken(value: Value, row: TorchKernel) -> str:
    dtype = value.tensor.dtype
    if dtype in row.types:
        return ""
    return f"its function does not take {dtype}, which {value} is of"
