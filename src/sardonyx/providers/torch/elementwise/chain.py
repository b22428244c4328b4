"""Chains of elementwise ops: one generated Triton kernel, or torch calls per instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.elementwise.chain import ABSENT, CONVERSIONS, TYPES, Code
from sardonyx.providers.torch import quantize
from sardonyx.providers.torch.dtypes import TORCH, wide
from sardonyx.providers.torch.elementwise import activation, cast
from sardonyx.providers.torch.elementwise import arithmetic as elementwise
from sardonyx.providers.torch.elementwise.cast import convert
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable

# The kernels of all ops that may be instructions.
FUNCTIONS: Final[TorchKernels] = {
    **elementwise.KERNELS,
    **activation.KERNELS,
    **cast.KERNELS,
    **{key: quantize.KERNELS[key] for key in CONVERSIONS},
}


_CHAINS: Final[dict[int, Any]] = {}  # by id of the code: hashing codes would take longer
_MAX_CHAINS: Final = 4096


def run_code(code: Code, operands: Sequence[Tensor]) -> Tensor:
    """Return the last result. Intermediate 16-bit floats stay float32."""
    if len(code) > 1 and usable(operands[0].device):
        y = _chain_of(code)(*operands)
        if y is not None:
            return y  # type: ignore[no-any-return]  # of a class that imports Triton
    # Without Triton: one torch call per instruction.
    values = [wide(x) for x in operands]
    for step in code:
        arguments = [None if a == ABSENT else values[a] for a in step.args]
        values.append(wide(FUNCTIONS[step.op].function(*arguments, **dict(step.attrs))))
    return convert(values[-1], TORCH[code[-1].dtype])


def _chain_of(code: Code) -> Any:
    chain = _CHAINS.get(id(code))
    if chain is None or chain.code is not code:
        from sardonyx.providers.torch.kernels.chain import Chain

        if len(_CHAINS) >= _MAX_CHAINS:
            _CHAINS.clear()
        chain = _CHAINS[id(code)] = Chain(code)
    return chain


def why_unsupported(code: Code, operands: Sequence[DType]) -> str:
    """Return why a code cannot run on operands of these types; empty if it can."""
    types = [*operands, *(step.dtype for step in code)]
    for i, step in enumerate(code, len(operands)):
        kernel = FUNCTIONS.get(step.op)
        if kernel is None:
            return f"{step.op[1]} has no torch kernel that a chain can use"
        for at in (*step.args, i):
            if at != ABSENT and types[at] not in kernel.types:
                return f"the kernel of {step.op[1]} in a chain does not support {types[at]}"
    return ""


def apply_epilogue(y: Tensor, operands: Sequence[Tensor], code: Code | None) -> Tensor:
    """Return y after its epilogue, if it has one."""
    return run_code(code, (y, *operands)) if code else y


def why_no_epilogue(node: Node) -> str:
    """Return why an epilogue has no kernel; empty if it has, or if there is none."""
    code: Code | None = node.attrs["code"]
    if not code:
        return ""
    fixed = len(node.op.inputs) - 1  # the epilogue's operands follow
    types = [v.tensor.dtype for v in (node.inputs[0], *node.inputs[fixed:]) if v is not None]
    return why_unsupported(code, types)


def _chain(*xs: Tensor, code: Code) -> Tensor:
    return run_code(code, xs)


def _refuses(node: Node) -> str:
    types = [v.tensor.dtype for v in node.inputs if v is not None]
    return why_unsupported(node.attrs["code"], types)


KERNELS: Final[TorchKernels] = {(INTERNAL, "Chain"): TorchKernel(_chain, TYPES, refuses=_refuses)}
