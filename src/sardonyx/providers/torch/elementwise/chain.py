"""Chains of elementwise ops: instruction by instruction, by the functions of their ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.elementwise.chain import ABSENT, CONVERSIONS, TYPES, Code
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.elementwise import activation, cast
from sardonyx.providers.torch.elementwise import arithmetic as elementwise
from sardonyx.providers.torch.elementwise.cast import convert
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable
from sardonyx.providers.torch.precision import wide
from sardonyx.providers.torch.quantize import convert as quantize

# What instructions may be.
FUNCTIONS: Final[TorchKernels] = {
    **elementwise.KERNELS,
    **activation.KERNELS,
    **cast.KERNELS,
    **{key: quantize.KERNELS[key] for key in CONVERSIONS},
}


_CHAINS: Final[dict[int, Any]] = {}  # kernels of codes, by where the codes lie
_MOST_CHAINS: Final = 4096


def run_code(code: Code, operands: Sequence[Tensor]) -> Tensor:
    """The last result, by one kernel of ours where there is one. Halves stay float32 in between."""
    if len(code) > 1 and usable(operands[0].device):
        made = _chain_of(code)(*operands)
        if made is not None:
            return made  # type: ignore[no-any-return]  # of a class that imports Triton
    values = [wide(x) for x in operands]
    for step in code:
        given = [None if a == ABSENT else values[a] for a in step.args]
        values.append(wide(FUNCTIONS[step.op].function(*given, **dict(step.attrs))))
    return convert(values[-1], TORCH[code[-1].dtype])


def _chain_of(code: Code) -> Any:
    chain = _CHAINS.get(id(code))
    if chain is None or chain.code is not code:
        from sardonyx.providers.torch.kernels.chain import Chain

        if len(_CHAINS) >= _MOST_CHAINS:
            _CHAINS.clear()
        chain = _CHAINS[id(code)] = Chain(code)
    return chain


def unfit(code: Code, operands: Sequence[DType]) -> str:
    """Why a code cannot be run on operands of these types; empty if it can."""
    types = [*operands, *(step.dtype for step in code)]
    for i, step in enumerate(code, len(operands)):
        row = FUNCTIONS.get(step.op)
        if row is None:
            return f"{step.op[1]} has no function in torch that a chain may use"
        for at in (*step.args, i):
            if at != ABSENT and types[at] not in row.types:
                return f"the function of {step.op[1]} in a chain does not take {types[at]}"
    return ""


def _chain(*xs: Tensor, code: Code) -> Tensor:
    return run_code(code, xs)


def _refuses(node: Node) -> str:
    given = [v.tensor.dtype for v in node.inputs if v is not None]
    return unfit(node.attrs["code"], given)


KERNELS: Final[TorchKernels] = {(INTERNAL, "Chain"): TorchKernel(_chain, TYPES, refuses=_refuses)}
