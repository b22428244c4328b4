"""The epilogue of a matmul: elementwise ops fused into the same node."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sardonyx.graph.graph import Node
from sardonyx.ops.elementwise.chain import Code
from sardonyx.providers.torch.elementwise.chain import run_code, why_unsupported


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
