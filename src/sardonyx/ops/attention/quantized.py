"""QAttention of com.microsoft: attention with an 8-bit input projection."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.projected import ProjectedInputs, attend_to_qkv, infer_projected
from sardonyx.ops.matmul.standard import matmul
from sardonyx.ops.quantize.matmul_conv import BYTES, check_single, exact_type

attention: Final = contrib_op(
    "QAttention",
    "input:T1 weight:T2 bias:T3 input_scale:T3 weight_scale:T3 mask_index:T4? input_zero_point:T1? "
    "weight_zero_point:T2? past:T3?",
    "output:T3 present:T3?",
    attrs={
        "do_rotary": 0,
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "past_present_share_buffer": 0,
        "scale": optional("float"),
        "unidirectional": 0,
    },
    types={"T1": BYTES, "T2": BYTES, "T3": frozenset((F32, F16)), "T4": frozenset((I32,))},
)


def projected_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the Attention after the projection.

    As in onnxruntime, do_rotary and past_present_share_buffer are ignored: there is no
    past_sequence_length input.
    """
    ignored = {"do_rotary": 0, "past_present_share_buffer": 0}
    return {**attrs, **ignored, "qkv_hidden_sizes": None, "rotary_embedding_dim": 0}


@attention.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> Any:
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = facts
    check_single(g, input_scale=x_scale, input_zero_point=x_zero)
    for name, fact in (("weight_scale", w_scale), ("weight_zero_point", w_zero)):
        if fact is not None and fact.rank:
            if fact.rank > 1 or w.rank != 2:
                raise InvalidGraph(f"{name} must be one number or one for each column, got {fact}")
            g.equal_or_one(fact.dims[0], w.dims[1], f"{name} does not fit the columns of weight")
    operands = (x.with_dtype(bias.dtype), w.with_dtype(bias.dtype), bias, mask, past, None, None)
    return infer_projected(g, *operands, **projected_attrs(attrs))


@attention.reference
def _(*arrays: Any, **attrs: Any) -> tuple[Array, ...]:
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = arrays
    # Integers in a float type that accumulates them exactly, so that BLAS does the product.
    dtype = exact_type(w.shape[0])
    left, right = x.astype(dtype), w.astype(dtype)
    left = left if x_zero is None else left - x_zero.reshape(()).astype(dtype)
    right = right if w_zero is None else right - w_zero.astype(dtype)
    total = np.asarray(matmul(left, right)).astype(np.float32)
    qkv = total * (wide(x_scale).reshape(()) * wide(w_scale)) + wide(bias)
    inputs = ProjectedInputs(x, w, bias, mask, past, None, None)
    return attend_to_qkv(inputs, qkv.astype(bias.dtype), projected_attrs(attrs))


OPS: Final = (attention,)
