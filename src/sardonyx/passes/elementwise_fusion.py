"""Elementwise fusion: groups of elementwise nodes become one Chain node or an epilogue.

A group is compiled into a `Code`, a small program that one kernel interprets block by block, so
intermediate results stay in cache. A group whose operand is the result of a matmul becomes the
epilogue of that matmul instead and is applied to its accumulators. A chain from 8-bit to 8-bit
elements becomes a lookup table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, I8, U8, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.op import INTERNAL, ONNX, Op, allowed
from sardonyx.ops import lookup
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import (
    CONVERSIONS,
    ELEMENTWISE,
    QUANTIZED_TYPES,
    TYPES,
    Code,
    Instruction,
    concatenated,
    instruction_of,
    run_code,
)
from sardonyx.ops.elementwise.fusible import FUSIBLE
from sardonyx.passes.replace import attribute_to, replace_value

# Limits of the native chain kernel: operands, instructions (as _n_instructions estimates them),
# dims.
MAX_OPERANDS: Final = 12
MAX_INSTRUCTIONS: Final = 36
MAX_RANK: Final = 10
_EIGHT_BITS: Final = (U8, I8)
_TABLE_ENTRIES: Final = 256  # of a lookup table: one per 8-bit input
_VARIADIC: Final = frozenset(("Max", "Min", "Sum", "Mean"))


class _Group:
    """Nodes that become one; the first is the root, whose output is that of the group."""

    __slots__ = ("members", "n_instructions", "operands")

    def __init__(self, root: Node) -> None:
        self.members = [root]
        self.operands = dict.fromkeys(v for v in root.inputs if v is not None)
        self.n_instructions = _n_instructions(root)

    @property
    def root(self) -> Node:
        """The node whose output the group computes."""
        return self.members[0]

    def accepts(self, node: Node) -> bool:
        """Whether a node, all of whose readers are members, may become a member."""
        if node.annotations != self.root.annotations:
            return False
        shape, whole = node.outputs[0].tensor.dims, self.root.outputs[0].tensor.dims
        # A producer of fewer elements would be recomputed for each one that it broadcasts to;
        # one element is computed once per block.
        if shape != whole and (len(shape) > len(whole) or any(d != 1 for d in shape)):
            return False
        # Two roundings to float16 in one group: the value between them would be kept in float32
        # until the group runs, twice the memory of the rounded one.
        if _narrows_float(node) and any(map(_narrows_float, self.members)):
            return False
        n_more = sum(1 for v in node.inputs if v is not None and v not in self.operands) - 1
        return (
            self.n_instructions + _n_instructions(node) <= MAX_INSTRUCTIONS
            and len(self.operands) + n_more <= MAX_OPERANDS
        )

    def add(self, node: Node) -> None:
        """Make a node a member; its operands replace its result among the group's operands."""
        self.members.append(node)
        self.n_instructions += _n_instructions(node)
        del self.operands[node.outputs[0]]
        self.operands.update(dict.fromkeys(v for v in node.inputs if v is not None))

    def current_operands(self) -> list[Value]:
        """The operands as they are now: earlier groups may have replaced them."""
        inner = {n.outputs[0] for n in self.members}
        values = (v for n in self.members for v in n.inputs if v is not None and v not in inner)
        return list(dict.fromkeys(values))

    def code(self, operands: list[Value]) -> Code:
        """The program of the group over these operands."""
        number: dict[Value, int] = {v: i for i, v in enumerate(operands)}
        code: list[Instruction] = []
        for node in reversed(self.members):  # each after those it reads
            code.append(instruction_of(node, number.__getitem__))
            number[node.outputs[0]] = len(number)
        return tuple(code)


def _narrows_float(node: Node) -> bool:
    """Whether a node casts to a narrower float type."""
    if node.op.name != "Cast" or node.inputs[0] is None:
        return False
    to = node.outputs[0].tensor.dtype
    return to in (F16, BF16) and node.inputs[0].tensor.dtype.bits > to.bits


