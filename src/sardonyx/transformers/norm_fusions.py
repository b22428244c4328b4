"""Fusions of layer normalizations with the sums that they normalize."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.decomposition import need, present, ranked
from sardonyx.transformers.activation_fusions import biased
from sardonyx.transformers.fusion import Fusion, FusionBuilder, Replaced

_NORMALIZATIONS: Final = {
    (ONNX, "LayerNormalization"): "SkipLayerNormalization",
    (ONNX, "RMSNormalization"): "SkipSimplifiedLayerNormalization",
    (ONNX, "SimplifiedLayerNormalization"): "SkipSimplifiedLayerNormalization",
}


_DEFAULT_EPSILON: Final = 1e-12  # of SkipLayerNormalization


def skip_layer_norm(implicit: Collection[str]) -> Fusion:
    """Return the fusion of a sum and its normalization; other readers of the sum stay.

    `implicit` are results of nodes that have attributes that ONNX does not, such as a misspelt
    epsilon, and so no defined one: they get that of onnxruntime's optimizer.
    """

    def fuse(b: FusionBuilder, node: Node) -> Replaced:
        return _skip_layer_norm(b, node, node.outputs[0].name in implicit)

    return fuse


def _skip_layer_norm(b: FusionBuilder, node: Node, is_implicit: bool) -> Replaced:
    name = present(_NORMALIZATIONS.get(node.op.key), "not a layer normalization")
    total, y = input_of(node, 0), node.outputs[0]
    ranked(total)
    rank = total.tensor.rank
    need(node.attrs["axis"] in (-1, rank - 1) and rank == 3, "not over the last of three dims")
    need(not any(v.is_used for v in node.outputs[1:]), "the statistics are read")
    x, skip = _addends(total)
    scale, shift = input_of(node, 1), optional_input(node, 2)
    need(scale.tensor.rank == 1 and (shift is None or shift.tensor.rank == 1), "not vectors")
    vectors = [scale, shift] if name == "SkipLayerNormalization" else [scale]
    epsilon = _DEFAULT_EPSILON if is_implicit else node.attrs["epsilon"]
    options: dict[str, Any] = {"domain": MICROSOFT, "epsilon": epsilon}
    if len(total.uses) == 1 and not total.n_exits:
        return {y: b.node(name, x, skip, *vectors, **options).outputs[0]}
    fused = b.node(name, x, skip, *vectors, outputs=4, **options)
    return {y: fused.outputs[0], total: fused.outputs[3]}


def _addends(total: Value) -> tuple[Value, Value]:
    """Return the addends of a sum, neither of them constant; the second may lack the batch."""
    add = total.node
    need(add is not None and add.op.key == (ONNX, "Add"), "nothing is added")
    assert add is not None
    x, skip = input_of(add, 0), input_of(add, 1)
    ranked(x, skip)
    if x.tensor.shape != total.tensor.shape:
        x, skip = skip, x
    dims = total.tensor.dims
    shapes = (dims, (1, *dims[1:]), dims[1:])
    need(x.tensor.shape == dims and skip.tensor.shape in shapes, "the addends broadcast otherwise")
    need(not x.is_const and not skip.is_const, "an addend is constant")
    return x, skip


def bias_skip_layer_norm(b: FusionBuilder, node: Node) -> Replaced:
    """A bias of one addend becomes an input of SkipLayerNormalization."""
    need(node.op.key in ((MICROSOFT, n) for n in _NORMALIZATIONS.values()), "not a sum")
    simplified = node.op.name == "SkipSimplifiedLayerNormalization"
    slot = 3 if simplified else 4
    need(optional_input(node, slot) is None, "it has a bias")
    # As in onnxruntime's optimizer, only the first operand that is a sum may have the bias.
    for i in [i for i in (0, 1) if input_of(node, i).op == "Add"][:1]:
        found = biased(input_of(node, i))
        if found is not None and found[0].tensor.shape == node.outputs[0].tensor.shape:
            vectors = [optional_input(node, j) for j in range(2, slot)]
            inputs = [found[0], input_of(node, 1 - i), *vectors, found[1]]
            options: dict[str, Any] = {"domain": MICROSOFT, "epsilon": node.attrs["epsilon"]}
            fused = b.node(node.op.name, *inputs, outputs=len(node.outputs), **options)
            pairs = zip(node.outputs, fused.outputs, strict=True)
            return {old: new for old, new in pairs if old.is_used}
    return {}
