"""The elementwise ops that kernels fuse: one table for the CPU kernels and the Triton source.

`ops/elementwise/chain.py` (fused programs), `providers/cpu/elementwise.py` (native instructions,
native/kernels/elementwise/ops.inc) and `providers/torch/kernels/chain_source.py` (Triton) read it.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.op import MICROSOFT, ONNX

FLOAT: Final = "float"
NUMBER: Final = "number"  # floats and integers
BOOL: Final = "bool"
INT: Final = "int"
CUSTOM: Final = "custom"  # a form that the reader of the table has a function for


@frozen
class FusibleOp:
    """How kernels compute an op.

    `native` names an instruction of all operands, or is a tree: an instruction, then operands by
    position, attributes by name, or other trees. `triton` is an expression with the operands as
    {0}, {1} and attributes by name; empty if no kernel of ours has the op.
    """

    native: str | tuple[Any, ...]
    triton: str = ""
    operands: str = FLOAT  # what the Triton expression takes
    is_exact: bool = False  # whether it holds in float64: constants in kernels are float32
    n_instructions: int = 1  # native ones, at most


_SIGMOID: Final = "({0} * sigmoid({0} * {alpha}))"
_CLAMPED: Final = "minimum(maximum({x}, full({{0}}, 0)), full({{0}}, 1))"

_STANDARD: Final = {
    # Arithmetic
    "Abs": FusibleOp("abs", "tl.abs({0})", NUMBER, True),
    "Neg": FusibleOp("neg", "(-{0})", NUMBER, True),
    "Sign": FusibleOp("sign", "sign({0})", NUMBER, True),
    "Ceil": FusibleOp("ceil", "tl.ceil({0})", is_exact=True),
    "Floor": FusibleOp("floor", "tl.floor({0})", is_exact=True),
    "Round": FusibleOp("round", "rint({0})"),
    "Sqrt": FusibleOp("sqrt", "sqrt({0})", is_exact=True),
    "Reciprocal": FusibleOp("reciprocal", "divide(full({0}, 1), {0})", is_exact=True),
    "Add": FusibleOp("add", "({0} + {1})", NUMBER, True),
    "Sub": FusibleOp("sub", "({0} - {1})", NUMBER, True),
    "Mul": FusibleOp("mul", "({0} * {1})", NUMBER, True),
    "Div": FusibleOp("div", "divide({0}, {1})", is_exact=True),
    "Mod": FusibleOp(CUSTOM),
    "Pow": FusibleOp(CUSTOM, n_instructions=6),
    "Max": FusibleOp(CUSTOM, CUSTOM, NUMBER, True),
    "Min": FusibleOp(CUSTOM, CUSTOM, NUMBER, True),
    "Sum": FusibleOp(CUSTOM, CUSTOM, is_exact=True),
    "Mean": FusibleOp(CUSTOM, CUSTOM),
    "Clip": FusibleOp(CUSTOM, CUSTOM, NUMBER, True, n_instructions=2),
    # Functions
    "Exp": FusibleOp("exp", "exp({0})"),
    "Log": FusibleOp("log", "log({0})"),
    "Sin": FusibleOp("sin", "tl.sin({0})"),
    "Cos": FusibleOp("cos", "tl.cos({0})"),
    "Tanh": FusibleOp("tanh", "tanh({0})"),
    "Erf": FusibleOp(CUSTOM, "erf({0})"),
    # Without a Triton expression.
    **{
        name: FusibleOp(name.lower())
        for name in ("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")
    },
    # Activations
    "Relu": FusibleOp("relu", "maximum({0}, full({0}, 0))", NUMBER, True),
    "PRelu": FusibleOp("prelu", "tl.where({0} < 0, {0} * {1}, {0})", NUMBER, True),
    "LeakyRelu": FusibleOp(("leaky_relu", 0, "alpha"), "tl.where({0} < 0, {0} * {alpha}, {0})"),
    "Elu": FusibleOp(("elu", 0, "alpha"), "tl.where({0} < 0, {alpha} * expm1_negative({0}), {0})"),
    "Selu": FusibleOp(
        ("selu", 0, "alpha", "gamma"),
        "({gamma} * tl.where({0} > 0, {0}, {alpha} * expm1_negative({0})))",
    ),
    "Celu": FusibleOp(
        ("celu", 0, "alpha"),
        "(maximum({0}, full({0}, 0)) + "
        "minimum({alpha} * expm1(divide({0}, full({0}, {alpha}))), full({0}, 0)))",
    ),
    "Sigmoid": FusibleOp("sigmoid", "sigmoid({0})"),
    "HardSigmoid": FusibleOp(
        ("hard_sigmoid", 0, "alpha", "beta"), _CLAMPED.format(x="{0} * {alpha} + {beta}")
    ),
    "HardSwish": FusibleOp(
        "hard_swish", f"({{0}} * {_CLAMPED.format(x=f'{{0}} * ({1 / 6!r}) + (0.5)')})"
    ),
    "Softplus": FusibleOp("softplus", "softplus({0})"),
    "Softsign": FusibleOp("softsign", "divide({0}, 1 + tl.abs({0}))"),
    "ThresholdedRelu": FusibleOp(
        ("thresholded_relu", 0, "alpha"), "tl.where({0} > {alpha}, {0}, full({0}, 0))"
    ),
    "Shrink": FusibleOp(
        CUSTOM,
        "tl.where({0} < -{lambd}, {0} + {bias}, "
        "tl.where({0} > {lambd}, {0} - {bias}, full({0}, 0)))",
        n_instructions=3,
    ),
    "Mish": FusibleOp("mish", "({0} * tanh(softplus({0})))"),
    "Swish": FusibleOp(("swish", 0, "alpha"), _SIGMOID),
    "SwiGLU": FusibleOp(
        ("mul", ("swish", 0, "alpha"), 1), "({0} * sigmoid({0} * {alpha}) * {1})", n_instructions=2
    ),
    "Gelu": FusibleOp(CUSTOM, CUSTOM),
    # Logic, bits and comparisons
    "Not": FusibleOp("logical_not", "({0} == 0)", BOOL),
    "And": FusibleOp("bit_and", "({0} & {1})", BOOL),
    "Or": FusibleOp("bit_or", "({0} | {1})", BOOL),
    "Xor": FusibleOp("bit_xor", "({0} ^ {1})", BOOL),
    "BitwiseNot": FusibleOp("bit_not", "(~{0})", INT),
    "BitwiseAnd": FusibleOp("bit_and", "({0} & {1})", INT),
    "BitwiseOr": FusibleOp("bit_or", "({0} | {1})", INT),
    "BitwiseXor": FusibleOp("bit_xor", "({0} ^ {1})", INT),
    "BitShift": FusibleOp(CUSTOM),
    "Equal": FusibleOp("equal", "({0} == {1})", NUMBER, True),
    "Greater": FusibleOp("greater", "({0} > {1})", NUMBER, True),
    "Less": FusibleOp("less", "({0} < {1})", NUMBER, True),
    "GreaterOrEqual": FusibleOp("greater_equal", "({0} >= {1})", NUMBER, True),
    "LessOrEqual": FusibleOp("less_equal", "({0} <= {1})", NUMBER, True),
    "IsNaN": FusibleOp("is_nan", "({0} != {0})"),
    "IsInf": FusibleOp(("is_inf", 0, "detect_negative", "detect_positive"), CUSTOM),
    "Where": FusibleOp("where", CUSTOM),
    "Cast": FusibleOp(CUSTOM, CUSTOM, n_instructions=3),
}
_MICROSOFT: Final = {
    "Gelu": FusibleOp(CUSTOM, CUSTOM),
    "FastGelu": FusibleOp(CUSTOM, CUSTOM, n_instructions=2),
    "BiasGelu": FusibleOp(("gelu", ("add", 0, 1)), "gelu({0} + {1})", n_instructions=2),
    "QuickGelu": FusibleOp(("swish", 0, "alpha"), _SIGMOID),
    "QOrderedGelu": FusibleOp(CUSTOM, n_instructions=3),
}
FUSIBLE: Final[dict[tuple[str, str], FusibleOp]] = {
    **{(ONNX, name): op for name, op in _STANDARD.items()},
    **{(MICROSOFT, name): op for name, op in _MICROSOFT.items()},
}