def _n_instructions(node: Node) -> int:
    """The number of native instructions that a node becomes, at most."""
    if node.op.name in _VARIADIC:
        return len(node.inputs) + 1
    op = FUSIBLE.get(node.op.key)
    return 2 if op is None else op.n_instructions  # 2: a conversion, with its zero point


def fuse_chains(graph: Graph, into_matmuls: bool = True) -> None:
    """Fuse elementwise nodes of a graph and its bodies; `into_matmuls`: as epilogues too."""
    if into_matmuls:
        _fuse_biases(graph)
    order = graph.sorted_nodes()
    chain = lookup(INTERNAL, "Chain")
    assert chain is not None
    positions = {node: i for i, node in enumerate(order)}
    for group in reversed(_groups(order)):  # in execution order: an epilogue may be extended again
        if into_matmuls and _fuse_into_matmul(graph, group, positions):
            continue
        if len(group.members) > 1:
            operands = group.current_operands()
            fused = _replace_group(graph, group, chain, operands, {"code": group.code(operands)})
            if into_matmuls and fused.outputs[0].tensor.dtype in _EIGHT_BITS:
                _tabulate(graph, fused)
    for node in order:
        for _, body in node.subgraphs:
            fuse_chains(body, into_matmuls)


def _fuse_biases(graph: Graph) -> None:
    """Fuse the bias of each matmul first, before its result joins a larger group."""
    for node in list(graph.nodes):
        if node.op.key == (ONNX, "Add") and _fits(node):
            constants = [v for v in node.inputs if v is not None and v.is_const]
            # Else the Add could end up in the epilogue of the other operand's matmul, and this
            # result would be written to memory for it.
            if len(constants) == 1:
                _fuse_into_matmul(graph, _Group(node), defaultdict(int))


def _groups(order: list[Node]) -> list[_Group]:
    """Put every elementwise node into one group; returned from the last to the first.

    Invariant: all readers of a member other than the root are members. So no path leaves a group
    and returns to it, and fusing cannot create a cycle.
    """
    groups: list[_Group] = []
    of: dict[Node, _Group] = {}
    for node in reversed(order):
        # Readers come first in reverse topological order, so their groups are known.
        if node.op.key in CONVERSIONS:
            if not _is_per_tensor_conversion(node):
                continue
        elif node.op.key not in ELEMENTWISE or not _fits(node):
            continue
        value = node.outputs[0]
        group = of.get(value.uses[0][0]) if value.uses and not value.n_exits else None
        is_inner = group is not None and all(of.get(n) is group for n, _ in value.uses)
        if group is not None and is_inner and group.accepts(node):
            group.add(node)
        else:
            group = _Group(node)
            groups.append(group)
        of[node] = group
    return groups


def _fits(node: Node) -> bool:
    """Whether a node can be an instruction of a chain."""
    rank = -1  # of the output, which comes first
    for value in (*node.outputs, *node.inputs):
        if value is None:
            continue
        fact = value.fact
        if not isinstance(fact, Fact) or fact.shape is None or fact.dtype not in TYPES:
            return False
        if rank < 0:
            rank = len(fact.shape)
        # The bounds of Clip may have more axes than what they bound.
        if rank > MAX_RANK or len(fact.shape) > rank:
            return False
    return node.op.name != "Pow" or input_of(node, 1).tensor.dtype is not U64


def _is_per_tensor_conversion(node: Node) -> bool:
    """Whether a node (de)quantizes float32 with one scale for all elements."""
    if not _fits(node):
        return False
    attrs, (x, *rest) = node.attrs, (v.tensor for v in node.inputs if v is not None)
    y = node.outputs[0].tensor
    real, quantized = (x, y) if node.op.name == "QuantizeLinear" else (y, x)
    is_single = all(d == 1 for fact in rest for d in fact.dims)
    is_float = real.dtype is F32 and rest[0].dtype is F32 and attrs.get("precision", 0) in (0, 1)
    return is_single and is_float and quantized.dtype in QUANTIZED_TYPES


