"""Fusion of attention into Attention or MultiHeadAttention of com.microsoft."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen, replace
from sardonyx.graph.dtype import BOOL, I32
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.decomposition import need, ranked
from sardonyx.passes.attention import only_reader
from sardonyx.transformers.attention_masks import Masks, masks_of
from sardonyx.transformers.attention_match import (
    Attention,
    Heads,
    matched_attention,
    stack_of,
    stacked,
)
from sardonyx.transformers.fusion import Fusion, FusionBuilder, Replaced
from sardonyx.transformers.fusion_options import AttentionOpType, FusionOptions

_FILTER: Final = -1e4  # the default of mask_filter_value


@frozen
class AttentionOptions:
    """Options of the fusion: the fused op, and the interpretation of masks."""

    is_multi_head: bool = False  # never Attention
    has_bias: bool = True  # MultiHeadAttention adds the biases of projections
    is_decoder: bool = False  # masks of self-attention that can be causal are
    has_scale: bool = False  # the scale is written also if it is the default


@frozen
class _Linear:
    """A projection x W + b with constant W and b."""

    x: Value
    weight: Value
    bias: Value | None


@frozen
class _Projections:
    """The projections of one value to queries, keys and values."""

    x: Value
    weight: Value
    bias: Value | None
    sizes: tuple[int, ...]


def attention_options(model_type: str, options: FusionOptions) -> AttentionOptions:
    """Return the options that onnxruntime's optimizer has for a model type."""
    is_multi_head = options.use_multi_head_attention or (
        options.attention_op_type is AttentionOpType.MultiHeadAttention
    )
    return AttentionOptions(
        is_multi_head=model_type == "mmdit" or (is_multi_head and model_type != "bart"),
        has_bias=not options.disable_multi_head_attention_bias,
        is_decoder=model_type == "bart",
        has_scale=model_type == "mmdit",
    )


def attention(options: AttentionOptions) -> Fusion:
    """Return the fusion of attention with these options."""

    def fuse(b: FusionBuilder, node: Node) -> Replaced:
        found = matched_attention(b, node)
        _need_fitting_shapes(found)
        linears = [_linear(heads.projection) for heads in found.heads]
        if not options.is_multi_head and _fits_attention(found):
            projections = _projections(b, found, linears)
            if projections is not None:
                return _attention(b, found, projections, options)
        return _multi_head(b, found, linears, options)

    return fuse


def _need_fitting_shapes(found: Attention) -> None:
    q, k, v = (heads.value.tensor.dims for heads in found.heads)
    need(q[0] == k[0] == v[0], "batches differ")
    need(k[2] == v[2], "keys and values differ in number")
    pasts = found.k.past, found.v.past
    need((pasts[0] is None) == (pasts[1] is None), "only keys or values have a past")
    if pasts[0] is not None and pasts[1] is not None:
        need(pasts[0].tensor.dims[2] == pasts[1].tensor.dims[2], "the pasts differ")


def _linear(projection: Value | None) -> _Linear | None:
    """Return a projection by a constant matrix, with or without a bias."""
    if projection is None:
        return None
    node, bias = projection.node, None
    if node is not None and node.op.key == (ONNX, "Add"):
        for i in (0, 1):
            other = input_of(node, 1 - i)
            if other.is_const and input_of(node, i).op in ("MatMul", "Reshape"):
                bias, node = other, input_of(node, i).node
                break
    if node is None or (bias is not None and bias.tensor.rank != 1):
        return None
    if node.op.key == (ONNX, "Reshape") and bias is None:
        return _gemm(node)
    if node.op.key != (ONNX, "MatMul"):
        return None
    x, weight = input_of(node, 0), input_of(node, 1)
    ranked(x)
    is_linear = weight.is_const and weight.tensor.rank == 2 and x.tensor.rank == 3
    return _Linear(x, weight, bias) if is_linear else None


def _gemm(reshape: Node) -> _Linear | None:
    """Return a projection that a Gemm computes over merged batch and row dims."""
    gemm = input_of(reshape, 0).node
    if gemm is None or gemm.op.key != (ONNX, "Gemm"):
        return None
    attrs = gemm.attrs
    if attrs["transA"] or attrs["transB"] or attrs["alpha"] != 1 or attrs["beta"] != 1:
        return None
    merged = input_of(gemm, 0).node
    if merged is None or merged.op.key != (ONNX, "Reshape") or len(gemm.inputs) != 3:
        return None
    x, weight, bias = input_of(merged, 0), input_of(gemm, 1), input_of(gemm, 2)
    ranked(x)
    is_vector = weight.is_const and bias.is_const and bias.tensor.rank == 1
    expected = (*x.tensor.dims[:-1], weight.tensor.dims[1])
    is_same = x.tensor.rank == 3 and reshape.outputs[0].tensor.shape == expected
    return _Linear(x, weight, bias) if is_vector and is_same else None


