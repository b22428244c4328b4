"""Products with weights of few bits take in what decoders put around them.

That is the norm before a product, a gate behind it, and the sum with the stream it goes back to.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.passes.attention import only_reader
from sardonyx.passes.driver import drop

FEW: Final = (INTERNAL, "FewBits")
_NORMS: Final = frozenset((
    (ONNX, "RMSNormalization"), (ONNX, "SimplifiedLayerNormalization"),
    (MICROSOFT, "SimplifiedLayerNormalization"),
))  # fmt: skip
_SHARED: Final = ("K", "N", "bits", "block_size", "k_major", "signed", "zero_default")


def fuse_few_bits(graph: Graph) -> None:
    """Rewrites a graph; bodies are left alone."""
    _part_norms(graph)
    for node in list(graph.nodes):
        if node.op.key == (INTERNAL, "MatMulNBits") and _is_plain(node):
            _fuse(graph, node)
    _foretell(graph)


def _foretell(graph: Graph) -> None:
    """Gates whose results only such products read are told to hand them on as digits.

    What goes back to the stream is not worth it: its digits depend on the norm behind the sum.
    """
    for node in [n for n in graph.nodes if n.op.key == FEW and n.attrs["gated"]]:
        out = node.outputs[0]
        if out.n_exits or not out.uses or any(n.op.key != FEW for n, _ in out.uses):
            continue
        factors = {(n.inputs[4], n.attrs["epsilon"]) for n, slot in out.uses if slot == 0}
        if len(factors) != 1:
            continue
        ((gain, epsilon),) = factors
        graph.set_input(node, 6, gain)
        node.attrs = {**node.attrs, "makes_digits": 1, "next_epsilon": epsilon}


def _is_plain(node: Node) -> bool:
    """Whether a product has constant weights and nothing behind it."""
    weights = node.inputs[1:]
    return node.attrs["code"] is None and all(v is None or v.is_const for v in weights)


def _fuse(graph: Graph, node: Node) -> None:
    x, q, scale, zero = (*node.inputs, None)[:4]
    assert x is not None
    gone, out, extra = [node], node.outputs[0], {"gated": 0}
    gain, epsilon = None, 1e-5
    if x.node is not None and _is_norm(x.node):
        gain, epsilon = x.node.inputs[1], x.node.attrs["epsilon"]
        x = x.node.inputs[0]
    gate = _gate(out)
    if gate:
        gone += gate
        out, extra = gate[-1].outputs[0], {"gated": 1}
    residual = None
    add = only_reader(out)
    if add is not None and add.op.key == (ONNX, "Add"):
        (residual,) = [v for v in add.inputs if v is not out] or [None]
        if residual is not None and _is_like(residual, out):
            gone.append(add)
            out = add.outputs[0]
        else:
            residual = None
    attrs = {name: node.attrs[name] for name in _SHARED}
    made: Value = Builder(graph, graph.scope).FewBits(
        x, q, scale, zero, gain, residual, None, domain=INTERNAL, like=out, epsilon=epsilon,
        **extra, **attrs,
    )  # fmt: skip
    assert made.node is not None
    made.node.name, made.node.marks = node.name, node.marks
    made.name, out.name = out.name, ""
    graph.replace(out, made)
    drop(graph, list(reversed(gone)))


def _is_norm(node: Node) -> bool:
    gain = node.inputs[1] if len(node.inputs) > 1 else None
    if node.op.key not in _NORMS or gain is None or not gain.is_const or gain.tensor.rank != 1:
        return False
    fact = node.outputs[0].fact
    if not isinstance(fact, Fact) or fact.shape is None:
        return False
    return node.attrs["axis"] in (-1, fact.rank - 1) and gain.tensor.dtype is fact.dtype


def _is_like(a: Value, b: Value) -> bool:
    fact, other = a.fact, b.tensor
    if not isinstance(fact, Fact) or a.is_const:
        return False
    return fact.shape == other.shape and fact.dtype is other.dtype


def _gate(out: Value) -> list[Node]:
    """Split, sigmoid and products of a gate behind a value, the last of them last; or none."""
    split = only_reader(out)
    if split is None or split.op.key != (ONNX, "Split") or len(split.outputs) != 2:
        return []
    rank = out.tensor.rank
    gate, up = split.outputs
    if split.attrs["axis"] not in (-1, rank - 1) or gate.tensor.dims != up.tensor.dims:
        return []
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


def _part_norms(graph: Graph) -> None:
    """Sums with their norms, of a product of few bits, become a sum and a norm again."""
    for node in list(graph.nodes):
        if node.op.key != (MICROSOFT, "SkipSimplifiedLayerNormalization"):
            continue
        a, b_, gain, *bias = node.inputs
        makers = {v.node.op.name for v in (a, b_) if v is not None and v.node is not None}
        unread = not any(v.is_used for v in node.outputs[1:3])
        if any(bias) or "MatMulNBits" not in makers or not unread:
            continue
        b = Builder(graph, graph.scope)
        total: Value = b.Add(a, b_, like=node.outputs[0])
        normed: Value = b.SimplifiedLayerNormalization(
            total, gain, like=node.outputs[0], epsilon=node.attrs["epsilon"], axis=-1
        )
        for made in b.made:
            made.name, made.marks = node.name, node.marks
        pairs = [(node.outputs[0], normed)]
        pairs += [(node.outputs[3], total)] if len(node.outputs) > 3 else []
        for old, new in pairs:
            new.name, old.name = old.name, ""
            graph.replace(old, new)
        graph.remove(node)


def part_few_bits(graph: Graph) -> None:
    """For kernels of the CPU: such products of nodes that stay there, and what they took in."""
    for node in [n for n in graph.all_nodes() if n.op.key == FEW]:
        x, q, scale, zero, gain, residual = node.inputs[:6]
        out, b = node.outputs[0], Builder(node.graph, node.graph.scope)
        if gain is not None:
            x = b.SimplifiedLayerNormalization(
                x, gain, like=x, epsilon=node.attrs["epsilon"], axis=-1
            )
        attrs = {name: node.attrs[name] for name in _SHARED}
        y: Value = b.MatMulNBits(x, q, scale, zero, domain=INTERNAL, **attrs)
        if node.attrs["gated"]:
            split = b.node("Split", y, outputs=2, axis=-1, num_outputs=2)
            gate, up = split.outputs
            y = b.Mul(b.Mul(gate, b.Sigmoid(gate)), up)
        if residual is not None:
            y = b.Add(y, residual)
        for made in b.made:
            made.name, made.marks = node.name, node.marks
        y.name, out.name = out.name, ""
        node.graph.replace(out, y)
        node.graph.remove(node)
