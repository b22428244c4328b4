"""DynamicQuantizeLSTM: an LSTM with 8-bit weights and dynamically quantized inputs and states.

QLSTM is its recurrence alone, after one matmul has computed the gates of all inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, contrib_op, internal_op
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import expect_dims, same_dims
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, need, present
from sardonyx.ops.quantize.dynamic import centred_weights, dynamic_quantized, integer_matmul
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT
from sardonyx.ops.recurrent.standard import (
    ATTRS,
    Cell,
    LayerInputs,
    LayerSizes,
    Matmul,
    activations_of,
    layer_sizes,
    lstm_step,
    run_layer,
)

dynamic_lstm: Final = contrib_op(
    "DynamicQuantizeLSTM",
    "X:T W:T2 R:T2 B:T? sequence_lens:T1? initial_h:T? initial_c:T? P:T? "
    "W_scale:T W_zero_point:T2 R_scale:T R_zero_point:T2",
    "Y:T? Y_h:T? Y_c:T?",
    attrs={**ATTRS, "input_forget": 0},
    types={"T": FLOAT, "T1": frozenset((I32,)), "T2": BYTES},
)


# `gates` holds the input's contribution, bias included, for all steps and directions.
qlstm: Final = internal_op(
    "QLSTM",
    "gates:T R:T2 R_scale:T R_zero_point:T2? sequence_lens:T1? initial_h:T? initial_c:T? P:T?",
    "Y:T? Y_h:T? Y_c:T?",
    attrs={**ATTRS, "input_forget": 0},
    types={"T": FLOAT, "T1": frozenset((I32,)), "T2": BYTES},
)


def _infer_lstm(
    g: Scope, attrs: dict[str, Any], x: Fact, r: Fact, params: Sequence[Fact | None], rest: Any
) -> LayerSizes:
    """Check R, its quantization parameters and `rest`, the inputs from sequence_lens on."""
    size = layer_sizes(g, x, r, 1, attrs)
    n, hidden = size.directions, size.hidden
    activations_of(attrs, 3, n)
    expect_dims(g, (n, hidden, hidden * 4), R=r)
    for fact in params:
        if fact is not None:
            expected: Shape = (n,) if fact.rank == 1 else (n, hidden * 4)
            same_dims(g, fact.dims, expected, "a scale or zero point")
    lens, initial_h, initial_c, peepholes = rest
    expect_dims(g, (size.batch,), sequence_lens=lens)
    expect_dims(g, size.state(), initial_h=initial_h, initial_c=initial_c)
    expect_dims(g, (n, hidden * 3), P=peepholes)
    return size


@dynamic_lstm.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
    x, w, r, b, *rest = facts
    size = _infer_lstm(g, attrs, x, r, rest[4:], rest[:4])
    expect_dims(g, (size.directions, size.inputs, size.hidden * 4), W=w)
    expect_dims(g, (size.directions, size.hidden * 8), B=b)
    last = x.shaped(size.state())
    return x.shaped(size.output()), last, last


@qlstm.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
    gates, r, scale, zero, *rest = facts
    size = _infer_lstm(g, attrs, gates, r, (scale, zero), rest)
    g.equal(size.inputs, size.hidden * 4 * size.directions, "the gates do not fit the layer")
    last = gates.shaped(size.state())
    return gates.shaped(size.output()), last, last


@dynamic_lstm.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    x, w, r, b, lens, initial_h, initial_c, p, *params = inputs
    w_scale, w_zero, r_scale, r_zero = params
    functions = activations_of(attrs, 3, w.shape[0])

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        length, batch, size = x.shape
        gates = _quantized_projection(w[i], w_scale[i], w_zero[i])(x.reshape(length * batch, size))
        if b is not None:
            gates = gates + b[i].reshape(2, -1).sum(axis=0)
        recurrent = _quantized_projection(r[i], r_scale[i], r_zero[i])
        peepholes = None if p is None else p[i]
        step = lstm_step(recurrent, peepholes, functions[i], is_coupled=attrs["input_forget"])
        return gates.reshape(length, batch, w.shape[2]), step

    with np.errstate(all="ignore"):
        return run_layer(LayerInputs(x, lens, (initial_h, initial_c), r.shape[1]), make, attrs)


@qlstm.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    gates, r, scale, zero, lens, initial_h, initial_c, p = inputs
    functions, width = activations_of(attrs, 3, r.shape[0]), r.shape[2]

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        recurrent = _quantized_projection(r[i], scale[i], None if zero is None else zero[i])
        peepholes = None if p is None else p[i]
        step = lstm_step(recurrent, peepholes, functions[i], is_coupled=attrs["input_forget"])
        return x[..., i * width : (i + 1) * width], step

    with np.errstate(all="ignore"):
        return run_layer(LayerInputs(gates, lens, (initial_h, initial_c), r.shape[1]), make, attrs)


def _quantized_projection(weights: Array, scale: Array, zero: Array | None) -> Matmul:
    """Return a matmul by 8-bit weights that quantizes its input dynamically, per tensor."""
    whole_weights = centred_weights(weights, None if zero is None else np.asarray(zero))

    def run(x: Array) -> Array:
        whole, step = dynamic_quantized(x)
        return np.asarray(integer_matmul(whole, whole_weights) * (step * scale))

    return run


@dynamic_lstm.decompose
def _(b: Builder, node: Node) -> Outputs:
    """DynamicQuantizeLSTM: one QMatMul for the inputs of all steps and directions."""
    x, w, r = (input_of(node, i) for i in range(3))
    bias, lens, initial_h, initial_c, p, *scales = (optional_input(node, i) for i in range(3, 12))
    need(w.is_const and r.is_const, "the weights are not constant")
    shape = present(w.tensor.static, "the sizes of the weights are not known")
    need(all(v is not None and v.is_const for v in scales), "scales vary")
    directions, inner, columns = shape
    w_scale, w_zero, r_scale, r_zero = (v.const.read() for v in scales if v and v.const)
    # [directions, inner, columns] as one matrix [inner, directions * columns].
    weights = b.Reshape(b.Transpose(w, perm=(1, 0, 2)), b.ints(inner, directions * columns))
    x_codes, scale, zero = b.node("DynamicQuantizeLinear", x, outputs=3).outputs
    if bias is not None:
        # ONNX has a bias for the input and one for the state: only their sum matters.
        both = b.Reshape(bias, b.ints(directions, 2, columns))
        bias = b.Reshape(b.ReduceSum(both, b.ints(1), keepdims=0), b.ints(-1))
    gates = b.QMatMul(
        x_codes, weights, scale, zero, b.const(_per_column(w_scale, shape)),
        b.const(_per_column(w_zero, shape)) if w_zero.any() else None, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    return b.node(
        "QLSTM",
        gates, r, b.const(r_scale), b.const(r_zero) if r_zero.any() else None, lens, initial_h,
        initial_c, p, domain=INTERNAL, outputs=len(node.outputs), **node.attrs,
    ).outputs  # fmt: skip


def _per_column(row: Array, shape: tuple[int, ...]) -> Array:
    """One number per column of all directions, from one per direction or per column."""
    directions, _, columns = shape
    each = row.reshape(directions, -1)
    return np.broadcast_to(each, (directions, columns)).reshape(-1).copy()


OPS: Final = (dynamic_lstm, qlstm)
