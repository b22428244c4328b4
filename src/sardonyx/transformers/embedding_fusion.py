"""Fusion of embeddings and their layer normalization into EmbedLayerNormalization."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Shape, same
from sardonyx.graph.dtype import I32, I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.decomposition import NoMatch, need, present, ranked
from sardonyx.transformers.fusion import FusionBuilder, Replaced, as_int32

_MASK: Final = 7  # the position of the mask in EmbedLayerNormalization


def embedding_mask(b: FusionBuilder, node: Node) -> Replaced:
    """EmbedLayerNormalization with a mask, whose ones per row it also counts."""
    need(node.op.key == (MICROSOFT, "EmbedLayerNormalization"), "not embeddings")
    need(optional_input(node, _MASK) is None and not node.outputs[1].is_used, "it has a mask")
    count, mask = _counted(b, node, input_of(node, 0).tensor.dims)
    given = [optional_input(node, i) for i in range(_MASK)]
    ids = optional_input(node, _MASK + 1)
    inputs = [*given, as_int32(b, mask), *([] if ids is None else [ids])]
    fused = b.node(
        "EmbedLayerNormalization",
        *inputs,
        outputs=3,
        domain=MICROSOFT,
        epsilon=node.attrs["epsilon"],
    )
    pairs = {old: new for old, new in zip(node.outputs, fused.outputs, strict=False) if old.is_used}
    return {**pairs, count: fused.outputs[1]}


def _counted(b: FusionBuilder, node: Node, dims: Shape) -> tuple[Value, Value]:
    """Return the lengths that an Attention reads, and the mask of ones that they count."""
    for count in [n for n in b.graph.nodes if n.op.key == (ONNX, "ReduceSum")]:
        axes, mask = optional_input(count, 1), input_of(count, 0)
        readers = [reader for reader, slot in count.outputs[0].uses if slot == 3]
        is_mask = any(reader.op.key == (MICROSOFT, "Attention") for reader in readers)
        if axes is None or axes.tensor.ints not in ((1,), (-1,)) or count.attrs["keepdims"]:
            continue
        if mask.op == "Cast" and mask.node is not None:
            mask = input_of(mask.node, 0)
        if is_mask and _may_be(mask, dims) and count.outputs[0].tensor.dtype is I32:
            return count.outputs[0], mask
    raise NoMatch(f"no mask of {node}")


def _may_be(mask: Value, dims: Shape) -> bool:
    """Whether a mask has these dims, as far as is known: often they are declared without names."""
    shape = mask.tensor.shape
    return (
        shape is not None
        and len(shape) == 2
        and all(same(a, b) is not False for a, b in zip(shape, dims, strict=True))
    )


@frozen
class _Embedding:
    """Rows of a constant table: by ids, or all of them in order."""

    table: Value
    ids: Value | None

    @property
    def n_rows(self) -> int:
        rows = self.table.tensor.dims[0]
        return rows if isinstance(rows, int) else 0


def embed_layer_norm(b: FusionBuilder, node: Node) -> Replaced:
    """EmbedLayerNormalization for the normalized sum of two or three embeddings."""
    total, terms, scale, shift = _normalized(node)
    y = node.outputs[0]
    ranked(y)
    need(y.tensor.rank == 3, "not over the last of three dims")
    found = [_embedding(b, value) for value in terms]
    need(len(found) in (2, 3), "not two or three embeddings")
    rows = y.tensor.dims[:2]
    # A position is the same in all samples, unless the model is fed with positions.
    shared = [e for e in found if e.ids is None or e.ids.tensor.shape != rows]
    need(len(shared) <= 1, "two embeddings have no batch")
    position = shared[0] if shared else min(found[1:], key=lambda e: -e.n_rows)
    is_whole = position.ids is not None or position.table.tensor.dims[0] == rows[1]
    need(is_whole, "a constant has other rows than there are positions")
    need(position.ids is None or _are_positions(position.ids, rows), "other positions")
    word, *rest = sorted((e for e in found if e is not position), key=lambda e: -e.n_rows)
    segment = rest[0] if rest else None
    ids = [None if e is None or e.ids is None else as_int32(b, e.ids)
           for e in (word, segment, position)]  # fmt: skip
    segments = None if segment is None else segment.table
    inputs = [ids[0], ids[1], word.table, position.table, segments]
    inputs += [scale, shift, *([] if ids[2] is None else [None, ids[2]])]
    fused = b.node(
        "EmbedLayerNormalization", *inputs, outputs=3, domain=MICROSOFT,
        epsilon=node.attrs["epsilon"],
    )  # fmt: skip
    b.label(fused.outputs[0], "output")
    b.label(fused.outputs[1], "dummy_mask_index")  # runtimes want it named, though unread
    # The normalization itself is one reader of a sum that it does not make.
    has_readers = len(total.uses) > (total.node is not node) or total.n_exits
    if has_readers:
        b.label(fused.outputs[2], "embedding_sum")
    return {y: fused.outputs[0]} | ({total: fused.outputs[2]} if has_readers else {})


def _are_positions(ids: Value, rows: Shape) -> bool:
    """Whether ids are a position for each row, which the op does not repeat over the rows."""
    batch, count = ids.tensor.dims
    return batch in (1, rows[0]) and (count != 1 or rows[1] == 1)


def _normalized(node: Node) -> tuple[Value, list[Value], Value, Value]:
    """Return the sum that is normalized, its terms, scale and shift."""
    if node.op.key == (MICROSOFT, "SkipLayerNormalization"):
        need(optional_input(node, 4) is None, "it has a bias")
        scale, shift = input_of(node, 2), optional_input(node, 3)
        need(len(node.outputs) < 4 or not any(v.is_used for v in node.outputs[1:3]), "statistics")
        terms = [term for i in (0, 1) for term in _terms_or_value(input_of(node, i))]
        total = node.outputs[3] if len(node.outputs) > 3 else Value("", node.outputs[0].fact)
        return total, terms, scale, present(shift, "there is no shift")
    need(node.op.key == (ONNX, "LayerNormalization"), "not a normalization")
    total, scale, shift = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    ranked(total)
    need(node.attrs["axis"] in (-1, total.tensor.rank - 1), "not over the last dim")
    need(not any(v.is_used for v in node.outputs[1:]), "the statistics are read")
    return total, _terms(total), scale, present(shift, "there is no shift")


def _terms(total: Value) -> list[Value]:
    """Return the terms of a sum of up to three."""
    add = total.node
    need(add is not None and add.op.key == (ONNX, "Add"), "nothing is added")
    assert add is not None
    terms: list[Value] = []
    for value in (input_of(add, 0), input_of(add, 1)):
        terms += _terms_or_value(value)
    return terms


def _terms_or_value(value: Value) -> list[Value]:
    is_inner = value.op == "Add" and len(value.uses) == 1 and not value.n_exits
    return _terms(value) if is_inner else [value]


def _embedding(b: FusionBuilder, value: Value) -> _Embedding:
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
