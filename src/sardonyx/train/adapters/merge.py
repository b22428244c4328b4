"""Merges adapters into the weights of a model: W becomes (W + A B) scaled by columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import U8
from sardonyx.graph.graph import Value, optional_input
from sardonyx.load.model import Model
from sardonyx.ops.builder import Builder
from sardonyx.ops.nbits.gather import unpack_codes
from sardonyx.ort.matmul_nbits_quantizer import quantized_blocks
from sardonyx.passes.replace import attribute_to, prune, replace_value
from sardonyx.train.adapters.insert import DOWN, SCALE, UP
from sardonyx.train.adapters.targets import LinearNode, by_label, editable


def merge(
    model: Any, adapter: str | os.PathLike[str] | Mapping[str, Any], *, requantize: bool = False
) -> Model:
    """Return a model with an adapter merged into its weights: no inputs or nodes are added.

    `adapter` is the path of an adapter file, or `Adapted.folded(parameters)`. Quantized weights
    become floats, which is exact and takes more memory; with `requantize`, weights of MatMulNBits
    are quantized again to their bits and block size, which rounds them a second time.
    """
    merged, parameters = editable(model), _parameters(adapter)
    if (before := merged.before_loss) is not None:
        merged.before_loss = lambda: merge(before(), parameters, requantize=requantize)
    layers = by_label(merged.graph)
    changes: dict[str, dict[str, Array]] = {}
    for name, array in parameters.items():
        label, suffix = next(
            ((name.removesuffix(s), s) for s in (DOWN, UP, SCALE) if name.endswith(s)), ("", "")
        )
        if label not in layers:
            raise InvalidArgument(
                f"the model has no linear layer for the adapter's parameter {name}",
                hint="merge into the model that the adapter was trained for; prefixes stay inputs",
            )
        changes.setdefault(label, {})[suffix] = array
    for label, change in changes.items():
        _replace_weight(layers[label], label, change, requantize)
    prune(merged.graph)
    return merged


def _parameters(adapter: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Array]:
    if isinstance(adapter, Mapping):
        return {name: np.asarray(array) for name, array in adapter.items()}
    from sardonyx.ort.adapters import AdapterFormat

    stored = AdapterFormat.read_adapter(adapter).get_parameters()
    return {name: value.numpy() for name, value in stored.items()}


def _replace_weight(
    layers: list[LinearNode], label: str, change: Mapping[str, Array], requantize: bool
) -> None:
    """Give all layers of one weight a new weight; other readers of the old one keep it."""
    weight = layers[0].dense()
    if (DOWN in change) != (UP in change):
        raise InvalidArgument(f"the adapter of {label} has only one of {DOWN} and {UP}")
    if DOWN in change:
        down, up = change[DOWN].astype(weight.dtype), change[UP].astype(weight.dtype)
        if (*down.shape[:1], *up.shape[1:]) != weight.shape or down.shape[1:] != up.shape[:1]:
            raise InvalidArgument(
                f"the adapter of {label} has the shapes {list(down.shape)} and {list(up.shape)}, "
                f"and the weight {list(weight.shape)}"
            )
        weight = weight + down @ up
    if SCALE in change:
        weight = weight * change[SCALE].astype(weight.dtype)
    quantizes = requantize and layers[0].is_quantized
    stored = (_requantized if quantizes else _as_float)(layers[0], label, weight)
    for layer in layers:
        b = Builder(layer.node.graph, layer.node.graph.scope)
        y = (_nbits_product if quantizes else _float_product)(b, layer, stored)
        attribute_to(b.new_nodes, layer.node)
        replace_value(layer.node.graph, layer.node.outputs[0], y)
        layer.node.graph.remove(layer.node)


def _as_float(layer: LinearNode, label: str, weight: Array) -> list[Value]:
    return [constant(ArrayConst(weight.astype(layer.dtype.np)), label + ".merged")]


def _float_product(b: Builder, layer: LinearNode, stored: list[Value]) -> Value:
    if layer.bias is None:
        return b.MatMul(layer.x, *stored)
    if layer.node.op.name == "Gemm":
        return b.Gemm(layer.x, *stored, layer.bias, beta=layer.node.attrs["beta"])
    return b.Add(b.MatMul(layer.x, *stored), layer.bias)


def _requantized(layer: LinearNode, label: str, weight: Array) -> list[Value]:
    """The codes, scales and, where the layer has them, zero points of a weight."""
    node = layer.node
    if node.op.name != "MatMulNBits" or optional_input(node, 4) is not None:
        raise InvalidArgument(
            f"{label} cannot be quantized again: {node} is not a MatMulNBits without g_idx",
            hint="leave out `requantize`, and quantize the merged model",
        )
    bits, zero = node.attrs["bits"], optional_input(node, 3)
    floats = weight.astype(layer.dtype.np)
    codes, scales, zeros = quantized_blocks(floats, node.attrs["block_size"], bits, zero is None)
    arrays = {".merged": codes, ".merged_scales": scales}
    if zero is not None:
        is_packed = zero.tensor.dtype is U8
        per_block = unpack_codes(zeros, bits)[:, : scales.shape[1]]
        arrays[".merged_zeros"] = zeros if is_packed else per_block.astype(scales.dtype)
    return [constant(ArrayConst(array), label + suffix) for suffix, array in arrays.items()]


def _nbits_product(b: Builder, layer: LinearNode, stored: list[Value]) -> Value:
    inputs: list[Value | None] = [layer.x, *stored]
    if layer.bias is not None:
        inputs += [None] * (5 - len(inputs)) + [layer.bias]
    op, attrs = layer.node.op, layer.node.attrs
    return b.node(op.name, *inputs, domain=op.domain, **attrs).outputs[0]
