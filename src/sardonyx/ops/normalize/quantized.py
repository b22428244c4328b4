"""Quantized normalizations: QEmbedLayerNormalization and QOrderedLayerNormalization."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32, I8, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, float32
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.inference import axis_of
from sardonyx.ops.normalize.embed import embed_reference, infer_embed
from sardonyx.ops.normalize.standard import layer_norm
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT, check_single
from sardonyx.ops.quantize.qdq import dequantize_node, quantize_node
from sardonyx.ops.quantize.qlinear import dequantized

embed: Final = Op(
    "QEmbedLayerNormalization",
    1,
    "input_ids:T1 segment_ids:T1? word_embedding_quant:T2 position_embedding_quant:T2 "
    "segment_embedding:T2? gamma_quant:T2 beta_quant:T2 mask:T1? word_embedding_scale:T "
    "position_embedding_scale:T segment_embedding_scale:T? gamma_scale:T beta_scale:T "
    "word_embedding_zero_point:T2 position_embedding_zero_point:T2 "
    "segment_embedding_zero_point:T2? gamma_zero_point:T2 beta_zero_point:T2",
    "layernorm_out:T mask_index_out:T1",
    domain=MICROSOFT,
    attrs={"epsilon": float32(1e-12)},
    types={"T": FLOAT, "T1": frozenset((I32,)), "T2": BYTES},
)


@embed.infer
def _(g: Scope, *facts: Any, epsilon: float) -> tuple[Fact, Fact]:
    inputs, params = facts[:8], facts[8:]
    names = (slot.name for slot in embed.inputs[8:])
    check_single(g, **dict(zip(names, params, strict=True)))
    is_present = [f is not None for f in (inputs[1], inputs[4], params[2], params[7])]
    if any(is_present) and not all(is_present):
        raise InvalidGraph("segment ids, their table, its scale and zero point: all or none")
    y, count, _ = infer_embed(g, *inputs, None)
    return y.with_dtype(F32), count


@embed.reference
def _(*arrays: Any, epsilon: float) -> tuple[Array, Array]:
    ids, segments, *tables, mask = arrays[:8]
    params = zip(tables, arrays[8:13], arrays[13:], strict=True)
    reals = [None if table is None else dequantized(table, *pair) for table, *pair in params]
    y, count, _ = embed_reference(ids, segments, *reals, mask, None, epsilon=epsilon)
    return y, count


def _gather_rows(b: Builder, table: Value, ids: Value) -> Value:
    """Rows of a table; negative ids are out of range, not counted from the end."""
    size = table.tensor.dims[0]
    need(isinstance(size, int), "the length of the table is unknown")
    # Gather accepts negative indices: replaced by an index that it rejects.
    checked = b.Where(b.Less(ids, 0), b.const(size, I32), ids)
    return b.Gather(table, checked, axis=0)


@embed.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QEmbedLayerNormalization."""
    ids, segments, words, positions, segment_table, _, _, mask, *scales = (
        optional_input(node, i) for i in range(18)
    )
    assert ids is not None
    assert words is not None
    pairs = list(zip(scales[:5], scales[5:], strict=True))
    total = dequantize_node(b, _gather_rows(b, words, ids), *pairs[0])
    rows = b.Shape(ids, start=1, end=2)
    positions = b.Slice(positions, b.ints(0), rows, b.ints(0))
    total = b.Add(total, dequantize_node(b, positions, *pairs[1]))
    if segments is not None and segment_table is not None:
        picked = _gather_rows(b, segment_table, segments)
        total = b.Add(total, dequantize_node(b, picked, *pairs[2]))
    vectors = [dequantize_node(b, input_of(node, 5 + i), *pairs[3 + i]) for i in range(2)]
    y = b.LayerNormalization(total, *vectors, axis=-1, epsilon=node.attrs["epsilon"])
    # The second output counts the unmasked tokens; without a mask it is 0.
    if mask is None:
        count = b.Expand(b.const(0, I32), b.Shape(ids, start=0, end=1))
    else:
        count = b.ReduceSum(b.Cast(b.Equal(mask, 1), to=I32.onnx), b.ints(1), keepdims=0)
    return y, count


qordered_layer_norm: Final = Op(
    "QOrderedLayerNormalization",
    1,
    "X:Q scale_X:S scale:F B:F? scale_Y:S",
    "Y:Q",
    domain=MICROSOFT,
    attrs={"axis": -1, "epsilon": float32(1e-5), "order_X": 1, "order_Y": 1},
    types={"Q": frozenset((I8,)), "S": frozenset((F32,)), "F": frozenset((F16, F32))},
)


@qordered_layer_norm.infer
def _(
    g: Scope, x: Fact, x_scale: Fact, scale: Fact, bias: Fact | None, y_scale: Fact, **attrs: Any
) -> Fact:
    if attrs["order_X"] != 1 or attrs["order_Y"] != 1:
        raise InvalidGraph("the orders of X and Y must be 1, row major")
    check_single(g, scale_X=x_scale, scale_Y=y_scale)
    width = x.dims[axis_of(attrs["axis"], x.rank) :]
    for each in (scale, bias):
        if each is not None and each.rank != len(width):
            raise InvalidGraph(f"{each} does not have the axes along which {x} is normalized")
    return x.without_contents()


@qordered_layer_norm.reference
def _(*arrays: Any, axis: int, epsilon: float, **_: Any) -> Array:
    x, x_scale, scale, bias, y_scale = arrays
    bias = None if bias is None else bias.astype(np.float32)
    real = x.astype(np.float32) * x_scale.reshape(())
    attrs = {"axis": axis, "epsilon": epsilon, "stash_type": F32.onnx}
    y: Array = layer_norm.run([real, scale.astype(np.float32), bias], attrs)[0]
    codes: Array = np.clip(np.rint(y / y_scale.reshape(())), -128, 127)
    return codes.astype(np.int8)


@qordered_layer_norm.decompose
def _(b: Builder, node: Node) -> Value:
    x, x_scale, scale, y_scale = (input_of(node, i) for i in (0, 1, 2, 4))
    bias = optional_input(node, 3)
    weights = (b.cast(scale, F32), None if bias is None else b.cast(bias, F32))
    real = dequantize_node(b, x, x_scale, None)
    axis, epsilon = node.attrs["axis"], node.attrs["epsilon"]
    y = b.LayerNormalization(real, *weights, axis=axis, epsilon=epsilon)
    return quantize_node(b, y, y_scale, None, I8)


OPS: Final = (embed, qordered_layer_norm)
