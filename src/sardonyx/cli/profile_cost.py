"""The cost of a step, by its shapes: arithmetic operations and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import sardonyx._native as native
from sardonyx.graph.graph import Node
from sardonyx.ops.moe.standard import is_fused
from sardonyx.program.operands import Operands
from sardonyx.reports.trace import TimedStep


class Cost(NamedTuple):
    """The work that a step cannot avoid."""

    operations: int  # multiplications and additions
    type: str  # of the multiplications, one of roofline.TYPES
    n_bytes: int  # read and written, each once


# Report labels for kernels, and for kernel families, whose name is not the label.
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
    rule = RULES.get(step.kernel.removesuffix(_BF16))
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


def _experts(node: Node, operands: Operands) -> int:
    """Count the matmuls of the chosen experts of each token."""
    x, first = _dims(operands, 0), _dims(operands, 2)
    gate_rows = 0 if operands.inputs[8] is None else _dims(operands, 8)[1]
    inner = first[1] // 2 if is_fused(node.attrs) else first[1]
    return 2 * math.prod(x) * int(node.attrs["k"]) * (first[1] + inner + gate_rows)


def _dense_features(node: Node, operands: Operands) -> int:
    """Count dot products of each row with weights or support vectors."""
    return 2 * math.prod(_dims(operands, 0)[:-1]) * math.prod(_dims(operands, 1))


def _padded_targets(node: Node, operands: Operands) -> int:
    """Count dot products of each row with the weights of targets, which have padding."""
    scores = operands.outputs[-1]
    assert scores is not None
    return 2 * math.prod(scores.dims) * _dims(operands, 1)[0]


def _elimination(operands: Operands) -> int:
    """Count the products and sums of the inversion of each matrix."""
    x = _dims(operands, 0)
    return 2 * math.prod(x) * x[-1]


def _convolution(node: Node, operands: Operands) -> int:
    """Count the products of each output with its window; of each input, if it is transposed."""
    is_transposed = node.op.name == "ConvTranspose"
    count = math.prod(_dims(operands, 0)) if is_transposed else _output_count(operands)
    return 2 * count * math.prod(_weights(node, operands)[1:])


def _weight_gradient(node: Node, operands: Operands) -> int:
    """Count the products of each element of dy with the window that its output has read."""
    dw = operands.outputs[0]
    assert dw is not None
    return 2 * math.prod(_dims(operands, 1)) * math.prod(dw.dims[1:])


def _attention(node: Node, operands: Operands) -> int:
    """Count scores and weighted sums of the keys in each row's window; masked ones are computed."""
    q, k, v = (_dims(operands, i) for i in range(3))
    rows, keys = q[-2], k[-2]
    has_spans = len(operands.inputs) > 4 and operands.inputs[4] is not None
    first = keys - rows if node.attrs["bottom_right"] or has_spans else 0
    window = node.attrs["window_left"], node.attrs["window_right"]
    pairs = _visible_pairs(range(first, first + rows), keys, window)
    return 2 * math.prod(q[:-2]) * pairs * (q[-1] + v[-1])


def _visible_pairs(positions: range, keys: int, window: tuple[int, int]) -> int:
    """Count the pairs of a query at one of `positions` and a key in its window; -1: no bound."""
    left, right = window
    pairs = 0
    for position in positions:
        last = keys if right < 0 else min(keys, position + right + 1)
        pairs += max(0, last - (0 if left < 0 else max(0, position - left)))
    return pairs


def _training_attention(node: Node, operands: Operands) -> int:
    """Count two matmuls over the pairs of queries and keys; the gradient has five.

    It recomputes the scores, and computes the gradients of probabilities, q, k and v.
    """
    q, k, v = (_dims(operands, i) for i in range(3))
    pairs = _visible_pairs(range(q[2]), k[2], (-1, 0 if node.attrs["is_causal"] else -1))
    per_pair = q[3] + v[3]
    if node.op.name == "AttentionGradient":
        per_pair = 3 * q[3] + 2 * v[3]
    return 2 * math.prod(q[:2]) * pairs * per_pair


def _linear_attention(node: Node, operands: Operands) -> int:
    """Count products with a head's state, per token: k v^T, q S, and k^T S of the delta rule."""
    batch, length, hidden = _dims(operands, 0)
    q_heads, kv_heads = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    depth, width = hidden // q_heads, _dims(operands, 2)[2] // kv_heads
    has_decay, has_rate = (operands.inputs[i] is not None for i in (4, 5))
    per_element = 2 * max(q_heads, kv_heads) + kv_heads * (2 + has_decay + 2 * has_rate)
    return int(batch * length * depth * width * per_element)


def _recurrence(node: Node, operands: Operands) -> int:
    steps = math.prod(_dims(operands, 0)[:2])  # time steps of all sequences
    return 2 * steps * sum(math.prod(_weights(node, operands, i)) for i in (1, 2))


def _recurrence_by_state(node: Node, operands: Operands) -> int:
    """Count the products with the recurrent weights only, the second input."""
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


def _loss(node: Node, operands: Operands) -> int:
    """Count the softmax of a cross entropy."""
    if node.op.name != "SoftmaxCrossEntropyLoss":
        return 0
    return 2 * math.prod(_dims(operands, 0)) * _FUNCTIONS["Softmax"]


_CONVOLUTIONS: Final = (
    "conv", "conv_depthwise_f32", "conv_depthwise_unpacked_f32", "conv_f32",
    "conv_few_channels_f32", "conv_flipped_unpacked_f32", "conv_transpose_f32",
    "conv_transpose_unpacked_f32", "conv_unpacked_f32", "conv_winograd_f32",
    "conv_winograd_flipped_unpacked_f32", "conv_winograd_unpacked_f32", "qconv", "qdepthwise",
    "qgrouped",
)  # fmt: skip
_BY_STATE: Final = ("gru_backward", "lstm_backward", "quantized_lstm", "rnn_backward")
# Rules by kernel, without the suffix of bfloat16. Other kernels are bound by memory.
RULES: Final[Mapping[str, Callable[[Node, Operands], int]]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(("attention_gradient", "attention_training"), _training_attention),
    **dict.fromkeys(("chain", "log_softmax", "reduce_log_sum_exp", "softmax"), _functions),
    **dict.fromkeys(("conv_weight_gradient_f32", "conv_winograd_gradient_f32"), _weight_gradient),
    **dict.fromkeys(("gru", "lstm", "rnn"), _recurrence),
    **dict.fromkeys(("linear_f32", "linear_f64", "svm"), _dense_features),
    **dict.fromkeys(("matmul", "matmul_packed", "qmatmul"), _matmul),
    **dict.fromkeys(("matmul_nbits", "matmul_nbits_transposed"), _n_bit_matmul),
    **dict.fromkeys(_BY_STATE, _recurrence_by_state),
    "attention": _attention,
    "linear_attention": _linear_attention,
    "linear_columns_f32": _padded_targets,
    "loss": _loss,
    "matrix_determinant": lambda node, operands: _elimination(operands) // 3,
    "matrix_inverse": lambda node, operands: _elimination(operands),
    "moe": _experts,
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
