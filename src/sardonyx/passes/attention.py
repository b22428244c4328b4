"""Attention as exporters spell it: a product, a scale, a mask, a softmax and a product."""

from __future__ import annotations

from typing import Final

from sardonyx.base.log import logger
from sardonyx.base.records import frozen, replace
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.passes.driver import drop
from sardonyx.passes.pattern import scalar
from sardonyx.passes.rule import NoMatch, need

KERNELS: Final = (F32, F16, BF16)  # types that they take
_SHUT: Final = -1e30  # a score so low that adding it and putting it there is the same


@frozen
class Scores:
    """scale * q k^T + mask."""

    q: Value
    k: Value
    mask: Value | None = None
    scale: float = 1.0


def wide_value(b: Builder, x: Value | None) -> Value | None:
    """A mask or a sink in the type that scores are computed in."""
    if x is None or x.tensor.dtype is F32:
        return x
    made: Value = b.Cast(x, to=F32.onnx)
    return made


def fuse_attention(graph: Graph) -> None:
    """Makes one node of each attention in a graph and the bodies in it."""
    for node in [n for n in graph.nodes if n.op.name == "Softmax" and not n.op.domain]:
        builder, n_guards = Builder(graph, graph.scope), len(graph.scope.found)
        try:
            _fuse(builder, node)
        except NoMatch as reason:
            for made in reversed(builder.made):
                graph.remove(made)
            del graph.scope.found[n_guards:]
            logger.debug("attention not at %s: %s", node, reason)
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            fuse_attention(body)


def _fuse(b: Builder, softmax: Node) -> None:
    x = softmax.inputs[0]
    assert x is not None
    fact = x.fact
    need(isinstance(fact, Fact) and fact.shape is not None, "the rank is not known")
    assert isinstance(fact, Fact)
    need(fact.dtype in KERNELS, "no type that has a kernel")
    need(softmax.attrs["axis"] in (-1, fact.rank - 1), "softmax is not along the last axis")
    product, zeroes = _reader(softmax)
    weights, v = product.inputs
    need(v is not None and v is not weights, "the weights are read twice")
    assert v is not None
    found = _scores(b, x)
    _check(found, v, fact)
    out = product.outputs[0]
    turned = only_reader(out)
    rows_first = turned is not None and turned.op.name == "Transpose" and _swaps(turned, -3, -2)
    out = turned.outputs[0] if turned is not None and rows_first else out
    masked = wide_value(b, found.mask)
    mask = () if masked is None else (masked,)
    made: Value = b.Attention(
        found.q,
        found.k,
        v,
        *mask,
        domain=INTERNAL,
        like=out,
        scale=found.scale,
        zeroes=zeroes,
        rows_first=int(rows_first),
    )
    logger.debug("attention at %s", softmax)
    made.name, out.name = out.name, ""
    for node in b.made:
        node.name, node.marks = product.name, product.marks
    b.graph.replace(out, made)
    drop(b.graph, [product, *([turned] if turned is not None else [])])


def only_reader(value: Value) -> Node | None:
    """The one node that reads a value, if there is just one and it is here."""
    readers = {n for n, _ in value.uses}
    if value.n_exits or len(readers) != 1:
        return None
    (reader,) = readers
    return reader if value.node is None or reader.graph is value.node.graph else None


def _reader(softmax: Node) -> tuple[Node, int]:
    """The product with the values, and whether rows that are NaN count as zeros."""
    weights = softmax.outputs[0]
    reader = only_reader(weights)
    if reader is None:
        names = {n.op.name: n for n, _ in weights.uses}
        need(not weights.n_exits and names.keys() == {"IsNaN", "Where"}, "the weights are read")
        where, test = names["Where"], names["IsNaN"]
        need(len(weights.uses) == 2 and only_reader(test.outputs[0]) is where, "no test for NaN")
        condition, yes, no = where.inputs
        is_test = condition is test.outputs[0] and no is weights and scalar(yes) == 0
        need(is_test, "no zeros in the place of NaN")
        reader = only_reader(where.outputs[0])
        need(reader is not None and reader.inputs[0] is where.outputs[0], "no values")
        zeroes = 1
    else:
        need(reader.inputs[0] is weights, "no values")
        zeroes = 0
    assert reader is not None
    need(reader.op.key == ("", "MatMul") and reader.graph is softmax.graph, "no product follows")
    return reader, zeroes


def _scores(b: Builder, x: Value) -> Scores:
    """What a softmax is taken of."""
    node = _inner(x)
    name, inputs = node.op.name, node.inputs
    if name in ("Mul", "Div"):
        inner, factor = _scaled(node)
        found = _scores(b, inner)
        need(found.mask is None, "the mask is scaled")
        return replace(found, scale=found.scale * factor)
    if name == "Add":
        for score, mask in (inputs, inputs[::-1]):
            if score is not None and mask is not None and _leads_to_product(score):
                return _masked(b, _scores(b, score), mask)
    if name == "Where":
        mask, score, low = inputs
        number = scalar(low)
        need(number is not None and number <= _SHUT, "shuts nothing out")
        assert mask is not None
        assert score is not None
        zero = b.const(0.0, score.tensor.dtype)
        found = _scores(b, score)
        need(found.mask is None, "a masked score is put aside, not lowered further")
        return _masked(b, found, b.Where(mask, zero, low))
    need(node.op.key in (("", "MatMul"), (MICROSOFT, "FusedMatMul")), "no product")
    return _product(b, node)


