"""Which family lowers which op; families are imported when a model has one of their ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.place.provider import No
from sardonyx.providers.cpu.call import Lowered

Lowering = Callable[[Node], Lowered | No]

# Each family is a module here with a table LOWERINGS: (domain, op) -> Lowering.
_ELEMENTWISE: Final = (
    "Abs Neg Ceil Floor Round Sign Sqrt Exp Log Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh "
    "Asinh Acosh Atanh Erf Sigmoid Not BitwiseNot Add Sub Mul Div Mod And Or Xor BitwiseAnd BitwiseOr "
    "BitwiseXor Equal Greater Less GreaterOrEqual LessOrEqual Max Min Sum Mean Pow BitShift IsNaN "
    "IsInf Where Clip Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid HardSwish Softplus Softsign "
    "ThresholdedRelu Shrink Mish Swish Gelu SwiGLU Cast"
)
FAMILIES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "chain": (
        *(("", name) for name in _ELEMENTWISE.split()),
        *(("com.microsoft", name) for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")),
        ("sardonyx", "Chain"),
    ),
    "gemm": (("", "MatMul"), ("sardonyx", "MatMul")),
    "softmax": (("", "Softmax"),),
}
_FAMILY_OF: Final = {key: family for family, keys in FAMILIES.items() for key in keys}


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op are lowered; None for ops without kernels."""
    family = _FAMILY_OF.get(key)
    if family is None:
        return None
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    made: Lowering = module.LOWERINGS[key]
    return made
