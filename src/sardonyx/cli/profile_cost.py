"""The cost of a step, by its shapes: arithmetic operations and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import sardonyx._native as native
from sardonyx.graph.graph import Node
from sardonyx.program.operands import Operands
from sardonyx.reports.trace import TimedStep


class Cost(NamedTuple):
    """The work that a step cannot avoid."""

    operations: int  # multiplications and additions
    type: str  # of the multiplications, one of roofline.TYPES
    n_bytes: int  # read and written, each once


# Names in the report of kernels and kernel families that differ from their own family's name.
_KERNEL_FAMILIES: Final[Mapping[str, str]] = {
    "gather_dequantized": "movement",
    "qadd": "elementwise",
    "qconv": "int8 convolution",
    "qdepthwise": "int8 convolution",
    "qgrouped": "int8 convolution",
    "qmatmul": "int8 matmul",
    "qmean": "reduction",
}
_FAMILIES: Final[Mapping[str, str]] = {
    "conv": "convolution",
    "custom": "custom op",
    "estimators": "tabular",
    "features": "tabular",
    "gather": "movement",
    "moe": "n-bit matmul",
    "move": "movement",
    "nbits": "n-bit matmul",
    "normalize": "normalization",
    "quantize": "quantization",
    "recurrent": "recurrence",
    "reduce": "reduction",
    "resize": "resampling",
    "sample": "resampling",
    "select": "selection",
    "softmax": "normalization",
    "trees": "tabular",
}


def family(step: TimedStep) -> str:
    """Return the family of a step's kernel; steps outside of the CPU provider are named by it."""
    kernel = native.kernels.get(step.kernel) if step.provider == "cpu" else None
    if kernel is None:
        return "in Python" if step.provider == "reference" else f"on {step.provider}"
    return _KERNEL_FAMILIES.get(step.kernel) or _FAMILIES.get(kernel.family, kernel.family)


def cost(step: TimedStep) -> Cost:
    """Return the cost of a step with the shapes that it had."""
    operands, node = step.operands(), step.nodes[0]
    rule = _RULES.get(step.kernel.removesuffix(_BF16))
    operations = rule(node, operands) if rule is not None and step.provider == "cpu" else 0
    return Cost(operations, _type(step.kernel, node, operands), _bytes(step.kernel, operands))


def _dims(operands: Operands, number: int) -> tuple[int, ...]:
    operand = operands.inputs[number]
    assert operand is not None
    return operand.dims


def _output_count(operands: Operands) -> int:
    """Return the number of elements of the first output."""
    operand = operands.outputs[0]
    assert operand is not None
    return math.prod(operand.dims)


def _weights(node: Node, operands: Operands, number: int = 1) -> tuple[int, ...]:
    """Return the dims of weights in the model: the step may read them in a packed layout."""
    value = node.inputs[number]
    assert value is not None
    static = value.tensor.static
    return _dims(operands, number) if static is None else static


def _matmul(node: Node, operands: Operands) -> int:
    a = _dims(operands, 0)
    depth = a[-2] if node.attrs.get("trans_a") else a[-1]
    return 2 * _output_count(operands) * depth


def _n_bit_matmul(node: Node, operands: Operands) -> int:
    return 2 * math.prod(_dims(operands, 0)[:-1]) * int(node.attrs["K"]) * int(node.attrs["N"])


def _convolution(node: Node, operands: Operands) -> int:
    return 2 * _output_count(operands) * math.prod(_weights(node, operands)[1:])


def _transposed_convolution(node: Node, operands: Operands) -> int:
    return 2 * math.prod(_dims(operands, 0)) * math.prod(_weights(node, operands)[1:])