def _fits_attention(found: Attention) -> bool:
    """Whether it is self-attention whose past, if any, is one tensor."""
    past = stacked(found.k.past, 0)
    if past is not stacked(found.v.past, 1) or (found.k.past is not None and past is None):
        return False
    return all(_is_read_once(heads) or _present(found) for heads in (found.k, found.v))


def _is_read_once(heads: Heads) -> bool:
    value = heads.value
    return not value.n_exits and len(value.uses) <= 2


def _present(found: Attention) -> Value | None:
    """Return the tensor [2, ...] of keys and values with their past."""
    return stack_of(found.k.whole, found.v.whole)


def _projections(
    b: FusionBuilder, found: Attention, linears: list[_Linear | None]
) -> _Projections | None:
    """Return the projections of one value; None for others."""
    sizes = tuple(heads.count * heads.width for heads in found.heads)
    packed = _packed(found)
    if packed is not None:
        return _Projections(packed.x, packed.weight, packed.bias, sizes)
    given = [linear for linear in linears if linear is not None]
    if len(given) < 3 or len({linear.x for linear in given}) > 1:
        return None
    weight = b.label(b.Concat(*[linear.weight for linear in given], axis=1), "qkv_weight")
    return _Projections(given[0].x, weight, _joined_bias(b, given, sizes), sizes)


def _packed(found: Attention) -> _Linear | None:
    """Return the packed QKV projection that is split into queries, keys and values."""
    projections = found.projections
    split = None if projections is None else projections[0].node
    if projections is None or split is None or split.op.key != (ONNX, "Split"):
        return None
    if split.attrs["axis"] not in (-1, 2) or tuple(split.outputs) != projections:
        return None
    if len({value.tensor.dims[2] for value in projections}) > 1:
        return None
    return _linear(input_of(split, 0))


def _joined_bias(b: FusionBuilder, linears: list[_Linear], sizes: tuple[int, ...]) -> Value | None:
    """Return the concatenated biases of projections, zeros for absent ones."""
    if all(linear.bias is None for linear in linears):
        return None
    dtype = linears[0].weight.tensor.dtype
    parts = [
        b.const(np.zeros(size), dtype) if linear.bias is None else linear.bias
        for linear, size in zip(linears, sizes, strict=True)
    ]
    return b.label(b.Concat(*parts, axis=0), "qkv_bias")


def _attention(
    b: FusionBuilder, found: Attention, given: _Projections, options: AttentionOptions
) -> Replaced:
    past, present = stacked(found.k.past, 0), _present(found)
    masks = _masks(b, found, options)
    inputs: list[Value | None] = [given.x, given.weight, given.bias]
    inputs += [masks.padding, past, masks.bias]
    while inputs[-1] is None:
        inputs.pop()
    attrs = _attrs(found, masks, options.has_scale)
    if len(set(given.sizes)) > 1:
        attrs["qkv_hidden_sizes"] = given.sizes
    b.prefix = "Attention" if past is None else "GptAttention"
    fused = b.node("Attention", *inputs, outputs=1 if present is None else 2, **attrs)
    result = fused.outputs[0]
    replaced = _replaced(b, found, masks, result)
    if present is not None:
        replaced[present] = fused.outputs[1]
    return replaced


def _multi_head(
    b: FusionBuilder,
    found: Attention,
    linears: list[_Linear | None],
    options: AttentionOptions,
) -> Replaced:
    masks, past = _masks(b, found, options), found.k.past
    has_past = past is not None
    query, key, value, bias = _operands(b, found, linears, options)
    inputs: list[Value | None] = [query, key, value, bias, masks.padding, masks.bias]
    inputs += [past, found.v.past]
    while inputs[-1] is None:
        inputs.pop()
    is_read = has_past or any(h.value.n_exits for h in (found.k, found.v))
    is_cached = is_read and key.tensor.rank == 3
    b.prefix = "Attention"
    fused = b.node(
        "MultiHeadAttention",
        *inputs,
        outputs=3 if is_cached else 1,
        **_attrs(found, masks, options.has_scale),
    )
    replaced = _replaced(b, found, masks, fused.outputs[0])
    if is_cached:
        replaced |= {found.k.whole: fused.outputs[1], found.v.whole: fused.outputs[2]}
    return replaced