@frozen
class _EpilogueTarget:
    """A matmul that a group may become the epilogue of, with a Reshape between or not."""

    node: Node
    operand: Value  # of the group: the result of the matmul, or of the Reshape after it
    reshape: Node | None

    @property
    def matmul(self) -> Value:
        """The result of the matmul."""
        return self.node.outputs[0]

    def accepts(self, other: Value) -> bool:
        """Whether another operand of the group can be an operand of the epilogue."""
        fact, matmul = other.tensor, self.matmul.tensor
        if fact.dtype not in allowed(self.node.op, self.node.op.inputs[-1]):
            return False
        if self.reshape is None:
            return True
        # A vector along the last axis broadcasts on both sides of the Reshape; a full tensor needs
        # the inverse Reshape.
        if len(fact.dims) > len(matmul.dims) or any(d != 1 for d in fact.dims[:-1]):
            return fact.dims == self.operand.tensor.dims and self._shape_of_matmul() is not None
        is_same = matmul.dims[-1:] == self.operand.tensor.dims[-1:]
        return is_same or all(d == 1 for d in fact.dims)

    def _shape_of_matmul(self) -> tuple[int, ...] | None:
        """The Reshape target that gives a tensor of the operand's shape that of the matmul."""
        fact = self.matmul.tensor
        if len(fact.dims) == 2 and isinstance(last := fact.dims[1], int) and last > 0:
            return -1, last
        return fact.static

    def fitted(self, graph: Graph, other: Value) -> Value:
        """Another operand in a shape that broadcasts to the matmul's result."""
        if self.reshape is None or other.tensor.dims != self.operand.tensor.dims:
            return other
        target = self._shape_of_matmul()
        assert target is not None
        builder = Builder(graph)
        reshaped: Value = builder.Reshape(other, builder.ints(*target), like=self.matmul)
        builder.new_nodes[0].annotations = self.node.annotations
        reshaped.fact = other.tensor.shaped(self.matmul.tensor.dims)
        return reshaped


def _fuse_into_matmul(graph: Graph, group: _Group, positions: dict[Node, int]) -> bool:
    """Make a group the epilogue of the last matmul among its operands; return whether it is."""
    operands = group.current_operands()
    targets = [target for v in operands if (target := _epilogue_target(v, group)) is not None]
    if not targets:
        return False
    # The last one in execution order: the other operands exist by then.
    target = max(targets, key=lambda s: positions[s.node])
    node, others = target.node, [v for v in operands if v is not target.operand]
    first, n_first = node.attrs["code"] or (), len(node.inputs) - len(node.op.inputs) + 2
    n_values = len(first) + n_first + len(others)
    if n_values > MAX_INSTRUCTIONS or not all(target.accepts(v) for v in others):
        return False
    code = group.code([target.operand, *others])
    # A matmul that already has an epilogue runs the new code after it.
    code = concatenated(first, n_first, code, len(others) + 1) if first else code
    inputs = [*node.inputs, *(target.fitted(graph, v) for v in others)]
    fused = _replace_group(graph, group, node.op, inputs, {**node.attrs, "code": code}, target)
    positions[fused] = positions[group.root]
    if target.reshape is not None:
        graph.remove(target.reshape)
    graph.remove(node)
    return True


def _epilogue_target(value: Value, group: _Group) -> _EpilogueTarget | None:
    """The matmul that computes a value, if the whole group may be its epilogue."""
    node, reshape = _without_reshape(value)
    if node is None or not _has_epilogue(node.op):
        return None
    if len(node.outputs) != 1 or node.graph is not group.root.graph:
        return None
    # Nodes that differ in priority, `is_backward` or assigned provider are never fused.
    if node.annotations != group.root.annotations or not _has_epilogue_type(node, group, value):
        return None
    # The group must be the only reader: the result before the epilogue is never written.
    members = set(group.members)
    if value.n_exits or any(n not in members for n, _ in value.uses):
        return None
    # Integer division may fail on its data, which an epilogue cannot report.
    divisions = (n.outputs[0].tensor.dtype for n in members if n.op.name in ("Div", "Mod"))
    can_fail = any(dtype.is_integer for dtype in divisions)
    return None if can_fail else _EpilogueTarget(node, value, reshape)


