"""NHWC layout propagation: chooses NCHW or NHWC for each value, by the bytes Transposes move.

Convolutions run on channels-last images [batch, *spatial, channels] only. Every other
op that has an NHWC rule (`layout/rules.py`) follows them where that moves fewer bytes through
Transposes; where a value is needed in both layouts, a Transpose converts it.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.passes.constant_folding import FoldingBuilder
from sardonyx.passes.layout.nhwc_nodes import NodeMaker, int64s, nhwc_fact, typed_constant
from sardonyx.passes.layout.rules import (
    NHWC_RULES,
    NhwcRule,
    conv,
    is_same_in_both,
    nchw_perm,
    nhwc_perm,
    nhwc_rule_of,
    pooling,
    quantized_image,
    rank_of,
    weight_gradient,
)
from sardonyx.passes.replace import drop, replace_value

# Layouts as bits: a value can be required in both.
NCHW: Final = 1
NHWC: Final = 2
_AFTER_SWAP: Final = (0, NHWC, NCHW, NCHW | NHWC)  # by set of layouts: NCHW and NHWC exchanged
_SYMBOLIC_SIZE: Final = 64  # the size that the cost model assumes for a symbolic dim
_NHWC_KERNELS: Final = (conv, pooling, quantized_image, weight_gradient)  # rules of ops with them
_SHAPE_READERS: Final = frozenset(("Shape", "Size"))  # ops that read no elements


def propagate_layout(graph: Graph) -> None:
    """Convert a graph, and the bodies in it, to NHWC where there are convolutions or poolings."""
    for each in graph.family():
        if any(NHWC_RULES.get(n.op.key) in _NHWC_KERNELS for n in each.nodes):
            _LayoutPropagation(each).run()


class _LayoutPropagation:
    """Chooses the layout of each value of one graph.

    A converted value stays the same object, with its axes permuted and recorded in `_nhwc`; readers
    visited later either follow or read its NCHW form from `_other_layout`. Nodes are visited in
    topological order, so a value is final before its readers.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._order = graph.sorted_nodes()
        self._nhwc: set[Value] = set()
        self._other_layout: dict[Value, Value] = {}  # the same value in the other layout
        self._identities: list[Node] = []  # Transposes that have become the identity
        self._replaced: list[Node] = []

    def run(self) -> None:
        """Collect the required layouts backwards, then choose a layout node by node."""
        self._rules = {n: rule for n in self._order if (rule := nhwc_rule_of(n)) is not None}
        # The only lookahead of the decisions below: one pass over the nodes, no iteration.
        self._required_layouts = _required_layouts(self._order, self._rules, self._graph)
        for node in self._order:
            rule = self._rules.get(node)
            if node.op.name == "Transpose" and not node.op.domain and rank_of(node.outputs[0]) >= 0:
                self._transpose(node)
            elif rule is not None and self._is_cheaper_in_nhwc(node, rule):
                self._convert(node, rule)
            else:
                self._keep_nchw(node)
        # Only now: until all nodes are converted, the maps above refer to their outputs.
        for node in self._identities:
            self._replace(node.outputs[0], input_of(node, 0))
        drop(self._graph, [*self._replaced, *self._identities])
        # Transposes for readers that followed after all.
        drop(self._graph, [n for n in self._graph.nodes if n.op.name == "Transpose"])

    def _is_cheaper_in_nhwc(self, node: Node, rule: NhwcRule) -> bool:
        """Whether Transposes move fewer bytes if the node works in NHWC.

        The cost counts the conversions of inputs that are not there in that layout, and of outputs
        that a later node requires in the other one. On a tie the node follows its inputs.
        """
        if rule.requires_nhwc:
            return True
        images = {v for i in rule.slots if (v := node.inputs[i]) is not None}
        nchw_bytes = nhwc_bytes = 0
        # Inputs: what is missing in a layout must be transposed to it. Constants cost nothing.
        for value in images:
            if value.is_const:
                continue
            # NHWC already: staying in NCHW costs a Transpose, unless there is one.
            if value in self._nhwc:
                nchw_bytes += 0 if value in self._other_layout else _cost(value, is_last=True)
            elif value not in self._other_layout:
                nhwc_bytes += _cost(value)
            elif value.op == "Transpose":
                nchw_bytes += _cost(value)
        # Outputs: one Transpose for all readers that require the other layout.
        if rule.has_image_output:
            for value in node.outputs:
                needs, cost = self._required_layouts.get(value, 0), _cost(value)
                nchw_bytes += cost if needs & NHWC else 0
                nhwc_bytes += cost if needs & NCHW else 0
        return nhwc_bytes < nchw_bytes or (
            nhwc_bytes == nchw_bytes and not images.isdisjoint(self._nhwc)
        )

    def _convert(self, node: Node, rule: NhwcRule) -> None:
        """Convert the node to NHWC by its rule."""
        rank = rank_of(node.outputs[0])
        images = [self._as_nhwc(node, i, rank if rule.broadcasts else 0) for i in rule.slots]
        # Several nodes replace this one; the last of them computes its output.
        if rule.build is not None:
            old, new = node.outputs[0], rule.build(NodeMaker(self._graph, node), node, images)
            old.fact = new.fact
            self._required_layouts[new] = self._required_layouts.get(old, 0)
            replace_value(self._graph, old, new)
            self._replaced.append(node)
            self._mark_nhwc(new)
            return
        # Otherwise the node stays, with NHWC images and changed axes, pads or attributes.
        for slot, value in zip(rule.slots, images, strict=True):
            if node.inputs[slot] is not value:
                self._graph.set_input(node, slot, value)
        for slot, value in rule.inputs.items():
            self._graph.set_input(node, slot, value)
        node.op = rule.op or node.op
        node.attrs = {**node.attrs, **rule.attrs} if rule.attrs else node.attrs
        if rule.op is not None:
            kept = len(node.op.outputs)
            self._graph.drop_outputs(node, range(kept, len(node.outputs)))
            node.attrs = {k: v for k, v in node.attrs.items() if k in node.op.attrs}
        for value in _images_of(node) if rule.has_image_output else ():
            value.fact = nhwc_fact(value.tensor)
            self._mark_nhwc(value)

    def _mark_nhwc(self, value: Value) -> None:
        """Record that a value is NHWC; readers in bodies and graph outputs keep NCHW."""
        self._nhwc.add(value)
        # This walk does not visit them, so they cannot follow the layout.
        in_bodies = [(n, i) for n, i in value.uses if n.graph is not self._graph]
        if value.n_exits or in_bodies:
            nchw = self._as_nchw(value)
            for node, slot in in_bodies:
                node.graph.set_input(node, slot, nchw)
            for graph in self._graph.family() if value.n_exits else ():
                if value in graph.outputs:
                    graph.set_outputs([nchw if v is value else v for v in graph.outputs])
                    nchw.name, value.name = value.name or nchw.name, ""

    def _keep_nchw(self, node: Node) -> None:
        """Make a node read its inputs in NCHW."""
        for slot, value in enumerate(node.inputs):
            if value is not None and value in self._nhwc:
                self._graph.set_input(node, slot, self._as_nchw(value))

    def _as_nchw(self, value: Value) -> Value:
        """The NCHW form of an NHWC value."""
        if value not in self._other_layout:
            self._other_layout[value] = self._permuted(value, nchw_perm(value.tensor.rank))
        return self._other_layout[value]

    def _as_nhwc(self, node: Node, slot: int, rank: int) -> Value:
        """An input in NHWC; `rank`: as an operand that broadcasts to an output of this rank."""
        value = input_of(node, slot)
        fact = value.tensor
        is_operand = bool(rank) and (fact.rank < rank or _has_image(node))
        rank = rank or fact.rank
        if fact.rank == rank and value in self._nhwc:
            return value
        # One element has the same bytes in any layout.
        if all(d == 1 for d in fact.dims):
            return self._as_nchw(value) if value in self._nhwc else value
        if fact.rank == rank and value in self._other_layout:
            return self._other_layout[value]
        if value.is_const:
            return self._constant(value, rank, is_operand)
        if fact.rank == rank:
            self._other_layout[value] = self._permuted(value, nhwc_perm(rank))
            return self._other_layout[value]
        # An operand of lower rank: leading axes of size 1, then the permutation.
        nchw = self._as_nchw(value) if value in self._nhwc else value
        unsqueezed = Fact(fact.dtype, (1,) * (rank - fact.rank) + nchw.tensor.dims)
        axes = int64s(range(rank - fact.rank))
        y = NodeMaker(self._graph, node)("Unsqueeze", nchw, axes, like=unsqueezed)
        return self._permuted(y, nhwc_perm(rank))

    def _constant(self, value: Value, rank: int, is_operand: bool) -> Value:
        """A constant in NHWC; for operands without the leading axes of size 1."""
        const = value.const
        assert const is not None
        shape = (1,) * (rank - len(const.shape)) + const.shape
        order = nhwc_perm(rank)
        if const.is_small:
            array = const.read().reshape(shape).transpose(order)
            n_ones = next(i for i, d in enumerate(array.shape) if d != 1) if is_operand else 0
            return typed_constant(array.reshape(array.shape[n_ones:]), const.dtype)
        # A large constant becomes a recipe: it is permuted when it is packed.
        b = FoldingBuilder(self._graph, 1 << 30)
        is_full = len(shape) == len(const.shape)
        return b.Transpose(value if is_full else b.Reshape(value, int64s(shape)), perm=order)

    def _transpose(self, node: Node) -> None:
        """Combine a Transpose of the model with the layout of its input.

        One between NCHW and NHWC also provides the other layout of its input or output, so that no
        further Transpose is needed.
        """
        value = input_of(node, 0)
        rank, y = value.tensor.rank, node.outputs[0]
        perm = tuple(node.attrs["perm"] or reversed(range(rank)))
        # The permutation relative to the layout that the input has now.
        order = _composed(nchw_perm(rank), perm) if value in self._nhwc and rank >= 3 else perm
        source, order = _transpose_source(value, order)
        if source is not value:
            self._graph.set_input(node, 0, source)
        node.attrs = {**node.attrs, "perm": order}
        if order == tuple(range(rank)):
            self._identities.append(node)
        if rank >= 3 and order == nchw_perm(rank):
            self._other_layout[y] = source
        if rank >= 3 and perm == nhwc_perm(rank) and value not in self._nhwc:
            self._other_layout.setdefault(value, y)

    def _permuted(self, value: Value, order: tuple[int, ...]) -> Value:
        """A value with permuted axes, from before any Transposes that compute it."""
        source, order = _transpose_source(value, order)
        if order == tuple(range(len(order))):
            return source
        dims = source.tensor.dims
        fact = Fact(source.tensor.dtype, tuple(dims[i] for i in order))
        return NodeMaker(self._graph, source.node)("Transpose", source, like=fact, perm=order)

    def _replace(self, old: Value, new: Value) -> None:
        """Replace a value by one with the same bytes, unless both are graph outputs."""
        if old.n_exits and (new.node is None or new.n_exits):
            return  # each graph output needs a value of its own
        if old.n_exits:
            new.name, old.name = old.name, ""
        self._graph.replace(old, new)


