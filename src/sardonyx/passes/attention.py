"""Attention fusion: MatMul, scale, mask, Softmax and MatMul become one Attention node.

The match starts at each Softmax, goes up through the scores to the matmul of queries and keys, and
down to the matmul with the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Final

from sardonyx.base.log import logger
from sardonyx.base.records import frozen, replace
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.passes.algebra import permutation_of
from sardonyx.passes.replace import attribute_to, drop, replace_value, try_build
from sardonyx.passes.rule import NoMatch, need, present, ranked, scalar

KERNEL_TYPES: Final = (F32, F16, BF16)  # that the attention kernels compute in
# Scores from here down are masked out: exp of them is 0 whether they are added or substituted.
_MASKED_OUT: Final = -1e30


@frozen
class Scores:
    """The operands of softmax(scale * q k^T + the sum of masks)."""

    q: Value
    k: Value
    masks: tuple[Value, ...] = ()
    scale: float = 1.0
    # Dims before queries and keys of the scores to which masks that differ in them were added.
    groupings: frozenset[Shape] = frozenset()


def to_float32(b: Builder, x: Value | None) -> Value | None:
    """A mask or attention sink in float32, the type of the scores."""
    return None if x is None else b.cast(x, F32)


def fuse_attention(graph: Graph) -> None:
    """Fuse each attention in a graph and the bodies in it into one node."""
    for each in graph.family():
        for node in [n for n in each.nodes if n.op.key == (ONNX, "Softmax")]:
            b = Builder(each, each.scope)
            try_build(b, partial(_fuse, b, node), "fuse_attention", node)


def _fuse(b: Builder, softmax: Node) -> None:
    """Replace the attention around a Softmax; NoMatch if there is none."""
    x = input_of(softmax, 0)
    ranked(x)
    fact = x.tensor
    need(fact.dtype in KERNEL_TYPES, "no kernel of this type")
    need(softmax.attrs["axis"] in (-1, fact.rank - 1), "softmax is not along the last axis")
    matmul, nan_rows = value_matmul(softmax)
    # Softmax(scores) @ v: the kernel never stores the weights (flash attention).
    weights, v = input_of(matmul, 0), input_of(matmul, 1)
    need(v is not weights, "the weights are read twice")
    scores = matched_scores(b, x)
    mask = sum_of(b, scores.masks)
    _need_fitting_shapes(scores, mask, v, fact)
    # The kernel writes [.., rows, heads, width] directly where a Transpose would produce it.
    last = reader if (reader := only_reader(matmul.outputs[0])) is not None else matmul
    rows_first = last.op.name == "Transpose" and _swaps(last, -3, -2)
    out = (last if rows_first else matmul).outputs[0]
    mask = to_float32(b, mask)
    y = b.Attention(
        *(scores.q, scores.k, v, *(() if mask is None else (mask,))),
        domain=INTERNAL,
        like=out,
        scale=scores.scale,
        nan_rows=nan_rows,
        rows_first=int(rows_first),
    )
    logger.debug("attention at %s", softmax)
    attribute_to(b.new_nodes, matmul)
    replace_value(b.graph, out, y)
    drop(b.graph, [matmul, last])


def only_reader(value: Value) -> Node | None:
    """The only node that reads a value, if it is in the same graph; None otherwise.

    Shapes that are read of it do not count.
    """
    # A body may read the value as well, but may never run.
    readers = {n for n, _ in value.uses if n.op.name != "Shape"}
    if value.n_exits or len(readers) != 1:
        return None
    (reader,) = readers
    return reader if value.node is None or reader.graph is value.node.graph else None


def sum_of(b: Builder, masks: Sequence[Value]) -> Value | None:
    """The sum of additive masks, such as a causal mask and a padding mask; None without any."""
    return reduce(b.Add, masks) if masks else None


def value_matmul(softmax: Node) -> tuple[Node, int]:
    """The matmul of the weights with the values, and whether rows of NaN become zeros."""
    weights = softmax.outputs[0]
    nan_rows, reader = 0, only_reader(weights)
    if reader is None:
        weights, nan_rows = _without_nan(weights), 1
        reader = only_reader(weights)
    matmul = present(reader, "the weights have other readers")
    need(matmul.inputs[0] is weights, "the weights are not the left operand")
    need(matmul.op.key == ("", "MatMul") and matmul.graph is softmax.graph, "no matmul follows")
    return matmul, nan_rows


def _without_nan(weights: Value) -> Value:
    """The output of torch's safe softmax, Where(IsNaN(w), 0, w), if that reads the weights.

    A row is NaN if every key is masked out.
    """
    readers = {n.op.name: n for n, _ in weights.uses}
    is_read = weights.n_exits or readers.keys() != {"IsNaN", "Where"} or len(weights.uses) != 2
    need(not is_read, "the weights have other readers")
    where, test = readers["Where"], readers["IsNaN"]
    need(only_reader(test.outputs[0]) is where, "the test for NaN is read elsewhere")
    condition, yes, no = where.inputs
    is_test = condition is test.outputs[0] and no is weights and scalar(yes) == 0
    need(is_test, "NaN does not become zero")
    return where.outputs[0]


def matched_scores(b: Builder, x: Value, masked_out: float = _MASKED_OUT) -> Scores:
    """The operands of the scores that a Softmax reads, from its input upwards.

    A score that is replaced by a number counts as masked out if that is at most `masked_out`.
    """
    need(only_reader(x) is not None, "the scores are read elsewhere")
    node = present(x.node, "the scores are an input")
    name, inputs = node.op.name, node.inputs
    # The recursion peels off one op at a time: the last op applied is met first.
    if name in ("Mul", "Div"):
        unscaled, factor = _scaled(node)
        inner = matched_scores(b, unscaled, masked_out)
        masks = tuple(b.Mul(mask, b.const(factor, mask.tensor.dtype)) for mask in inner.masks)
        return replace(inner, scale=inner.scale * factor, masks=masks)
    if name == "Add":
        # Either operand may be the mask: scores lead to a matmul.
        for score, mask in (inputs, inputs[::-1]):
            if score is not None and mask is not None and _may_be_scores(score):
                inner = matched_scores(b, score, masked_out)
                groupings = inner.groupings | _groupings(mask, node)
                return replace(inner, masks=(*inner.masks, mask), groupings=groupings)
    if name == "Where":
        return _replaced_scores(b, node, masked_out)
    if name == "Reshape" and _regroups_heads(node):
        return matched_scores(b, input_of(node, 0), masked_out)
    is_matmul = node.op.key in ((ONNX, "MatMul"), (MICROSOFT, "FusedMatMul"))
    need(is_matmul, "no matmul of queries and keys")
    return matmul_scores(b, node)


def _may_be_scores(value: Value) -> bool:
    """Whether a value may be scores: a matmul, or up to five ops after one."""
    # Scale, mask, Where and two Reshapes at most come between the matmul and the Softmax.
    for _ in range(6):
        node = value.node
        if node is None or only_reader(value) is None:
            return False
        if node.op.name in ("MatMul", "FusedMatMul"):
            return True
        if node.op.name not in ("Add", "Mul", "Div", "Where", "Reshape"):
            return False
        inputs = [v for v in node.inputs if v is not None and not v.is_const]
        if not inputs:
            return False
        value = inputs[1] if node.op.name == "Where" and len(inputs) > 1 else inputs[0]
    return False


def _replaced_scores(b: Builder, where: Node, masked_out: float) -> Scores:
    """The operands of scores of which a Where replaces some by a number that masks them out."""
    mask, yes, no = (input_of(where, i) for i in range(3))
    is_inverted = scalar(no) is None
    low, score = (yes, no) if is_inverted else (no, yes)
    number = present(scalar(low), "the other side is not a number")
    need(number <= masked_out, "the other side is not a masked-out score")
    # Where(mask, score, low) is score + Where(mask, 0, low), as low masks out either way. Other
    # masks take the place of the 0: their sum with low may be infinite.
    inner = matched_scores(b, score, masked_out)
    others = sum_of(b, inner.masks)
    seen = b.const(0.0, score.tensor.dtype) if others is None else others
    added = b.Where(mask, low, seen) if is_inverted else b.Where(mask, seen, low)
    return replace(inner, masks=(added,), groupings=inner.groupings | _groupings(mask, where))


def _groupings(mask: Value, masked: Node) -> frozenset[Shape]:
    """The dims before queries and keys of masked scores, unless the mask is the same in all."""
    scores = masked.outputs[0]
    ranked(mask, scores)
    is_shared = all(size == 1 for size in mask.tensor.dims[:-2])
    return frozenset() if is_shared else frozenset((scores.tensor.dims[:-2],))


def _regroups_heads(node: Node) -> bool:
    """Whether a Reshape only merges or splits the dims before queries and keys."""
    x, y = input_of(node, 0), node.outputs[0]
    ranked(x, y)
    return min(x.tensor.rank, y.tensor.rank) > 2 and x.tensor.dims[-2:] == y.tensor.dims[-2:]


def _scaled(node: Node) -> tuple[Value, float]:
    """The operand of a multiplication or division by one number, and the factor."""
    left, right = input_of(node, 0), input_of(node, 1)
    if scalar(left) is not None and node.op.name == "Mul":
        left, right = right, left
    number = present(scalar(right), "not scaled by a number")
    need(number, "scaled by zero")
    need(right.tensor.rank <= left.tensor.rank, "the number adds dims")
    return left, number if node.op.name == "Mul" else 1 / number


def matmul_scores(b: Builder, node: Node) -> Scores:
    """The scores of a matmul of queries and keys, with the scales of its operands."""
    q, k = input_of(node, 0), input_of(node, 1)
    scale, is_transposed = 1.0, False
    if node.op.name == "FusedMatMul":
        plain = not any(node.attrs[n] for n in ("transA", "transBatchA", "transBatchB"))
        need(plain, "queries are transposed")
        scale, is_transposed = node.attrs["alpha"], bool(node.attrs["transB"])
    # Exporters scale q and k by sqrt(scale) each, against overflow in float16.
    q, factor = _unscaled(q)
    scale *= factor
    k, factor = _unscaled(k)
    scale *= factor
    if not is_transposed:
        k, factor = _unscaled(_transposed_keys(b, k))
        scale *= factor
    return Scores(q, k, (), scale)


def _unscaled(value: Value) -> tuple[Value, float]:
    """A value without the number that it is multiplied by, and that number."""
    node = value.node
    if node is None or node.op.name not in ("Mul", "Div") or node.op.domain:
        return value, 1.0
    try:
        return _scaled(node)
    except NoMatch:
        return value, 1.0


def _transposed_keys(b: Builder, value: Value) -> Value:
    """Keys with their last two axes swapped; undoes a Transpose where there is one."""
    node, rank = value.node, value.tensor.rank
    if node is not None and node.op.name == "Transpose":
        perm, x = permutation_of(node), input_of(node, 0)
        swapped = (*perm[:-2], perm[-1], perm[-2])
        # The exporter transposed the keys for the matmul: the kernel reads them untransposed.
        if swapped == tuple(range(rank)):
            return x
        if _swaps(node, -1, -2) or x.op != "Transpose":
            return b.Transpose(x, perm=swapped)
    if (inner := _stacked_transpose(value)) is not None:
        return inner
    return b.Transpose(value, perm=(*range(rank - 2), rank - 1, rank - 2))


def _operand_of(value: Value | None, op: str) -> Value | None:
    """The first input of the node that computes a value, if it is of this op."""
    node = None if value is None or value.op != op else value.node
    return None if node is None else node.inputs[0]


def _stacked_transpose(value: Value) -> Value | None:
    """The input of Reshape to 3-D, Transpose and Reshape back, which transpose a stack."""
    transposed = _operand_of(value, "Reshape")
    stacked = _operand_of(transposed, "Transpose")
    x = _operand_of(stacked, "Reshape")
    if transposed is None or transposed.node is None or stacked is None or x is None:
        return None
    # x is [.., a, b], value [.., b, a].
    fact, dims = x.fact, value.tensor.dims
    if not isinstance(fact, Fact) or fact.shape is None or not _swaps(transposed.node, -1, -2):
        return None
    # Stacking and unstacking must undo each other but for the swapped axes.
    is_same = fact.dims == (*dims[:-2], dims[-1], dims[-2])
    return x if is_same and stacked.tensor.dims[-2:] == fact.dims[-2:] else None


def _swaps(node: Node, a: int, b: int) -> bool:
    """Whether a Transpose swaps these two axes and no others."""
    perm = node.attrs["perm"]
    if not perm or len(perm) < -min(a, b):
        return False
    # The identity with two entries exchanged.
    order = list(range(len(perm)))
    order[a], order[b] = order[b], order[a]
    return order == list(perm)


def _need_fitting_shapes(operands: Scores, mask: Value | None, v: Value, scores: Fact) -> None:
    """Abandon the fusion unless the operands provably fit without broadcasting."""
    ranked(operands.q, operands.k, v)
    q, k, values = (value.tensor for value in (operands.q, operands.k, v))
    need(q.rank == k.rank == values.rank == scores.rank, "ranks differ")
    need(q.dims[:-2] == k.dims[:-2] == values.dims[:-2] == scores.dims[:-2], "heads differ")
    need((q.dims[-2], k.dims[-2]) == scores.dims[-2:], "the mask adds queries or keys")
    if mask is None:
        return
    ranked(mask)
    need(mask.tensor.rank <= scores.rank, "the mask adds dims")
    need(operands.groupings <= {scores.dims[:-2]}, "heads are regrouped after a mask")
    # The mask alone may broadcast, but must not add heads, queries or keys.
    pairs = zip(reversed(mask.tensor.dims), reversed(scores.dims), strict=False)
    need(all(m in (1, s) for m, s in pairs), "the mask adds heads")
