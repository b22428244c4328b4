"""QLSTM: the recurrence of a DynamicQuantizeLSTM, after a matmul has computed the input gates."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, I8, I32, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.recurrent.dynamic_quantize import quantized_projection
from sardonyx.ops.recurrent.standard import (
    ATTRS,
    Cell,
    LayerInputs,
    activations_of,
    expect,
    layer_sizes,
    lstm_step,
    run_layer,
)

# `gates` holds the input's contribution, bias included, for all steps and directions.
qlstm: Final = Op(
    "QLSTM",
    1,
    "gates:T R:T2 R_scale:T R_zero_point:T2? sequence_lens:T1? initial_h:T? initial_c:T? P:T?",
    "Y:T? Y_h:T? Y_c:T?",
    domain=INTERNAL,
    attrs={**ATTRS, "input_forget": 0},
    types={"T": frozenset((F32,)), "T1": frozenset((I32,)), "T2": frozenset((I8, U8))},
)


@qlstm.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
    gates, r, scale, zero, lens, initial_h, initial_c, peepholes = facts
    size = layer_sizes(g, gates, r, 1, attrs)
    n, hidden = size.directions, size.hidden
    activations_of(attrs, 3, n)
    g.equal(size.inputs, hidden * 4 * n, "the gates do not fit the layer")
    expect(g, "R", r, (n, hidden, hidden * 4))
    for fact in (scale, zero):
        if fact is not None:
            expected: tuple[Size, ...] = (n,) if fact.rank == 1 else (n, hidden * 4)
            expect(g, "a scale or zero point", fact, expected)
    expect(g, "sequence_lens", lens, (size.batch,))
    expect(g, "initial_h", initial_h, size.state())
    expect(g, "initial_c", initial_c, size.state())
    expect(g, "P", peepholes, (n, hidden * 3))
    last = gates.shaped(size.state())
    return gates.shaped(size.output()), last, last


@qlstm.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    gates, r, scale, zero, lens, initial_h, initial_c, p = inputs
    functions, width = activations_of(attrs, 3, r.shape[0]), r.shape[2]

    def make(i: int, x: Array) -> tuple[Array, Cell]:
        recurrent = quantized_projection(r[i], scale[i], None if zero is None else zero[i])
        peepholes = None if p is None else p[i]
        step = lstm_step(recurrent, peepholes, functions[i], is_coupled=attrs["input_forget"])
        return x[..., i * width : (i + 1) * width], step

    with np.errstate(all="ignore"):
        return run_layer(LayerInputs(gates, lens, (initial_h, initial_c), r.shape[1]), make, attrs)


OPS: Final = (qlstm,)
