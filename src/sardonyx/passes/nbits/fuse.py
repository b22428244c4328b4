"""Fusions around n-bit matmuls on a device, as decoders have them.

The RMS norm before a matmul, the SwiGLU gate after it and the residual addition become part of one
FusedMatMulNBits node: in decoding each is a kernel launch that costs more than its arithmetic.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.passes.attention import only_reader
from sardonyx.passes.replace import attribute_to, drop, replace_value

FUSED_NBITS: Final = (INTERNAL, "FusedMatMulNBits")
# RMS norms under each of their names.
_NORMS: Final = frozenset((
    (ONNX, "RMSNormalization"), (ONNX, "SimplifiedLayerNormalization"),
    (MICROSOFT, "SimplifiedLayerNormalization"),
))  # fmt: skip
# Attributes that MatMulNBits and FusedMatMulNBits have in common.
_SHARED: Final = ("K", "N", "bits", "block_size", "k_major", "signed", "zero_default")


def fuse_nbits_matmul(graph: Graph) -> None:
    """Fuse norms, gates and residual additions into n-bit matmuls; bodies are left alone."""
    _split_skip_norms(graph)
    for node in [n for n in graph.nodes if n.op.key == (INTERNAL, "MatMulNBits")]:
        # Only matmuls with constant weights and without an epilogue.
        if node.attrs["code"] is None and all(v is None or v.is_const for v in node.inputs[1:]):
            _fuse(graph, node)
    _request_quantized_output(graph)


def _request_quantized_output(graph: Graph) -> None:
    """Make gates return int8 codes if only fused n-bit matmuls read them.

    The reader then need not quantize its input again. Not for the residual stream: the codes of its
    readers depend on the norm after the addition.
    """
    for node in [n for n in graph.nodes if n.op.key == FUSED_NBITS and n.attrs["gated"]]:
        out = node.outputs[0]
        if out.n_exits or not out.uses or any(n.op.key != FUSED_NBITS for n, _ in out.uses):
            continue
        # The codes depend on the norm of the reader: all readers must have the same.
        norms = {(n.inputs[4], n.attrs["epsilon"]) for n, slot in out.uses if slot == 0}
        if len(norms) != 1:
            continue
        ((gain, epsilon),) = norms
        graph.set_input(node, 6, gain)
        node.attrs = {**node.attrs, "quantizes_output": 1, "next_epsilon": epsilon}


def _fuse(graph: Graph, node: Node) -> None:
    """Replace one matmul by FusedMatMulNBits with everything around it that fits."""
    x, q, scale, zero = (*node.inputs, None)[:4]
    assert x is not None
    gain, epsilon = None, 1e-5
    # The norm stays for its other readers; each matmul normalizes its own input.
    if x.node is not None and _is_norm(x.node):
        gain, epsilon = x.node.inputs[1], x.node.attrs["epsilon"]
        x = x.node.inputs[0]
    # Gate and up projection are the two halves of the columns of one matmul.
    gate = _gate(node.outputs[0])
    fused = [node, *gate]
    out, residual = fused[-1].outputs[0], None
    # The residual must not broadcast, and must not be the result itself.
    add = only_reader(out)
    if add is not None and add.op.key == (ONNX, "Add"):
        others = [v for v in add.inputs if v is not None and v is not out]
        residual = others[0] if others and _is_like(others[0], out) else None
        if residual is not None:
            fused.append(add)
            out = add.outputs[0]
    attrs = {name: node.attrs[name] for name in _SHARED}
    attrs |= {"epsilon": epsilon, "gated": int(bool(gate))}
    b, inputs = Builder(graph, graph.scope), (x, q, scale, zero, gain, residual, None)
    y = b.FusedMatMulNBits(*inputs, domain=INTERNAL, like=out, **attrs)
    attribute_to(b.new_nodes, node)
    replace_value(graph, out, y)
    drop(graph, fused)  # from the end of the list: a node is dead once its reader is removed


def _is_norm(node: Node) -> bool:
    """Whether a node is an RMS norm over the last axis with a constant gain."""
    gain = optional_input(node, 1)
    # The kernel normalizes the last axis and multiplies by a gain of its type.
    if node.op.key not in _NORMS or gain is None or not gain.is_const or gain.tensor.rank != 1:
        return False
    fact = node.outputs[0].fact
    if not isinstance(fact, Fact) or fact.shape is None:
        return False
    return node.attrs["axis"] in (-1, fact.rank - 1) and gain.tensor.dtype is fact.dtype


def _is_like(a: Value, b: Value) -> bool:
    """Whether a value that varies has the type and shape of another."""
    fact, other = a.fact, b.tensor
    if not isinstance(fact, Fact) or a.is_const:
        return False
    return fact.shape == other.shape and fact.dtype is other.dtype


def _gate(out: Value) -> list[Node]:
    """The nodes of a SwiGLU gate after a value, the last one last; none if there is no gate."""
    split = only_reader(out)
    if split is None or split.op.key != (ONNX, "Split") or len(split.outputs) != 2:
        return []
    rank = out.tensor.rank
    gate, up = split.outputs
    if split.attrs["axis"] not in (-1, rank - 1) or gate.tensor.dims != up.tensor.dims:
        return []
    # silu(gate) * up, with silu written as gate * Sigmoid(gate) or as Swish.
    readers = {n.op.name: n for n, _ in gate.uses}
    if gate.n_exits or len(gate.uses) != len(readers):
        return []
    if readers.keys() == {"Sigmoid", "Mul"}:
        sigmoid, silu = readers["Sigmoid"], readers["Mul"]
        if only_reader(sigmoid.outputs[0]) is not silu:
            return []
        inner = [split, sigmoid, silu]
    elif readers.keys() == {"Swish"} and readers["Swish"].attrs["alpha"] == 1:
        silu, inner = readers["Swish"], [split, readers["Swish"]]
    else:
        return []
    last = only_reader(silu.outputs[0])
    if last is None or last.op.key != (ONNX, "Mul") or only_reader(up) is not last:
        return []
    return [*inner, last]


def _split_skip_norms(graph: Graph) -> None:
    """Split fused residual additions and norms again if an n-bit matmul precedes them.

    The matmul can add the residual itself, and the next one normalize.
    """
    for node in list(graph.nodes):
        if node.op.key != (MICROSOFT, "SkipSimplifiedLayerNormalization"):
            continue
        a, b_, gain, *bias = node.inputs
        makers = {v.node.op.name for v in (a, b_) if v is not None and v.node is not None}
        # Outputs 1 and 2, mean and inverse deviation, have no equivalent after the split.
        has_statistics = any(v.is_used for v in node.outputs[1:3])
        if any(bias) or "MatMulNBits" not in makers or has_statistics:
            continue
        b = Builder(graph, graph.scope)
        y, epsilon = node.outputs[0], node.attrs["epsilon"]
        total = b.Add(a, b_, like=y)
        normed = b.SimplifiedLayerNormalization(total, gain, like=y, epsilon=epsilon, axis=-1)
        attribute_to(b.new_nodes, node)
        replace_value(graph, y, normed)
        if len(node.outputs) > 3:
            replace_value(graph, node.outputs[3], total)
        graph.remove(node)


def unfuse_nbits_matmul(graph: Graph) -> None:
    """Replace FusedMatMulNBits nodes that stay on the CPU by the ops that they consist of."""
    for node in [n for n in graph.all_nodes() if n.op.key == FUSED_NBITS]:
        x, q, scale, zero, gain, residual = node.inputs[:6]
        out, b = node.outputs[0], Builder(node.graph, node.graph.scope)
        if gain is not None:
            epsilon = node.attrs["epsilon"]
            x = b.SimplifiedLayerNormalization(x, gain, like=x, epsilon=epsilon, axis=-1)
        attrs = {name: node.attrs[name] for name in _SHARED}
        y: Value = b.MatMulNBits(x, q, scale, zero, domain=INTERNAL, **attrs)
        if node.attrs["gated"]:
            gate, up = b.node("Split", y, outputs=2, axis=-1, num_outputs=2).outputs
            y = b.Mul(b.Mul(gate, b.Sigmoid(gate)), up)
        if residual is not None:
            y = b.Add(y, residual)
        attribute_to(b.new_nodes, node)
        replace_value(node.graph, out, y)
        node.graph.remove(node)