def _operands(
    b: FusionBuilder,
    found: Attention,
    linears: list[_Linear | None],
    options: AttentionOptions,
) -> tuple[Value, Value, Value, Value | None]:
    """Return query, key, value and bias of a MultiHeadAttention."""
    k, v, query = found.k, found.v, _query(b, found.q)
    is_whole = found.projections is not None
    need(is_whole or k.past is None, "keys of a past are not projected")
    key, value = k.value, v.value
    if is_whole and k.projection is not None and v.projection is not None:
        key, value = k.projection, v.projection
    biased = _biased(linears, is_whole) if options.has_bias else None
    if biased is None:
        return query, key, value, None
    sizes = tuple(heads.count * heads.width for heads in found.heads)
    query, key, value = (
        operand if linear.bias is None else _product(operand)
        for operand, linear in zip((query, key, value), biased, strict=True)
    )
    return query, key, value, _joined_bias(b, biased, sizes)


def _query(b: FusionBuilder, q: Heads) -> Value:
    """Return the queries as [batch, rows, heads * head]."""
    if q.projection is not None:
        return q.projection
    rows_first = b.Transpose(q.value, perm=(0, 2, 1, 3))
    return b.Reshape(rows_first, b.ints(0, 0, q.count * q.width))


def _biased(linears: list[_Linear | None], is_whole: bool) -> list[_Linear] | None:
    """Return the projections whose biases a MultiHeadAttention adds; None without any."""
    first = linears[0]
    # A cross-attention cache includes the bias already: only the query gets it.
    empty = None if first is None else replace(first, bias=None)
    given = [linear for linear in (linears if is_whole else [first, empty, empty]) if linear]
    has_bias = len(given) == len(linears) and any(linear.bias is not None for linear in given)
    return given if has_bias else None


def _product(projection: Value) -> Value:
    """Return a projection without its bias."""
    node = projection.node
    assert node is not None
    return next(v for v in node.inputs if v is not None and not v.is_const)


def _masks(b: FusionBuilder, found: Attention, options: AttentionOptions) -> Masks:
    is_self = found.q.value.tensor.dims[2] == found.k.value.tensor.dims[2]
    return masks_of(b, found, is_self, options.is_decoder)


def _attrs(found: Attention, masks: Masks, has_scale: bool) -> dict[str, Any]:
    attrs: dict[str, Any] = {"domain": MICROSOFT, "num_heads": found.q.count}
    if has_scale or not math.isclose(found.scale, found.q.width**-0.5, rel_tol=1e-5):
        attrs["scale"] = found.scale
    if masks.is_causal:
        attrs["unidirectional"] = 1
    if masks.padding is not None and masks.low != _FILTER:
        attrs["mask_filter_value"] = masks.low
    return attrs


def _replaced(b: FusionBuilder, found: Attention, masks: Masks, result: Value) -> Replaced:
    """Return the value that the fused node's first output replaces."""
    whole = _with_zero_rows(b, found, masks, result)
    if found.dtype is not None:
        whole = b.cast(whole, found.dtype)
    if whole is not result:
        return {found.result: whole}
    end = _output_gemm(found.result)
    if end is None:
        return {found.result: result}
    linear, last = end
    b.label(result, "output")
    product = b.label_node(b.MatMul(result, linear.weight), "matmul")
    b.label(product, "matmul_output")
    return {last: b.label_node(b.Add(product, linear.bias), "add")}


def _with_zero_rows(b: FusionBuilder, found: Attention, masks: Masks, result: Value) -> Value:
    """Return the result with zeros for fully masked rows, if the model computes zeros."""
    zero = b.const(0.0, result.tensor.dtype)
    if found.hidden is not None:
        # The fused op computes the mean of all values there.
        is_hidden = b.ReduceMin(b.cast(found.hidden, I32), b.ints(3), keepdims=1)
        is_hidden = b.cast(b.Squeeze(is_hidden, b.ints(1)), BOOL)
        return b.Where(is_hidden, zero, result)
    if found.is_guarded and masks.bias is not None:
        # The fused op computes NaN there, which would spread through later layers.
        return b.Where(b.IsNaN(result), zero, result)
    return result


def _output_gemm(result: Value) -> tuple[_Linear, Value] | None:
    """Return the output projection, a Gemm over merged rows, and its result."""
    last, value = None, result
    for op in ("Reshape", "Gemm", "Reshape"):
        last = only_reader(value)
        if last is None or last.op.key != (ONNX, op):
            return None
        value = last.outputs[0]
    linear = None if last is None else _gemm(last)
    return None if linear is None or linear.x is not result else (linear, value)