def _attention(node: Node, operands: Operands) -> int:
    """Count scores and weighted sums of the keys in each row's window; masked ones are computed."""
    q, k, v = (_dims(operands, i) for i in range(3))
    rows, keys = q[-2], k[-2]
    window_left, window_right = node.attrs["window_left"], node.attrs["window_right"]
    has_spans = len(operands.inputs) > 4 and operands.inputs[4] is not None
    first = keys - rows if node.attrs["bottom_right"] or has_spans else 0
    pairs = 0  # pairs of a query row and a key
    for position in range(first, first + rows):
        last = keys if window_right < 0 else min(keys, position + window_right + 1)
        pairs += max(0, last - (0 if window_left < 0 else max(0, position - window_left)))
    return 2 * math.prod(q[:-2]) * pairs * (q[-1] + v[-1])


def _recurrence(node: Node, operands: Operands) -> int:
    steps = math.prod(_dims(operands, 0)[:2])  # time steps of all sequences
    return 2 * steps * sum(math.prod(_weights(node, operands, i)) for i in (1, 2))


def _quantized_recurrence(node: Node, operands: Operands) -> int:
    return 2 * math.prod(_dims(operands, 0)[:2]) * math.prod(_weights(node, operands))


# Multiply-adds per element of a short polynomial with full float32 accuracy. Instructions for the
# same execution units count too: coefficient lookups, reciprocal estimates, scaling by 2^n.
_FUNCTIONS: Final[Mapping[str, int]] = {
    "Erf": 12,
    "Exp": 8,
    "Gelu": 12,
    "LogSoftmax": 6,
    "ReduceLogSumExp": 6,
    "Sigmoid": 9,
    "Softmax": 7,
    "Swish": 10,
    "Tanh": 13,
}


def _functions(node: Node, operands: Operands) -> int:
    """Count the functions of each element that is read or written, whichever are more."""
    code = node.attrs.get("code")
    names = [node.op.name] if code is None else [i.op[1] for i in code]
    elements = max(_output_count(operands), math.prod(_dims(operands, 0)))
    return 2 * elements * sum(_FUNCTIONS.get(name, 0) for name in names)


_CONVOLUTIONS: Final = (
    "conv", "conv_depthwise_f32", "conv_f32", "conv_few_channels_f32", "conv_unpacked_f32",
    "conv_winograd_f32", "qconv", "qdepthwise", "qgrouped",
)  # fmt: skip
_RULES: Final[Mapping[str, Callable[[Node, Operands], int]]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(("chain", "log_softmax", "reduce_log_sum_exp", "softmax"), _functions),
    **dict.fromkeys(("gru", "lstm", "rnn"), _recurrence),
    **dict.fromkeys(("matmul", "matmul_packed", "qmatmul"), _matmul),
    "attention": _attention,
    "conv_transpose_f32": _transposed_convolution,
    "matmul_nbits": _n_bit_matmul,
    "quantized_lstm": _quantized_recurrence,
}
_BF16: Final = "_bf16"  # suffix of kernels that multiply bfloat16
_INT8: Final = ("qconv", "qdepthwise", "qgrouped", "qmatmul", "quantized_lstm")
_INT8_LEVEL: Final = 4  # the accuracy level at which n-bit matmuls multiply int8


def _type(kernel: str, node: Node, operands: Operands) -> str:
    if kernel in _INT8 or (kernel == "matmul_nbits" and node.attrs["level"] == _INT8_LEVEL):
        return "int8"
    if kernel.endswith(_BF16):
        return "bfloat16"
    first = operands.inputs[0] if operands.inputs else None
    return "float64" if first is not None and first.type == "float64" else "float32"


def _bytes(kernel: str, operands: Operands) -> int:
    inputs, outputs = ([0 if o is None else o.n_bytes for o in side] for side in operands)
    if kernel in ("gather", "gather_dequantized", "gather_elements", "gather_nd") and inputs:
        inputs[0] = min(inputs[0], sum(outputs))  # only the gathered rows are read
    if kernel == "concat":
        outputs = [sum(inputs)]  # inputs that were written in place are not copied
    if kernel.startswith("append"):  # only new rows are written
        inputs = [n for i, n in enumerate(inputs) if i not in (2, 3)]
        outputs = [inputs[0] + inputs[1], *outputs[2:]]
    return sum(inputs) + sum(outputs)
