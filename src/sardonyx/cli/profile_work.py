"""How much there is to do in a step: operations and bytes, by its sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import sardonyx._native as native
from sardonyx.graph.graph import Node
from sardonyx.program.operands import Operand, Operands
from sardonyx.reports.trace import TimedStep


class Work(NamedTuple):
    """What a step has to do at least."""

    operations: int  # multiplications and additions
    type: str  # of what is multiplied, as `limits` names it
    n_bytes: int  # that are read and written once


# What the families of kernels are called; those of single rows come first.
_ROW_FAMILIES: Final[Mapping[str, str]] = {
    "qadd": "elementwise",
    "qconv": "int8 convolution",
    "qdepthwise": "int8 convolution",
    "qmatmul": "int8 product",
    "qmean": "reduction",
}
_FAMILIES: Final[Mapping[str, str]] = {
    "attention": "attention",
    "chain": "elementwise",
    "conv": "convolution",
    "custom": "custom op",
    "experts": "few-bit product",
    "gather": "movement",
    "gemm": "product",
    "linear_ml": "tabular",
    "move": "movement",
    "nbits": "few-bit product",
    "normalize": "normalization",
    "pool": "pooling",
    "quantize": "quantization",
    "recurrent": "recurrence",
    "reduce": "reduction",
    "resize": "resampling",
    "sample": "resampling",
    "select": "selection",
    "signal": "signal",
    "softmax": "normalization",
    "text": "text",
    "trees": "tabular",
}


def family(step: TimedStep) -> str:
    """What kind of work a step is; those that run elsewhere are named after where."""
    row = native.kernels.get(step.kernel) if step.provider == "cpu" else None
    if row is None:
        return "in Python" if step.provider == "reference" else f"on {step.provider}"
    return _ROW_FAMILIES.get(step.kernel) or _FAMILIES[row.family]


def work(step: TimedStep) -> Work:
    """The work of a step with the sizes that it had."""
    found, node = step.operands(), step.nodes[0]
    rule = _RULES.get(step.kernel.removesuffix(_BF16))
    operations = rule(node, found) if rule is not None and step.provider == "cpu" else 0
    return Work(operations, _type(step.kernel, node, found), _bytes(step.kernel, found))


def _dims(found: Operands, number: int) -> tuple[int, ...]:
    operand = found.inputs[number]
    assert operand is not None
    return operand.dims


def _made(found: Operands) -> int:
    """Elements of the first output."""
    operand = found.outputs[0]
    assert operand is not None
    return math.prod(operand.dims)


def _weights(node: Node, found: Operands, number: int = 1) -> tuple[int, ...]:
    """The dims of weights, which may have been packed since the model had them."""
    value = node.inputs[number]
    assert value is not None
    static = value.tensor.static
    return _dims(found, number) if static is None else static


def _product(node: Node, found: Operands) -> int:
    a = _dims(found, 0)
    depth = a[-2] if node.attrs.get("trans_a") else a[-1]
    return 2 * _made(found) * depth


def _few_bits(node: Node, found: Operands) -> int:
    return 2 * math.prod(_dims(found, 0)[:-1]) * int(node.attrs["K"]) * int(node.attrs["N"])


def _convolution(node: Node, found: Operands) -> int:
    return 2 * _made(found) * math.prod(_weights(node, found)[1:])


def _transposed(node: Node, found: Operands) -> int:
    return 2 * math.prod(_dims(found, 0)) * math.prod(_weights(node, found)[1:])


def _attention(node: Node, found: Operands) -> int:
    """Scores and sums of the keys that rows see by their places; what a mask hides is computed."""
    q, k, v = (_dims(found, i) for i in range(3))
    rows, keys = q[-2], k[-2]
    before, behind = node.attrs["before"], node.attrs["behind"]
    has_spans = len(found.inputs) > 4 and found.inputs[4] is not None
    first = keys - rows if node.attrs["at_end"] or has_spans else 0
    seen = 0
    for place in range(first, first + rows):
        last = keys if behind < 0 else min(keys, place + behind + 1)
        seen += max(0, last - (0 if before < 0 else max(0, place - before)))
    return 2 * math.prod(q[:-2]) * seen * (q[-1] + v[-1])


def _recurrence(node: Node, found: Operands) -> int:
    steps = math.prod(_dims(found, 0)[:2])  # times and sequences
    return 2 * steps * sum(math.prod(_weights(node, found, i)) for i in (1, 2))


def _quantized_recurrence(node: Node, found: Operands) -> int:
    return 2 * math.prod(_dims(found, 0)[:2]) * math.prod(_weights(node, found))


# Multiplications for an element, each with an addition or none, of short polynomials that give
# functions to their last bits. What takes the same units counts, too: looking up a coefficient, a
# first guess of a reciprocal, scaling by a power of two.
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


def _functions(node: Node, found: Operands) -> int:
    """Of each element that is read or made, whichever are more."""
    code = node.attrs.get("code")
    names = [node.op.name] if code is None else [i.op[1] for i in code]
    elements = max(_made(found), math.prod(_dims(found, 0)))
    return 2 * elements * sum(_FUNCTIONS.get(name, 0) for name in names)


_RULES: Final[Mapping[str, Callable[[Node, Operands], int]]] = {
    "attention": _attention,
    "chain": _functions,
    "conv": _convolution,
    "conv_depthwise_f32": _convolution,
    "conv_f32": _convolution,
    "conv_few_maps_f32": _convolution,
    "conv_transpose_f32": _transposed,
    "conv_unpacked_f32": _convolution,
    "conv_winograd_f32": _convolution,
    "gru": _recurrence,
    "log_softmax": _functions,
    "lstm": _recurrence,
    "matmul": _product,
    "matmul_nbits": _few_bits,
    "matmul_packed": _product,
    "qconv": _convolution,
    "qdepthwise": _convolution,
    "qmatmul": _product,
    "quantized_lstm": _quantized_recurrence,
    "reduce_log_sum_exp": _functions,
    "rnn": _recurrence,
    "softmax": _functions,
}
_BF16: Final = "_bf16"  # behind the names of rows that multiply it
_OF_BYTES: Final = ("qconv", "qdepthwise", "qmatmul", "quantized_lstm")
_IN_BYTES: Final = 4  # the accuracy level at which few-bit products multiply bytes


def _type(row: str, node: Node, found: Operands) -> str:
    if row in _OF_BYTES or (row == "matmul_nbits" and node.attrs["level"] == _IN_BYTES):
        return "int8"
    if row.endswith(_BF16):
        return "bfloat16"
    first = found.inputs[0] if found.inputs else None
    return "float64" if first is not None and first.type == "float64" else "float32"


def _bytes(row: str, found: Operands) -> int:
    sizes = [[_size(o) for o in side] for side in found]
    inputs, outputs = sizes
    if row in ("gather", "gather_dequantized", "gather_elements", "gather_nd") and inputs:
        inputs[0] = min(inputs[0], sum(outputs))  # of a table only what is asked for
    if row == "concat":
        outputs = [sum(inputs)]  # parts that lie there already are not moved
    if row.startswith("append"):  # new rows go behind the others
        inputs = [n for i, n in enumerate(inputs) if i not in (2, 3)]
        outputs = [inputs[0] + inputs[1], *outputs[2:]]
    return sum(inputs) + sum(outputs)


def _size(operand: Operand | None) -> int:
    return 0 if operand is None else operand.n_bytes