def _without_reshape(value: Value) -> tuple[Node | None, Node | None]:
    """Return the node that computes a value, and the Reshape of its result if there is one.

    The first is None if anything but the Reshape reads its result.
    """
    node = value.node
    if node is None or node.op.key != (ONNX, "Reshape"):
        return node, None
    source = node.inputs[0]
    is_private = source is not None and len(source.uses) == 1 and not source.n_exits
    return source.node if source is not None and is_private else None, node


def _has_epilogue(op: Op) -> bool:
    """Whether an op has an epilogue: its code as an attribute, its operands after the inputs."""
    is_extensible = "code" in op.attrs and op.max_inputs is None
    return op.domain == INTERNAL and is_extensible and op.name != "Chain"


def _has_epilogue_type(node: Node, group: _Group, value: Value) -> bool:
    """Whether types and shape allow a group to be applied to a matmul's float32 accumulators."""
    out, op = group.root.outputs[0].tensor, node.op
    if node.outputs[0].tensor.dtype is not F32 or value.tensor.shape != out.shape:
        return False
    # If the op ties the type of its result to that of an input, the epilogue cannot change it.
    return out.dtype is F32 or all(s.type != op.outputs[0].type for s in op.inputs[:-1])


def _replace_group(
    graph: Graph,
    group: _Group,
    op: Op,
    inputs: Sequence[Value | None],
    attrs: dict[str, Any],
    target: _EpilogueTarget | None = None,
) -> Node:
    """Replace a group by one node that has the name of the root."""
    old = group.root.outputs[0]
    fused = last = graph.add(op, inputs, attrs, name=group.root.name)
    if target is not None and (reshape := target.reshape) is not None:
        # The epilogue comes before the Reshape now.
        fused.outputs[0].fact = old.tensor.shaped(target.matmul.tensor.dims)
        operands = [fused.outputs[0], *reshape.inputs[1:]]
        last = graph.add(reshape.op, operands, dict(reshape.attrs), name=reshape.name)
    last.outputs[0].fact = old.tensor.without_contents()
    fused.annotations = last.annotations = group.root.annotations
    replace_value(graph, old, last.outputs[0])
    for node in group.members:
        graph.remove(node)
    return fused


def _tabulate(graph: Graph, chain: Node) -> None:
    """Replace a chain by a table lookup if it maps each 8-bit element to another one.

    Quantized activations (dequantize, Sigmoid, quantize) are examples: one load per element
    replaces the arithmetic.
    """
    y = chain.outputs[0]
    # All operands but one must be scalars: otherwise an entry would depend on the position.
    tensors = [v for v in chain.inputs if v is not None and any(d != 1 for d in v.tensor.dims)]
    has_conversion = any(i.op in CONVERSIONS for i in chain.attrs["code"])
    if len(tensors) != 1 or not has_conversion:
        return
    x, static = tensors[0], y.tensor.static
    if x.is_const or x.tensor.dtype not in _EIGHT_BITS or x.tensor.dims != y.tensor.dims:
        return
    # A smaller tensor costs less than computing the table.
    if static is not None and np.prod(static, dtype=np.int64) < _TABLE_ENTRIES:
        return
    builder = Builder(graph, graph.scope)
    looked_up = builder.QLookup(x, _lookup_table(builder, chain, x), domain=INTERNAL, like=y)
    attribute_to(builder.new_nodes, chain)
    replace_value(graph, y, looked_up)
    graph.remove(chain)


def _lookup_table(builder: Builder, chain: Node, x: Value) -> Value:
    """The table: the chain applied to all 256 inputs, now if its other operands are constant."""
    code, all_bytes = chain.attrs["code"], np.arange(_TABLE_ENTRIES, dtype=np.uint8)
    # Entry i is for the byte i: a signed input indexes with its bits as unsigned.
    ramp = builder.const(all_bytes.view(x.tensor.dtype.np))
    operands = [ramp if v is x else v for v in chain.inputs]
    consts = [c for v in operands if v is not None and (c := v.const) is not None]
    if len(consts) == len(operands):
        return builder.const(run_code(code, [c.read().reshape(c.shape[-1:]) for c in consts]))
    return builder.Chain(*operands, domain=INTERNAL, code=code)
