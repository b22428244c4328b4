"""Elementwise nodes that follow each other become one step, or part of the product before them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, F16, F32, I8, U8, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL, ONNX, Op, allowed
from sardonyx.ops import lookup
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import (
    CONVERSIONS,
    ELEMENTWISE,
    STEPS,
    TYPES,
    Code,
    Instruction,
    instruction_of,
    joined,
)

MAX_OPERANDS: Final = 12
MAX_WEIGHT: Final = 36  # native instructions, as _weight guesses them
MAX_RANK: Final = 10
# Ops that become several native instructions, at most so many.
_WEIGHTS: Final = {"Pow": 6, "Cast": 3, "Clip": 2, "Shrink": 3, "SwiGLU": 2, "FastGelu": 2,
                   "BiasGelu": 2, "DequantizeLinear": 2, "QuantizeLinear": 2}  # fmt: skip
BYTES: Final = (U8, I8)
_VARIADIC: Final = frozenset(("Max", "Min", "Sum", "Mean"))


class _Group:
    """Nodes that become one; the first one is the root, whose output is that of the group."""

    __slots__ = ("members", "operands", "weight")

    def __init__(self, root: Node) -> None:
        self.members = [root]
        self.operands = dict.fromkeys(v for v in root.inputs if v is not None)
        self.weight = _weight(root)

    @property
    def root(self) -> Node:
        return self.members[0]

    def takes(self, node: Node) -> bool:
        """Whether a node, all of whose readers are members, may become one."""
        if node.marks != self.root.marks:
            return False
        shape, whole = node.outputs[0].tensor.dims, self.root.outputs[0].tensor.dims
        # A producer of fewer elements would be computed again and again, but for a single one.
        if shape != whole and (len(shape) > len(whole) or any(d != 1 for d in shape)):
            return False
        # One waits for the other: it should wait as the half that it becomes.
        if _narrows(node) and any(map(_narrows, self.members)):
            return False
        n_more = sum(1 for v in node.inputs if v is not None and v not in self.operands) - 1
        return (
            self.weight + _weight(node) <= MAX_WEIGHT
            and len(self.operands) + n_more <= MAX_OPERANDS
        )

    def add(self, node: Node) -> None:
        self.members.append(node)
        self.weight += _weight(node)
        del self.operands[node.outputs[0]]
        self.operands.update(dict.fromkeys(v for v in node.inputs if v is not None))

    def read(self) -> list[Value]:
        """The operands as they are now, when groups before this one have become other nodes."""
        made = {n.outputs[0] for n in self.members}
        values = (v for n in self.members for v in n.inputs if v is not None and v not in made)
        return list(dict.fromkeys(values))

    def code(self, operands: list[Value]) -> Code:
        """The program of the group over these operands."""
        number: dict[Value, int] = {v: i for i, v in enumerate(operands)}
        code: list[Instruction] = []
        for node in reversed(self.members):  # each after those it reads
            code.append(instruction_of(node, number.__getitem__))
            number[node.outputs[0]] = len(number)
        return tuple(code)


def _narrows(node: Node) -> bool:
    """Whether a node makes a half type of a wider one."""
    if node.op.name != "Cast" or node.inputs[0] is None:
        return False
    made = node.outputs[0].tensor.dtype
    return made in (F16, BF16) and node.inputs[0].tensor.dtype.bits > made.bits


def _weight(node: Node) -> int:
    name = node.op.name
    return len(node.inputs) + 1 if name in _VARIADIC else _WEIGHTS.get(name, 1)


def fuse_chains(graph: Graph, into_products: bool = True) -> None:
    """Rewrites a graph and its bodies: products take what follows them, the rest becomes chains."""
    if into_products:
        _fuse_biases(graph)
    order = graph.sorted_nodes()
    chain = lookup(INTERNAL, "Chain")
    assert chain is not None
    positions = {node: i for i, node in enumerate(order)}
    for group in reversed(_groups(order)):  # first to last: a product may grow more than once
        if into_products and _extend_product(graph, group, positions):
            continue
        if len(group.members) > 1:
            operands = group.read()
            made = _settle(graph, group, chain, operands, {"code": group.code(operands)})
            if into_products and made.outputs[0].tensor.dtype in BYTES:
                from sardonyx.passes.tables import tabulate  # most models have no bytes

                tabulate(graph, made)
    for node in order:
        for _, body in node.subgraphs:
            fuse_chains(body, into_products)


def _fuse_biases(graph: Graph) -> None:
    """Products take their own bias, whatever their sum is then added to."""
    for node in list(graph.nodes):
        if node.op.key == (ONNX, "Add") and _fits(node):
            constants = [v for v in node.inputs if v is not None and v.is_const]
            if len(constants) == 1:
                _extend_product(graph, _Group(node), defaultdict(int))


def _groups(order: list[Node]) -> list[_Group]:
    """Every elementwise node in one group, from the last to the first.

    All readers of a member but the root are members, so no path leaves a group and comes back.
    """
    groups: list[_Group] = []
    of: dict[Node, _Group] = {}
    for node in reversed(order):
        if node.op.key in CONVERSIONS:
            if not _converts(node):
                continue
        elif node.op.key not in ELEMENTWISE or not _fits(node):
            continue
        value = node.outputs[0]
        group = of.get(value.uses[0][0]) if value.uses and not value.n_exits else None
        is_inner = group is not None and all(of.get(n) is group for n, _ in value.uses)
        if group is not None and is_inner and group.takes(node):
            group.add(node)
        else:
            group = _Group(node)
            groups.append(group)
        of[node] = group
    return groups


def _fits(node: Node) -> bool:
    """Whether a node has a form as an instruction."""
    facts = [v.fact for v in (*node.outputs, *node.inputs) if v is not None]
    known = [f for f in facts if isinstance(f, Fact) and f.shape is not None and f.dtype in TYPES]
    rank = len(known[0].dims) if known else 0
    # The bounds of Clip may have more axes than what they bound.
    if len(known) < len(facts) or rank > MAX_RANK or any(len(f.dims) > rank for f in known):
        return False
    return node.op.name != "Pow" or known[-1].dtype is not U64


def _converts(node: Node) -> bool:
    """Whether quantizing or dequantizing is the same for all elements, and of float32."""
    if not _fits(node):
        return False
    attrs, (x, *rest) = node.attrs, (v.tensor for v in node.inputs if v is not None)
    y = node.outputs[0].tensor
    real, steps = (x, y) if node.op.name == "QuantizeLinear" else (y, x)
    is_single = all(d == 1 for fact in rest for d in fact.dims)
    is_float = real.dtype is F32 and rest[0].dtype is F32 and attrs.get("precision", 0) in (0, 1)
    return is_single and is_float and steps.dtype in STEPS


@frozen
class _Site:
    """Where a group may become an epilogue: a product, and a Reshape that stands between or not."""

    node: Node
    operand: Value  # of the group: the product, or what the Reshape makes of it
    reshape: Node | None

    @property
    def product(self) -> Value:
        return self.node.outputs[0]

    def takes(self, other: Value) -> bool:
        """Whether another operand of the group can be one of the product."""
        fact, product = other.tensor, self.product.tensor
        if fact.dtype not in allowed(self.node.op, self.node.op.inputs[-1]):
            return False
        if self.reshape is None:
            return True
        if len(fact.dims) > len(product.dims) or any(d != 1 for d in fact.dims[:-1]):
            return fact.dims == self.operand.tensor.dims and self._target() is not None
        is_same = product.dims[-1:] == self.operand.tensor.dims[-1:]
        return is_same or all(d == 1 for d in fact.dims)

    def _target(self) -> tuple[int, ...] | None:
        """The shape that makes a tensor like the operand one like the product."""
        fact = self.product.tensor
        if len(fact.dims) == 2 and isinstance(last := fact.dims[1], int) and last > 0:
            return -1, last
        return fact.static

    def fitted(self, graph: Graph, other: Value) -> Value:
        """Another operand in a shape that broadcasts to the product."""
        if self.reshape is None or other.tensor.dims != self.operand.tensor.dims:
            return other
        target = self._target()
        assert target is not None
        builder = Builder(graph)
        made: Value = builder.Reshape(other, builder.ints(*target), like=self.product)
        builder.made[0].marks = self.node.marks
        made.fact = other.tensor.shaped(self.product.tensor.dims)
        return made


def _extend_product(graph: Graph, group: _Group, positions: dict[Node, int]) -> bool:
    """Makes a group the epilogue of a product among its operands, the last of them; True if so."""
    operands = group.read()
    sites = [site for v in operands if (site := _site(v, group)) is not None]
    if not sites:
        return False
    site = max(sites, key=lambda s: positions[s.node])
    node, others = site.node, [v for v in operands if v is not site.operand]
    first, n_first = node.attrs["code"] or (), len(node.inputs) - len(node.op.inputs) + 2
    n_values = len(first) + n_first + len(others)
    if n_values > MAX_WEIGHT or not all(site.takes(v) for v in others):
        return False
    code = group.code([site.operand, *others])
    code = joined(first, n_first, code, len(others) + 1) if first else code
    inputs = [*node.inputs, *(site.fitted(graph, v) for v in others)]
    made = _settle(graph, group, node.op, inputs, {**node.attrs, "code": code}, site)
    positions[made] = positions[group.root]
    if site.reshape is not None:
        graph.remove(site.reshape)
    graph.remove(node)
    return True


def _site(value: Value, group: _Group) -> _Site | None:
    """The product that a value comes from, if the whole group may be its epilogue."""
    node, reshape = value.node, None
    if node is not None and node.op.key == (ONNX, "Reshape"):
        reshape, source = node, node.inputs[0]
        is_alone = source is not None and len(source.uses) == 1 and not source.n_exits
        node = source.node if source is not None and is_alone else None
    if node is None or node.op.domain != INTERNAL or not takes_epilogue(node.op):
        return None
    out, product = group.root.outputs[0].tensor, node.outputs[0].tensor
    if value.n_exits or product.dtype is not F32 or value.tensor.shape != out.shape:
        return None
    if out.dtype is not F32 and any(s.type == node.op.outputs[0].type for s in node.op.inputs[:-1]):
        return None
    members = set(group.members)
    if len(node.outputs) != 1 or node.graph is not group.root.graph:
        return None
    if node.marks != group.root.marks:
        return None
    if any(n not in members for n, _ in value.uses) or any(map(_divides_ints, members)):
        return None
    return _Site(node, value, reshape)


def takes_epilogue(op: Op) -> bool:
    """Whether an op is a product that may have a code and further operands behind its inputs."""
    return "code" in op.attrs and op.name != "Chain" and op.max_inputs is None


def _divides_ints(node: Node) -> bool:
    """Whether a node may fail on its data, which no epilogue may."""
    return node.op.name in ("Div", "Mod") and node.outputs[0].tensor.dtype.is_integer


def _settle(
    graph: Graph,
    group: _Group,
    op: Op,
    inputs: Sequence[Value | None],
    attrs: dict[str, Any],
    site: _Site | None = None,
) -> Node:
    """Puts one node, with the name of the root, in the place of a group."""
    old = group.root.outputs[0]
    new = graph.add(op, inputs, attrs, name=group.root.name)
    new.marks = group.root.marks
    made = new.outputs[0]
    made.fact = old.tensor.plain()
    if site is not None and site.reshape is not None:
        made.fact = old.tensor.shaped(site.product.tensor.dims)
        after = site.reshape
        reshaped = graph.add(
            after.op, [made, *after.inputs[1:]], dict(after.attrs), name=after.name
        )
        reshaped.marks = new.marks
        made = reshaped.outputs[0]
        made.fact = old.tensor.plain()
    made.name, old.name = old.name, ""
    graph.replace(old, made)
    for node in group.members:
        graph.remove(node)
    return new
