"""Lowering for providers with devices of their own, which take ops as ONNX has them."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.attention.fused import STAYS
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction
from sardonyx.passes.attention import wide_value
from sardonyx.passes.chains import fuse_chains
from sardonyx.passes.fold import FoldingBuilder
from sardonyx.passes.pattern import P, hole
from sardonyx.passes.rule import need, ranked, rule

REALS: Final = (F32, F16, BF16)
_LARGEST: Final = 1 << 40  # bytes of a constant that is made of others, which none outgrows
x, w, bias, other = hole("x"), hole("w"), hole("bias"), hole("other")


def widen_masks(graph: Graph) -> None:
    """For kernels of the CPU, which add masks of float32: those of nodes that stay there."""
    made: dict[tuple[Value, Graph], Value | None] = {}
    for node in list(graph.all_nodes()):
        if node.op.key != (INTERNAL, "Attention") or len(node.inputs) < 4:
            continue
        mask = node.inputs[3]
        if mask is None or mask.tensor.dtype is F32:
            continue
        key = (mask, node.graph)
        if key not in made:
            made[key] = wide_value(Builder(node.graph, node.graph.scope), mask)
        node.graph.set_input(node, 3, made[key])


def settle_masks(graph: Graph) -> None:
    """Masks are brought into the form that attention adds once, for all that read them."""
    made: dict[tuple[Value, int, int], Value] = {}
    for node in list(graph.all_nodes()):
        if node.op.key != (INTERNAL, "Attention") or len(node.inputs) < 4:
            continue
        q, mask = node.inputs[0], node.inputs[3]
        if q is None or mask is None:
            continue
        maker = mask.node
        if maker is not None and maker.op.key == (ONNX, "Cast") and maker.inputs[0] is not None:
            mask = maker.inputs[0] if maker.inputs[0].tensor.dtype in REALS else mask
        marks = int(node.attrs["zeroes"] == STAYS)
        key = (mask, q.tensor.dtype.onnx, marks)
        if key not in made or made[key].node not in node.graph.nodes:
            b = Builder(node.graph, node.graph.scope)
            made[key] = b.Mask(mask, domain=INTERNAL, to=q.tensor.dtype.onnx, marks=marks)
        node.graph.set_input(node, 3, made[key])
        node.attrs = {**node.attrs, "is_settled": 1}


def _per_column(w: Value, bias: Value) -> None:
    need(w.is_const and w.tensor.rank == 2, "no constant matrix")
    need(bias.is_const and bias.tensor.dims == w.tensor.dims[1:], "no constant for each column")


@rule(P.MatMul(x, w) + bias)
def product_bias(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """Libraries add a bias while they write a product."""
    ranked(x, w, bias)
    need(x.tensor.dtype in REALS and x.tensor.rank >= 2, "no product with an epilogue")
    _per_column(w, bias)
    code: Code = (Instruction((ONNX, "Add"), (0, 1), x.tensor.dtype),)
    made: Value = b.MatMul(x, w, bias, domain=INTERNAL, code=code)
    return made


_CONV: Final = P.Conv(x, w, rest=True).named("conv")


def _summed(b: Builder, conv: Node, other: Value, activation: bytes | None) -> Value:
    sizes = conv.outputs[0].tensor
    ranked(other)
    need(other.tensor.dims == sizes.dims and sizes.rank == 4, "not of the same sizes")
    need(not other.is_const and sizes.dtype in REALS, "no image is added")
    given = [*conv.inputs, None][:3]
    attrs = {**conv.attrs, **({} if activation is None else {"activation": activation})}
    made: Value = b.FusedConv(*given, other, domain=MICROSOFT, like=conv.outputs[0], **attrs)
    return made


@rule(P.Relu(_CONV + other))
def conv_sum_relu(b: Builder, x: Value, w: Value, conv: Node, other: Value) -> Value:
    """The end of a residual block in one call."""
    return _summed(b, conv, other, b"Relu")


RULES: Final = (*product_bias, *conv_sum_relu)

# Normalizations by the op that also adds; whether it has a shift.
_JOINED: Final = {
    "LayerNormalization": ("SkipLayerNormalization", True),
    "RMSNormalization": ("SkipSimplifiedLayerNormalization", False),
    "SimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", False),
}


def join_sums(graph: Graph) -> None:
    """Fuse each sum with the normalization that reads it, in a graph and the bodies in it."""
    for part in graph.family():
        _join_sums(part)


def _join_sums(graph: Graph) -> None:
    for node in list(graph.nodes):
        name, has_shift = _JOINED.get(node.op.name, ("", False))
        total = node.inputs[0] if name else None
        if total is None or total.node is None or not _joins(node, total.node):
            continue
        b = Builder(graph, graph.scope)
        vectors = node.inputs[1:3] if has_shift else node.inputs[1:2]
        made = b.node(
            name,
            *total.node.inputs,
            *vectors,
            domain=MICROSOFT,
            outputs=4,
            epsilon=node.attrs["epsilon"],
        )
        made.name, made.marks = node.name, node.marks
        for old, new in ((node.outputs[0], made.outputs[0]), (total, made.outputs[3])):
            new.name, old.name = old.name, ""
            graph.replace(old, new)


def _joins(norm: Node, add: Node) -> bool:
    """Whether a normalization is over the last axis of a sum of two tensors of one shape."""
    if add.op.key != (ONNX, "Add") or add.graph is not norm.graph or add.marks != norm.marks:
        return False
    facts = [v.fact for v in (*add.inputs, *add.outputs) if v is not None]
    if not all(isinstance(f, Fact) and f.shape is not None for f in facts):
        return False
    known = [f for f in facts if isinstance(f, Fact)]
    rank = len(known[0].dims)
    is_plain = len({f.dims for f in known}) == 1 and rank in (2, 3) and known[0].dtype in REALS
    is_last = norm.attrs["axis"] in (-1, rank - 1) and len(norm.outputs) == 1
    types = {v.tensor.dtype for v in norm.inputs if v is not None}
    vectors = [v.fact for v in norm.inputs[1:] if v is not None]
    is_each = all(isinstance(f, Fact) and f.shape == known[0].dims[-1:] for f in vectors)
    return is_plain and is_last and is_each and types == {known[0].dtype}


def join_products(graph: Graph) -> None:
    """Merge matmuls of one tensor with several matrices, in a graph and the bodies in it.

    The weights are concatenated, and the result is split.
    """
    for part in graph.family():
        _join_products(part)


def _join_products(graph: Graph) -> None:
    by_input: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        if (key := _shared_key(node)) is not None:
            by_input.setdefault(key, []).append(node)
    for nodes in by_input.values():
        if len(nodes) > 1:
            _join(graph, nodes)


def _shared_key(node: Node) -> tuple[Any, ...] | None:
    """What is equal for products that may be joined."""
    if node.op.key == (INTERNAL, "MatMul"):
        attrs = node.attrs
        if attrs["trans_a"] or attrs["trans_b"] or attrs["alpha"] != 1 or len(node.inputs) != 3:
            return None
    elif node.op.key != (ONNX, "MatMul"):
        return None
    left, right = node.inputs[:2]
    if left is None or right is None or not right.is_const or right.tensor.rank != 2:
        return None
    if left.is_const or left.tensor.shape is None or left.tensor.rank < 2:
        return None
    if right.tensor.dtype not in REALS:
        return None
    if any(v is None or v.tensor.shape != right.tensor.dims[1:] for v in node.inputs[2:]):
        return None
    return (left, right.tensor.dims[0], node.attrs.get("code"), node.marks, node.op.key)


def _join(graph: Graph, nodes: list[Node]) -> None:
    b = FoldingBuilder(graph, _LARGEST)
    first = nodes[0]
    x = first.inputs[0]
    assert x is not None
    matrices = [n.inputs[1] for n in nodes]
    widths = [v.tensor.dims[1] for v in matrices if v is not None]
    weights = b.Concat(*matrices, axis=1)
    attrs = dict(first.attrs)
    if first.op.domain == INTERNAL:
        shifts = b.Concat(*(n.inputs[2] for n in nodes), axis=0)
        y = Builder(graph, graph.scope).MatMul(x, weights, shifts, domain=INTERNAL, **attrs)
    else:
        y = Builder(graph, graph.scope).MatMul(x, weights)
    sizes = [w for w in widths if isinstance(w, int)]
    split = Builder(graph, graph.scope).node(
        "Split", y, b.ints(*sizes), outputs=len(nodes), axis=y.tensor.rank - 1
    )
    for made in (y.node, split):
        made.marks, made.name = first.marks, first.name
    for node, part in zip(nodes, split.outputs, strict=True):
        old = node.outputs[0]
        part.name, old.name = old.name, ""
        graph.replace(old, part)
        graph.remove(node)


def fuse_elementwise(graph: Graph) -> None:
    """Fuse chains of elementwise ops into one node each; libraries run the matmuls before them."""
    fuse_chains(graph, into_products=False)
