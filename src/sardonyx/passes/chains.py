"""Elementwise nodes that follow each other become one step, or part of the product before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sardonyx.graph.dtype import F32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops import lookup
from sardonyx.ops.chain import ELEMENTWISE, TYPES, Code, Instruction, instruction_of, joined
from sardonyx.ops.declare import INTERNAL, Op, allowed

MAX_OPERANDS: Final = 12
MAX_WEIGHT: Final = 36  # native instructions, as _weight guesses them
MAX_RANK: Final = 10
# Ops that become several native instructions, at most so many.
_WEIGHTS: Final = {"Pow": 6, "Cast": 3, "Clip": 2, "Shrink": 3, "SwiGLU": 2, "FastGelu": 2,
                   "BiasGelu": 2}  # fmt: skip
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
        shape, whole = node.outputs[0].tensor.dims, self.root.outputs[0].tensor.dims
        # A producer of fewer elements would be computed again and again, but for a single one.
        if shape != whole and (len(shape) > len(whole) or any(d != 1 for d in shape)):
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

    def code(self, operands: list[Value]) -> Code:
        """The program of the group over these operands."""
        number: dict[Value, int] = {v: i for i, v in enumerate(operands)}
        code: list[Instruction] = []
        for node in reversed(self.members):  # each after those it reads
            code.append(instruction_of(node, number.__getitem__))
            number[node.outputs[0]] = len(number)
        return tuple(code)


def _weight(node: Node) -> int:
    name = node.op.name
    return len(node.inputs) + 1 if name in _VARIADIC else _WEIGHTS.get(name, 1)


def fuse_chains(graph: Graph) -> None:
    """Rewrites a graph and its bodies: products take what follows them, the rest becomes chains."""
    order = graph.sorted_nodes()
    chain = lookup(INTERNAL, "Chain")
    assert chain is not None
    positions = {node: i for i, node in enumerate(order)}
    for group in _groups(graph, order):
        if not _extend_product(graph, group, positions) and len(group.members) > 1:
            operands = list(group.operands)
            _settle(graph, group, chain, operands, {"code": group.code(operands)})
    for node in order:
        for _, body in node.subgraphs:
            fuse_chains(body)


def _groups(graph: Graph, order: list[Node]) -> list[_Group]:
    """Every elementwise node in one group, from the last to the first.

    All readers of a member but the root are members, so no path leaves a group and comes back.
    """
    groups: list[_Group] = []
    of: dict[Node, _Group] = {}
    for node in reversed(order):
        if node.op.key not in ELEMENTWISE or not _fits(node):
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


def _extend_product(graph: Graph, group: _Group, positions: dict[Node, int]) -> bool:
    """Makes a group the epilogue of a product among its operands, the last of them; True if so."""
    found = [(v.node, v) for v in group.operands if v.node is not None and _is_open(v, group)]
    if not found:
        return False
    node, product = max(found, key=lambda pair: positions[pair[0]])
    others = [v for v in group.operands if v is not product]
    slot = node.op.inputs[-1]
    if any(v.tensor.dtype not in allowed(node.op, slot) for v in others):
        return False
    code, n_fixed = group.code([product, *others]), len(node.op.inputs) - 1
    if node.attrs["code"] is not None:
        n_first = len(node.inputs) - n_fixed + 1
        code = joined(node.attrs["code"], n_first, code, len(others) + 1)
    _settle(graph, group, node.op, [*node.inputs, *others], {**node.attrs, "code": code})
    graph.remove(node)
    return True


def _is_open(value: Value, group: _Group) -> bool:
    """Whether a value comes from a product that the whole group may be the epilogue of."""
    node = value.node
    if node is None or node.op.domain != INTERNAL or not takes_epilogue(node.op):
        return False
    out = group.root.outputs[0].tensor
    if value.n_exits or value.tensor.dtype is not F32 or value.tensor.shape != out.shape:
        return False
    if out.dtype is not F32 and any(s.type == node.op.outputs[0].type for s in node.op.inputs[:-1]):
        return False
    if any(_divides_ints(n) for n in group.members):
        return False
    members = set(group.members)
    return len(node.outputs) == 1 and all(n in members for n, _ in value.uses)


def takes_epilogue(op: Op) -> bool:
    """Whether an op is a product that may have a code and further operands behind its inputs."""
    return "code" in op.attrs and op.name != "Chain" and op.max_inputs is None


def _divides_ints(node: Node) -> bool:
    """Whether a node may fail on its data, which no epilogue may."""
    return node.op.name in ("Div", "Mod") and node.outputs[0].tensor.dtype.is_integer


def _settle(
    graph: Graph, group: _Group, op: Op, inputs: Sequence[Value | None], attrs: dict[str, Any]
) -> None:
    """Puts one node, with the name of the root, in the place of a group."""
    old = group.root.outputs[0]
    made = graph.add(op, inputs, attrs, name=group.root.name).outputs[0]
    made.fact = old.tensor.plain()
    made.name, old.name = old.name, ""
    graph.replace(old, made)
    for node in group.members:
        graph.remove(node)
