"""Lowering for providers with a device: ops stay as ONNX has them, apart from fusions.

A device runs standard ops with its own libraries. The fusions here produce ops that the provider
implements itself: attention with prepared masks, matmuls with a bias, residual additions fused with
normalizations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.attention.fused import STAYS
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction
from sardonyx.passes.attention import to_float32
from sardonyx.passes.constant_folding import FoldingBuilder
from sardonyx.passes.elementwise_fusion import fuse_chains
from sardonyx.passes.replace import attribute_to, replace_value
from sardonyx.passes.rule import P, hole, need, ranked, rule

FLOAT_TYPES: Final = (F32, F16, BF16)
_NO_LIMIT: Final = 1 << 40  # bytes of a folded constant: merged weights of any size
x, w, bias, other = hole("x"), hole("w"), hole("bias"), hole("other")


def _masked_attentions(graph: Graph) -> Iterator[tuple[Node, Value, Value]]:
    """Each Attention with a mask in a graph and its bodies, its queries and the mask."""
    for node in list(graph.all_nodes()):
        if node.op.key == (INTERNAL, "Attention") and len(node.inputs) > 3:
            q, mask = node.inputs[0], node.inputs[3]
            if q is not None and mask is not None:
                yield node, q, mask


def widen_masks(graph: Graph) -> None:
    """Cast attention masks to float32 for nodes that stay on the CPU, whose kernels add these."""
    casts: dict[tuple[Value, Graph], Value | None] = {}
    for node, _, mask in _masked_attentions(graph):
        if mask.tensor.dtype is F32:
            continue
        key = (mask, node.graph)
        if key not in casts:
            casts[key] = to_float32(Builder(node.graph, node.graph.scope), mask)
        node.graph.set_input(node, 3, casts[key])


def prepare_masks(graph: Graph) -> None:
    """Convert each attention mask once, for all layers, to the layout that the kernel adds."""
    prepared: dict[tuple[Value, int, int], Value] = {}
    for node, q, mask in _masked_attentions(graph):
        # The cast to float32 that attention fusion added is for CPU kernels: skip it.
        cast = mask.node
        if cast is not None and cast.op.key == (ONNX, "Cast") and cast.inputs[0] is not None:
            mask = cast.inputs[0] if cast.inputs[0].tensor.dtype in FLOAT_TYPES else mask
        # Rows with every key masked out give NaN there, which the mask has to record.
        to_nan = int(node.attrs["nan_rows"] == STAYS)
        key = (mask, q.tensor.dtype.onnx, to_nan)
        # A mask that was prepared in another body cannot be read here.
        if key not in prepared or prepared[key].node not in node.graph.nodes:
            b = Builder(node.graph, node.graph.scope)
            prepared[key] = b.Mask(
                mask, domain=INTERNAL, to=q.tensor.dtype.onnx, masked_to_nan=to_nan
            )
        node.graph.set_input(node, 3, prepared[key])
        node.attrs = {**node.attrs, "is_settled": 1}


def _need_bias_vector(w: Value, bias: Value) -> None:
    """Abandon a rewrite unless the weights are a constant matrix, the bias one per column."""
    need(w.is_const and w.tensor.rank == 2, "the weights are not a constant matrix")
    need(
        bias.is_const and bias.tensor.dims == w.tensor.dims[1:],
        "the bias is not one constant per column",
    )


@rule(P.MatMul(x, w) + bias, aliases="product_bias")
def matmul_bias_epilogue(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """Fuse a bias into a matmul: libraries add it while they write the result."""
    ranked(x, w, bias)
    need(x.tensor.dtype in FLOAT_TYPES and x.tensor.rank >= 2, "no matmul with an epilogue")
    _need_bias_vector(w, bias)
    code: Code = (Instruction((ONNX, "Add"), (0, 1), x.tensor.dtype),)
    return b.MatMul(x, w, bias, domain=INTERNAL, code=code)


_CONV: Final = P.Conv(x, w, rest=True).named("conv")


def _fused_conv(b: Builder, conv: Node, other: Value, activation: bytes | None) -> Value:
    """A FusedConv that adds a tensor before its activation."""
    sizes = conv.outputs[0].tensor
    ranked(other)
    need(
        other.tensor.dims == sizes.dims and sizes.rank == 4, "the tensor is broadcast, or no image"
    )
    need(not other.is_const and sizes.dtype in FLOAT_TYPES, "a constant is added")
    operands = [*conv.inputs, None][:3]
    attrs = {**conv.attrs, **({} if activation is None else {"activation": activation})}
    return b.FusedConv(*operands, other, domain=MICROSOFT, like=conv.outputs[0], **attrs)


@rule(P.Relu(_CONV + other))
def conv_sum_relu(b: Builder, x: Value, w: Value, conv: Node, other: Value) -> Value:
    """Fuse the end of a residual block: a Conv, the addition of its input, and a Relu."""
    # The activation is applied after the addition, as FusedConv defines it.
    return _fused_conv(b, conv, other, b"Relu")


RULES: Final = (*matmul_bias_epilogue, *conv_sum_relu)

# The com.microsoft op that adds a residual and normalizes, and whether it has a bias.
_SKIP_NORMS: Final = {
    "LayerNormalization": ("SkipLayerNormalization", True),
    "RMSNormalization": ("SkipSimplifiedLayerNormalization", False),
    "SimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", False),
}


def fuse_skip_norms(graph: Graph) -> None:
    """Fuse each residual addition with the normalization that reads it."""
    for each in graph.family():
        _fuse_skip_norms_in(each)


def _fuse_skip_norms_in(graph: Graph) -> None:
    """Fuse them in one graph, without its bodies."""
    for node in list(graph.nodes):
        name, has_bias = _SKIP_NORMS.get(node.op.name, ("", False))
        # Only a sum that a normalization reads.
        total = node.inputs[0] if name else None
        if total is None or total.node is None or not _is_skip_norm(node, total.node):
            continue
        b = Builder(graph, graph.scope)
        vectors = node.inputs[1:3] if has_bias else node.inputs[1:2]
        made = b.node(
            name,
            *total.node.inputs,
            *vectors,
            domain=MICROSOFT,
            outputs=4,
            epsilon=node.attrs["epsilon"],
        )
        attribute_to([made], node)
        # The fourth output is the sum itself, which the next residual addition reads.
        for old, new in ((node.outputs[0], made.outputs[0]), (total, made.outputs[3])):
            replace_value(graph, old, new)


def _is_skip_norm(norm: Node, add: Node) -> bool:
    """Whether a normalization is over the last axis of a sum of two tensors of one shape."""
    if (
        add.op.key != (ONNX, "Add")
        or add.graph is not norm.graph
        or add.annotations != norm.annotations
    ):
        return False
    summed = _known_facts((*add.inputs, *add.outputs))
    vectors = _known_facts(norm.inputs[1:])
    if not summed or vectors is None or len({f.dims for f in summed}) != 1:
        return False
    dtype, dims = summed[0].dtype, summed[0].dims
    is_last = norm.attrs["axis"] in (-1, len(dims) - 1) and len(norm.outputs) == 1
    is_supported = len(dims) in (2, 3) and dtype in FLOAT_TYPES  # by the fused op
    return (
        is_last and is_supported and all(f.shape == dims[-1:] and f.dtype is dtype for f in vectors)
    )


def _known_facts(values: Iterable[Value | None]) -> list[Fact] | None:
    """The facts of the values that are present; None unless all are tensors of known rank."""
    facts = [v.fact for v in values if v is not None]
    known = [f for f in facts if isinstance(f, Fact) and f.shape is not None]
    return known if len(known) == len(facts) else None


def merge_matmuls(graph: Graph) -> None:
    """Merge matmuls that share their left operand, in a graph and the bodies in it.

    The weights are concatenated and the result is split: one launch instead of three for query, key
    and value projections.
    """
    for each in graph.family():
        _merge_matmuls_in(each)


def _merge_matmuls_in(graph: Graph) -> None:
    """Merge them in one graph, without its bodies."""
    by_input: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        if (key := _shared_key(node)) is not None:
            by_input.setdefault(key, []).append(node)
    for nodes in by_input.values():
        if len(nodes) > 1:
            _merge(graph, nodes)


def _shared_key(node: Node) -> tuple[Any, ...] | None:
    """What must be equal for matmuls to be merged; None for other nodes."""
    # Only plain products, or such with one bias as their epilogue.
    if node.op.key == (INTERNAL, "MatMul"):
        attrs = node.attrs
        if attrs["trans_a"] or attrs["trans_b"] or attrs["alpha"] != 1 or len(node.inputs) != 3:
            return None
    elif node.op.key != (ONNX, "MatMul"):
        return None
    left, right = node.inputs[:2]
    if left is None or right is None or not right.is_const or right.tensor.rank != 2:
        return None
    # The left operand is the activation that all of them read.
    if left.is_const or left.tensor.shape is None or left.tensor.rank < 2:
        return None
    if right.tensor.dtype not in FLOAT_TYPES:
        return None
    if any(v is None or v.tensor.shape != right.tensor.dims[1:] for v in node.inputs[2:]):
        return None
    return (left, right.tensor.dims[0], node.attrs.get("code"), node.annotations, node.op.key)


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Merge matmuls with one left operand."""
    # The concatenated weights are folded to a constant; the new nodes are not.
    b = FoldingBuilder(graph, _NO_LIMIT)
    first = nodes[0]
    x = input_of(first, 0)
    matrices = [n.inputs[1] for n in nodes]
    widths = [v.tensor.dims[1] for v in matrices if v is not None]
    # Columns side by side; the biases likewise.
    weights = b.Concat(*matrices, axis=1)
    attrs = dict(first.attrs)
    if first.op.domain == INTERNAL:
        biases = b.Concat(*(n.inputs[2] for n in nodes), axis=0)
        y = Builder(graph, graph.scope).MatMul(x, weights, biases, domain=INTERNAL, **attrs)
    else:
        y = Builder(graph, graph.scope).MatMul(x, weights)
    sizes = [w for w in widths if isinstance(w, int)]
    split = Builder(graph, graph.scope).node(
        "Split", y, b.ints(*sizes), outputs=len(nodes), axis=y.tensor.rank - 1
    )
    assert y.node is not None
    attribute_to((y.node, split), first)
    for node, result in zip(nodes, split.outputs, strict=True):
        replace_value(graph, node.outputs[0], result)
        graph.remove(node)


def fuse_elementwise(graph: Graph) -> None:
    """Fuse elementwise chains into one node each, but not into matmuls, which libraries run."""
    fuse_chains(graph, into_matmuls=False)
