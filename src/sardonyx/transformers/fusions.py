"""Fusions into ops of com.microsoft that other runtimes have kernels for.

They run on a graph that the portable passes have simplified, and are only for models that are
saved: Sardonyx's own lowering recognizes the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import I32, I64
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need, present, ranked
from sardonyx.passes.replace import attribute_to, drop, replace_value, try_build

Fusion = Callable[[Builder, Node], dict[Value, Value]]  # what replaces which values


def apply(graph: Graph, fusion: Fusion, name: str) -> int:
    """Apply a fusion wherever it matches, in the graph and its bodies; return how often."""
    count = 0
    for each in graph.family():
        for node in list(each.nodes):
            if node in each.nodes:
                count += _apply(Builder(each, each.scope), node, fusion, name)
        each.sort()
    return count


def _apply(b: Builder, node: Node, fusion: Fusion, name: str) -> bool:
    replaced = try_build(b, lambda: fusion(b, node), name, node)
    if not replaced:
        return False
    attribute_to(b.new_nodes, node)
    makers = [value.node for value in replaced if value.node is not None]
    for old, new in replaced.items():
        replace_value(b.graph, old, new)
    drop(b.graph, makers)
    return True


def gelu(b: Builder, node: Node) -> dict[Value, Value]:
    """Gelu of com.microsoft for the standard one, which opsets below 20 do not have."""
    need(node.op.key == (ONNX, "Gelu"), "not a Gelu")
    x, y = input_of(node, 0), node.outputs[0]
    is_tanh = node.attrs["approximate"] == b"tanh"
    return {y: b.node("FastGelu" if is_tanh else "Gelu", x, domain=MICROSOFT).outputs[0]}


def approximate_gelu(b: Builder, node: Node) -> dict[Value, Value]:
    """FastGelu for Gelu, which it approximates."""
    need(node.op.key in ((ONNX, "Gelu"), (MICROSOFT, "Gelu")), "not a Gelu")
    return {node.outputs[0]: b.node("FastGelu", input_of(node, 0), domain=MICROSOFT).outputs[0]}


def bias_gelu(b: Builder, node: Node) -> dict[Value, Value]:
    """BiasGelu, or FastGelu with a bias, for the Gelu of a sum with a constant vector."""
    names = {"Gelu": "BiasGelu", "FastGelu": "FastGelu"}
    need(node.op.domain == MICROSOFT and node.op.name in names, "not a Gelu")
    need(optional_input(node, 1) is None, "it has a bias")
    x, bias = present(_biased(input_of(node, 0)), "no vector is added")
    return {node.outputs[0]: b.node(names[node.op.name], x, bias, domain=MICROSOFT).outputs[0]}


def _biased(value: Value) -> tuple[Value, Value] | None:
    """Return a value and the constant vector that is added to it, for one reader only."""
    add = value.node
    if add is None or add.op.key != (ONNX, "Add") or len(value.uses) > 1 or value.n_exits:
        return None
    for i in (0, 1):
        x, bias = input_of(add, i), input_of(add, 1 - i)
        if x.tensor.shape and bias.is_const and bias.tensor.shape == x.tensor.dims[-1:]:
            return x, bias
    return None


_NORMALIZATIONS: Final = {
    (ONNX, "LayerNormalization"): "SkipLayerNormalization",
    (ONNX, "RMSNormalization"): "SkipSimplifiedLayerNormalization",
    (ONNX, "SimplifiedLayerNormalization"): "SkipSimplifiedLayerNormalization",
}


def skip_layer_norm(b: Builder, node: Node) -> dict[Value, Value]:
    """SkipLayerNormalization for the normalization of a sum; other readers of it stay."""
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
    options: dict[str, Any] = {"domain": MICROSOFT, "epsilon": node.attrs["epsilon"]}
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


def bias_skip_layer_norm(b: Builder, node: Node) -> dict[Value, Value]:
    """A bias of one addend becomes an input of SkipLayerNormalization."""
    need(node.op.key in ((MICROSOFT, n) for n in _NORMALIZATIONS.values()), "not a sum")
    simplified = node.op.name == "SkipSimplifiedLayerNormalization"
    slot = 3 if simplified else 4
    need(optional_input(node, slot) is None, "it has a bias")
    for i in (0, 1):
        biased = _biased(input_of(node, i))
        if biased is not None and biased[0].tensor.shape == node.outputs[0].tensor.shape:
            vectors = [optional_input(node, j) for j in range(2, slot)]
            inputs = [biased[0], input_of(node, 1 - i), *vectors, biased[1]]
            options: dict[str, Any] = {"domain": MICROSOFT, "epsilon": node.attrs["epsilon"]}
            fused = b.node(node.op.name, *inputs, outputs=len(node.outputs), **options)
            pairs = zip(node.outputs, fused.outputs, strict=True)
            return {old: new for old, new in pairs if old.is_used}
    return {}


@frozen
class _Embedding:
    """Rows of a constant table: by ids, or all of them in order."""

    table: Value
    ids: Value | None

    @property
    def n_rows(self) -> int:
        rows = self.table.tensor.dims[0]
        return rows if isinstance(rows, int) else 0


def embed_layer_norm(b: Builder, node: Node) -> dict[Value, Value]:
    """EmbedLayerNormalization for the normalized sum of two or three embeddings."""
    need(node.op.key == (ONNX, "LayerNormalization"), "not a LayerNormalization")
    total, y, shift = input_of(node, 0), node.outputs[0], optional_input(node, 2)
    ranked(total)
    need(total.tensor.rank == 3 and node.attrs["axis"] in (-1, 2), "not over the last of 3 dims")
    need(not any(v.is_used for v in node.outputs[1:]), "the statistics are read")
    shift = present(shift, "there is no shift")
    found = [_embedding(b, value) for value in _terms(total)]
    need(len(found) in (2, 3), "not two or three embeddings")
    rows = total.tensor.dims[:2]
    # A position is the same in all samples, unless the model is fed with positions.
    shared = [e for e in found if e.ids is None or e.ids.tensor.shape != rows]
    need(len(shared) <= 1, "two embeddings have no batch")
    position = shared[0] if shared else min(found[1:], key=lambda e: -e.n_rows)
    is_whole = position.ids is not None or position.table.tensor.dims[0] == rows[1]
    need(is_whole, "a constant has other rows than there are positions")
    need(position.ids is None or position.ids.tensor.dims[0] in (1, rows[0]), "other positions")
    word, *rest = sorted((e for e in found if e is not position), key=lambda e: -e.n_rows)
    segment = rest[0] if rest else None
    ids = [None if e is None or e.ids is None else b.cast(e.ids, I32)
           for e in (word, segment, position)]  # fmt: skip
    inputs = [
        ids[0],
        ids[1],
        word.table,
        position.table,
        None if segment is None else segment.table,
    ]
    inputs += [input_of(node, 1), shift, *([] if ids[2] is None else [None, ids[2]])]
    fused = b.node(
        "EmbedLayerNormalization", *inputs, outputs=3, domain=MICROSOFT,
        epsilon=node.attrs["epsilon"],
    )  # fmt: skip
    fused.outputs[1].name = "mask_index"  # onnxruntime wants it named, though nothing reads it
    has_readers = len(total.uses) > 1 or total.n_exits
    return {y: fused.outputs[0]} | ({total: fused.outputs[2]} if has_readers else {})


def _terms(total: Value) -> list[Value]:
    """Return the terms of a sum of up to three."""
    add = total.node
    need(add is not None and add.op.key == (ONNX, "Add"), "nothing is added")
    assert add is not None
    terms: list[Value] = []
    for value in (input_of(add, 0), input_of(add, 1)):
        is_inner = value.op == "Add" and len(value.uses) == 1 and not value.n_exits
        terms += _terms(value) if is_inner else [value]
    return terms


def _embedding(b: Builder, value: Value) -> _Embedding:
    ranked(value)
    if value.is_const:  # folded
        dims = value.tensor.dims
        need(len(dims) == 2 or (len(dims) == 3 and dims[0] == 1), "a constant with a batch")
        table = b.Squeeze(value, b.ints(0)) if len(dims) == 3 else value
        return _Embedding(table, None)
    node = value.node
    need(node is not None and node.op.key == (ONNX, "Gather"), "not an embedding")
    assert node is not None
    table, ids = input_of(node, 0), input_of(node, 1)
    ranked(table, ids)
    need(table.is_const and table.tensor.rank == 2 and node.attrs["axis"] in (0, -2), "no table")
    need(ids.tensor.rank == 2 and ids.tensor.dtype in (I32, I64), "ids are not of rank 2")
    return _Embedding(table, ids)
