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
from sardonyx.ops.attention.fused import KEEP_NAN
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Code, Instruction
from sardonyx.passes.attention import to_float32
from sardonyx.passes.constant_folding import NO_LIMIT, FoldingBuilder
from sardonyx.passes.elementwise_fusion import fuse_chains
from sardonyx.passes.replace import attribute_to, replace_value
from sardonyx.passes.rule import P, hole, need, ranked, rule

FLOAT_TYPES: Final = (F32, F16, BF16)
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
    # One Cast per mask and graph: a value of a body is not visible outside of it.
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
        to_nan = int(node.attrs["nan_rows"] == KEEP_NAN)
        key = (mask, q.tensor.dtype.onnx, to_nan)
        # A mask that was prepared in another body cannot be read here.
        if key not in prepared or prepared[key].node not in node.graph.nodes:
            b = Builder(node.graph, node.graph.scope)
            prepared[key] = b.Mask(
                mask, domain=INTERNAL, to=q.tensor.dtype.onnx, masked_to_nan=to_nan
            )
        node.graph.set_input(node, 3, prepared[key])
        node.attrs = {**node.attrs, "is_settled": 1}


@rule(P.MatMul(x, w) + bias, aliases="product_bias")
def matmul_bias_epilogue(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """Fuse a bias into a matmul: libraries add it while they write the result."""
    ranked(x, w, bias)
    need(x.tensor.dtype in FLOAT_TYPES and x.tensor.rank >= 2, "no matmul with an epilogue")
    need(w.is_const and w.tensor.rank == 2, "the weights are not a constant matrix")
    is_vector = bias.is_const and bias.tensor.dims == w.tensor.dims[1:]
    need(is_vector, "the bias is not one constant per column")
    code: Code = (Instruction((ONNX, "Add"), (0, 1), x.tensor.dtype),)
    return b.MatMul(x, w, bias, domain=INTERNAL, code=code)


@rule(P.Relu(P.Conv(x, w, rest=True).named("conv") + other))
def conv_sum_relu(b: Builder, x: Value, w: Value, conv: Node, other: Value) -> Value:
    """Fuse the end of a residual block: a Conv, the addition of its input, and a Relu."""
    y = conv.outputs[0]
    ranked(other)
    is_image = other.tensor.dims == y.tensor.dims and y.tensor.rank == 4
    need(is_image, "the tensor is broadcast, or no image")
    need(not other.is_const and y.tensor.dtype in FLOAT_TYPES, "a constant is added")
    # Input 3 of FusedConv is added before the activation.
    operands, attrs = [*conv.inputs, None][:3], {**conv.attrs, "activation": b"Relu"}
    return b.FusedConv(*operands, other, domain=MICROSOFT, like=y, **attrs)


RULES: Final = (*matmul_bias_epilogue, *conv_sum_relu)

# The com.microsoft op that adds a residual and normalizes, and whether it has a bias.
_SKIP_NORMS: Final = {
    "LayerNormalization": ("SkipLayerNormalization", True),
    "RMSNormalization": ("SkipSimplifiedLayerNormalization", False),
    "SimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", False),
}


def fuse_skip_norms(graph: Graph) -> None:
    """Fuse each residual addition with the normalization that reads it."""
    for node in list(graph.all_nodes()):
        name, has_bias = _SKIP_NORMS.get(node.op.name, ("", False))
        total = node.inputs[0] if name else None
        if total is None or total.node is None or not _is_skip_norm(node, total.node):
            continue
        operands = (*total.node.inputs, *node.inputs[1 : 3 if has_bias else 2])
        b, attrs = Builder(node.graph, node.graph.scope), {"epsilon": node.attrs["epsilon"]}
        fused = b.node(name, *operands, domain=MICROSOFT, outputs=4, **attrs)
        attribute_to([fused], node)
        # The fourth output is the sum itself, which the next residual addition reads.
        for old, new in ((node.outputs[0], fused.outputs[0]), (total, fused.outputs[3])):
            replace_value(node.graph, old, new)


def _is_skip_norm(norm: Node, add: Node) -> bool:
    """Whether a normalization is over the last axis of a sum of two tensors of one shape."""
    is_beside = add.graph is norm.graph and add.annotations == norm.annotations
    if add.op.key != (ONNX, "Add") or not is_beside:
        return False
    summed = _known_facts((*add.inputs, *add.outputs))
    vectors = _known_facts(norm.inputs[1:])
    if not summed or vectors is None or len({f.dims for f in summed}) != 1:
        return False
    # Neither a broadcast addition nor a norm over several axes has a fused op.
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
        by_input: dict[tuple[Any, ...], list[Node]] = {}
        for node in each.nodes:
            if (key := _shared_key(node)) is not None:
                by_input.setdefault(key, []).append(node)
        for nodes in by_input.values():
            if len(nodes) > 1:
                _merge(each, nodes)


def _shared_key(node: Node) -> tuple[Any, ...] | None:
    """What must be equal for matmuls to be merged; None for other nodes."""
    # Plain matmuls, or matmuls whose epilogue is one bias.
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
    b = FoldingBuilder(graph, NO_LIMIT)
    plain = Builder(graph, graph.scope)
    first, matrices = nodes[0], [input_of(n, 1) for n in nodes]
    # Columns side by side; the biases likewise.
    operands = [input_of(first, 0), b.Concat(*matrices, axis=1)]
    if first.op.domain == INTERNAL:
        operands.append(b.Concat(*(n.inputs[2] for n in nodes), axis=0))
    y = plain.MatMul(*operands, domain=first.op.domain, **first.attrs)
    sizes = plain.ints(*(d for v in matrices if isinstance(d := v.tensor.dims[1], int)))
    split = plain.node("Split", y, sizes, outputs=len(nodes), axis=y.tensor.rank - 1)
    attribute_to(plain.new_nodes, first)
    for node, result in zip(nodes, split.outputs, strict=True):
        replace_value(graph, node.outputs[0], result)
        graph.remove(node)


def fuse_elementwise(graph: Graph) -> None:
    """Fuse elementwise chains into one node each, but not into matmuls, which libraries run."""
    fuse_chains(graph, into_matmuls=False)