def _images_of(node: Node) -> list[Value]:
    """The outputs of a node that are images; some ops also return scalars."""
    return [v for v in node.outputs if rank_of(v) >= 3]


def _required_layouts(
    order: list[Node], rules: dict[Node, NhwcRule], graph: Graph
) -> dict[Value, int]:
    """The layouts in which each value is finally needed by nodes that cannot choose.

    A backward data-flow analysis: nodes with an NHWC rule pass on what their outputs need.
    """
    needs: dict[Value, int] = dict.fromkeys(graph.outputs, NCHW)
    for node in reversed(order):
        rule = rules.get(node)
        slots: tuple[int, ...] = ()
        layouts = 0
        if rule is not None:
            slots, layouts = rule.slots, NHWC if rule.requires_nhwc else 0
            if rule.has_image_output and not rule.requires_nhwc:
                for value in _images_of(node):
                    layouts |= needs.get(value, 0)
        elif node.op.name == "Transpose" and rank_of(node.outputs[0]) >= 3:
            perm, rank = tuple(node.attrs["perm"] or ()), rank_of(node.outputs[0])
            # One between the two layouts needs its input in the other layout than its output.
            is_swap = perm in (nhwc_perm(rank), nchw_perm(rank))
            slots, layouts = (0,), _AFTER_SWAP[needs.get(node.outputs[0], 0)] if is_swap else 0
        if node.op.name in _SHAPE_READERS:
            continue
        # Inputs that are not images, and those of nodes without a rule, are read in NCHW.
        for i, read in enumerate(node.reads() if node.op.has_bodies else node.inputs):
            if read is not None:
                needs[read] = needs.get(read, 0) | (layouts if i in slots else NCHW)
    return needs


def _transpose_source(value: Value, order: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
    """The value before the Transposes that compute one, and the permutation from it."""
    while value.op == "Transpose" and value.node is not None:
        perm, inner = value.node.attrs["perm"], value.node.inputs[0]
        if not perm or inner is None:
            break
        value, order = inner, _composed(tuple(perm), order)
    return value, order


def _composed(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that applies `first`, then `second`."""
    return tuple(first[i] for i in second)


def _has_image(node: Node) -> bool:
    """Whether some non-constant input has the rank of the output."""
    rank = rank_of(node.outputs[0])
    return any(rank_of(v) == rank and not v.is_const for v in node.inputs if v is not None)


def _cost(value: Value, is_last: bool = False) -> int:
    """The bytes, roughly, that converting a value to the other layout moves."""
    fact = value.tensor
    dims = fact.dims if not is_last else (fact.dims[0], fact.dims[-1], *fact.dims[1:-1])
    # No Transpose at all, or one that only changes the shape.
    if len(dims) < 3 or is_same_in_both(dims):
        return 0
    count = fact.dtype.itemsize
    for d in dims:
        count *= d if isinstance(d, int) else _SYMBOLIC_SIZE
    return count