def _inner(value: Value) -> Node:
    node = value.node
    need(node is not None and only_reader(value) is not None, "the scores are read elsewhere")
    assert node is not None
    return node


def _leads_to_product(value: Value) -> bool:
    """Whether a value may be scores: a product, or what is done to one."""
    for _ in range(4):
        node = value.node
        if node is None or only_reader(value) is None:
            return False
        if node.op.name in ("MatMul", "FusedMatMul"):
            return True
        if node.op.name not in ("Add", "Mul", "Div", "Where"):
            return False
        inputs = [v for v in node.inputs if v is not None and not v.is_const]
        value = inputs[1] if node.op.name == "Where" and len(inputs) > 1 else inputs[0]
    return False


def _masked(b: Builder, found: Scores, mask: Value) -> Scores:
    if found.mask is not None:
        mask = b.Add(found.mask, mask)
    return replace(found, mask=mask)


def _scaled(node: Node) -> tuple[Value, float]:
    """The operand of a product with, or a quotient by, one number; and the factor."""
    left, right = node.inputs
    assert left is not None
    assert right is not None
    if scalar(left) is not None and node.op.name == "Mul":
        left, right = right, left
    number = scalar(right)
    need(number, "not scaled by a number")
    need(right.tensor.rank <= left.tensor.rank, "the number adds dims")
    assert number is not None
    return left, number if node.op.name == "Mul" else 1 / number


def _product(b: Builder, node: Node) -> Scores:
    q, k = node.inputs
    assert q is not None
    assert k is not None
    scale, is_turned = 1.0, False
    if node.op.name == "FusedMatMul":
        plain = not any(node.attrs[n] for n in ("transA", "transBatchA", "transBatchB"))
        need(plain, "queries are transposed")
        scale, is_turned = node.attrs["alpha"], bool(node.attrs["transB"])
    q, factor = _unscaled(q)
    scale *= factor
    k, factor = _unscaled(k)
    scale *= factor
    if not is_turned:
        k, factor = _unscaled(_turned(b, k))
        scale *= factor
    return Scores(q, k, None, scale)


def _unscaled(value: Value) -> tuple[Value, float]:
    """A value without the number that it is multiplied by."""
    node = value.node
    if node is None or node.op.name not in ("Mul", "Div") or node.op.domain:
        return value, 1.0
    try:
        return _scaled(node)
    except NoMatch:
        return value, 1.0


def _turned(b: Builder, value: Value) -> Value:
    """A matrix, or stack of them, transposed: what it was made of, where it was transposed."""
    node, rank = value.node, value.tensor.rank
    if node is not None and node.op.name == "Transpose":
        perm, x = node.attrs["perm"], node.inputs[0]
        assert x is not None
        order = tuple(perm) if perm else tuple(reversed(range(rank)))
        swapped = (*order[:-2], order[-1], order[-2])
        if swapped == tuple(range(rank)):
            return x
        if _swaps(node, -1, -2) or x.op != "Transpose":
            made: Value = b.Transpose(x, perm=swapped)
            return made
    inner = _turned_stack(value)
    if inner is not None:
        return inner
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    turned: Value = b.Transpose(value, perm=swapped)
    return turned


def _turned_stack(value: Value) -> Value | None:
    """What was joined to a stack of matrices, transposed there, and taken apart again."""
    apart = value.node
    if apart is None or apart.op.name != "Reshape" or apart.inputs[0] is None:
        return None
    turn = apart.inputs[0].node
    if turn is None or turn.op.name != "Transpose" or not _swaps(turn, -1, -2):
        return None
    joined = turn.inputs[0]
    join = None if joined is None else joined.node
    if joined is None or join is None or join.op.name != "Reshape" or join.inputs[0] is None:
        return None
    x, dims = join.inputs[0], value.tensor.dims
    fact = x.fact
    if not isinstance(fact, Fact) or fact.shape is None or joined.tensor.rank < 2:
        return None
    is_same = fact.dims == (*dims[:-2], dims[-1], dims[-2])
    return x if is_same and joined.tensor.dims[-2:] == fact.dims[-2:] else None


def _swaps(node: Node, a: int, b: int) -> bool:
    """Whether a Transpose swaps these two axes and no others."""
    perm = node.attrs["perm"]
    if not perm or len(perm) < -min(a, b):
        return False
    order = list(range(len(perm)))
    order[a], order[b] = order[b], order[a]
    return order == list(perm)


def _check(found: Scores, v: Value, scores: Fact) -> None:
    """Refuses operands that are not proven to go together as one step wants them."""
    facts = [value.fact for value in (found.q, found.k, v)]
    need(all(isinstance(f, Fact) and f.shape is not None for f in facts), "a rank is not known")
    q, k, values = (value.tensor for value in (found.q, found.k, v))
    lead = scores.dims[:-2]
    need(q.rank == k.rank == values.rank == scores.rank, "ranks differ")
    need(q.dims[:-2] == k.dims[:-2] == values.dims[:-2] == lead, "heads differ")
    need((q.dims[-2], k.dims[-2]) == scores.dims[-2:], "the mask adds queries or keys")
    if found.mask is None:
        return
    mask = found.mask.fact
    need(isinstance(mask, Fact) and mask.shape is not None, "the rank of the mask is not known")
    assert isinstance(mask, Fact)
    need(mask.rank <= scores.rank, "the mask adds dims")
    pairs = zip(reversed(mask.dims), reversed(scores.dims), strict=False)
    need(all(m in (1, s) for m, s in pairs), "the mask adds heads")
