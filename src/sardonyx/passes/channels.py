"""Channels last: convolution networks run on images [batch, *spatial, channels].

Convolutions and pools take only such images. Every other op that can work either way is turned
where that moves fewer bytes; where both forms of a value are needed, a Transpose makes the other.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.passes.driver import drop
from sardonyx.passes.fold import FoldingBuilder
from sardonyx.passes.last import Maker, floats, int64s, last_fact
from sardonyx.passes.turns import (
    TURNS,
    Turn,
    bytes_mean,
    bytes_product,
    is_free,
    pool,
    product,
    rank_of,
    to_first,
    to_last,
    turn_of,
)

FIRST: Final = 1
LAST: Final = 2
_SWAPPED: Final = (0, LAST, FIRST, FIRST | LAST)
_OPEN_SIZE: Final = 64  # what an open size counts as
_ONLY_SHAPE: Final = frozenset(("Shape", "Size"))  # ops that read no elements


def channels_last(graph: Graph) -> None:
    """Turns the images of a graph, and of the bodies in it, where there are convolutions."""
    if any(TURNS.get(n.op.key) in (product, pool, bytes_product, bytes_mean) for n in graph.nodes):
        _Images(graph).run()
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            channels_last(body)


class _Images:
    """Which values of one graph are images with the channels last.

    A value that is turned stays the same object: readers that come later see that it is in `last`,
    and take `other` where they want it as it was.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._order = graph.sorted_nodes()
        self._turns: dict[Node, Turn] = {}
        self._last: set[Value] = set()
        self._other: dict[Value, Value] = {}  # the other form of a value
        self._still: list[Node] = []  # Transposes that move nothing any more
        self._gone: list[Node] = []

    def run(self) -> None:
        """One walk to see who needs what, and one that decides."""
        for node in self._order:
            turn = turn_of(node)
            if turn is not None:
                self._turns[node] = turn
        self._needs = _needs(self._order, self._turns, self._graph)
        for node in self._order:
            turn = self._turns.get(node)
            if node.op.name == "Transpose" and not node.op.domain and rank_of(node.outputs[0]) >= 0:
                self._transpose(node)
            elif turn is not None and self._pays(node, turn):
                self._turn(node, turn)
            else:
                self._keep(node)
        for node in self._still:
            self._replace(node.outputs[0], node.inputs[0])
        drop(self._graph, [*self._gone, *self._still])
        drop(self._graph, [n for n in self._graph.nodes if n.op.name == "Transpose"])

    def _pays(self, node: Node, turn: Turn) -> bool:
        """Whether fewer bytes are moved when the node works with the channels last."""
        if turn.is_must:
            return True
        images = {v for i in turn.slots if (v := node.inputs[i]) is not None}
        stay = turned = 0
        for value in images:
            if value.is_const:
                continue
            if value in self._last:
                stay += 0 if value in self._other else _cost(value, is_last=True)
            elif value not in self._other:
                turned += _cost(value)
            elif value.op == "Transpose":
                stay += _cost(value)
        if turn.is_image:
            for value in node.outputs:
                needs, cost = self._needs.get(value, 0), _cost(value)
                stay += cost if needs & LAST else 0
                turned += cost if needs & FIRST else 0
        return turned < stay or (turned == stay and not images.isdisjoint(self._last))

    def _turn(self, node: Node, turn: Turn) -> None:
        rank = rank_of(node.outputs[0])
        images = [self._as_last(node, i, rank if turn.broadcasts else 0) for i in turn.slots]
        if turn.build is not None:
            made = turn.build(Maker(self._graph, node), node, images)
            old = node.outputs[0]
            old.fact = made.fact
            made.name, old.name = old.name, ""
            self._needs[made] = self._needs.get(old, 0)
            self._graph.replace(old, made)
            self._gone.append(node)
            self._mark(made)
            return
        for slot, value in zip(turn.slots, images, strict=True):
            if node.inputs[slot] is not value:
                self._graph.set_input(node, slot, value)
        for slot, value in turn.inputs.items():
            self._graph.set_input(node, slot, value)
        node.op = turn.op or node.op
        node.attrs = {**node.attrs, **turn.attrs} if turn.attrs else node.attrs
        if turn.op is not None:
            self._graph.drop_outputs(node, range(1, len(node.outputs)))
        for value in _images_of(node) if turn.is_image else ():
            value.fact = last_fact(value.tensor)
            self._mark(value)

    def _mark(self, value: Value) -> None:
        """Notes that a value is turned; who cannot be told later reads it as it was."""
        self._last.add(value)
        outside = [(n, i) for n, i in value.uses if n.graph is not self._graph]
        if value.n_exits or outside:
            first = self._first(value)
            for node, slot in outside:
                node.graph.set_input(node, slot, first)
            for graph in self._graph.family() if value.n_exits else ():
                if value in graph.outputs:
                    graph.set_outputs([first if v is value else v for v in graph.outputs])
                    first.name, value.name = value.name or first.name, ""

    def _keep(self, node: Node) -> None:
        for slot, value in enumerate(node.inputs):
            if value is not None and value in self._last:
                self._graph.set_input(node, slot, self._first(value))

    def _first(self, value: Value) -> Value:
        """A turned value as it was."""
        made = self._other.get(value)
        if made is None:
            made = self._other[value] = self._moved(value, to_first(value.tensor.rank))
        return made

    def _as_last(self, node: Node, slot: int, rank: int) -> Value:
        """An input with the channels last; with a rank, as an operand that broadcasts to it."""
        value = node.inputs[slot]
        assert value is not None
        fact = value.tensor
        is_operand = bool(rank) and (fact.rank < rank or _has_image(node))
        rank = rank or fact.rank
        if fact.rank == rank and value in self._last:
            return value
        if all(d == 1 for d in fact.dims):
            return self._first(value) if value in self._last else value
        if fact.rank == rank and value in self._other:
            return self._other[value]
        if value.is_const:
            return self._constant(value, rank, is_operand)
        if fact.rank == rank:
            made = self._other[value] = self._moved(value, to_last(rank))
            return made
        plain = self._first(value) if value in self._last else value
        lifted = Fact(fact.dtype, (1,) * (rank - fact.rank) + plain.tensor.dims)
        axes = int64s(range(rank - fact.rank))
        up = Maker(self._graph, node)("Unsqueeze", plain, axes, like=lifted)
        return self._moved(up, to_last(rank))

    def _constant(self, value: Value, rank: int, is_operand: bool) -> Value:
        """A constant with the channels last; an operand needs no dims of one element in front."""
        const = value.const
        assert const is not None
        shape = (1,) * (rank - len(const.shape)) + const.shape
        order = to_last(rank)
        if const.is_small:
            array = const.read().reshape(shape).transpose(order)
            n_ones = next(i for i, d in enumerate(array.shape) if d != 1) if is_operand else 0
            return floats(array.reshape(array.shape[n_ones:]), const.dtype)
        build = FoldingBuilder(self._graph, 1 << 30)
        lifted = value
        if len(shape) > len(const.shape):
            lifted = build.Reshape(value, int64s(shape))
        made: Value = build.Transpose(lifted, perm=order)
        return made

    def _transpose(self, node: Node) -> None:
        """A Transpose of the model reads what there is, and gives its ends their other form."""
        value = node.inputs[0]
        assert value is not None
        rank, y = value.tensor.rank, node.outputs[0]
        perm = tuple(node.attrs["perm"] or reversed(range(rank)))
        order = _after(to_first(rank), perm) if value in self._last and rank >= 3 else perm
        source, order = _source(value, order)
        if source is not value:
            self._graph.set_input(node, 0, source)
        node.attrs = {**node.attrs, "perm": order}
        if order == tuple(range(rank)):
            self._still.append(node)
        if rank >= 3 and order == to_first(rank):
            self._other[y] = source
        if rank >= 3 and perm == to_last(rank) and value not in self._last:
            self._other.setdefault(value, y)

    def _moved(self, value: Value, order: tuple[int, ...]) -> Value:
        """A value with its axes in another order."""
        source, order = _source(value, order)
        if order == tuple(range(len(order))):
            return source
        dims = source.tensor.dims
        fact = Fact(source.tensor.dtype, tuple(dims[i] for i in order))
        return Maker(self._graph, source.node)("Transpose", source, like=fact, perm=order)

    def _replace(self, old: Value, new: Value | None) -> None:
        """Puts a value in the place of another of the same bytes."""
        assert new is not None
        if old.n_exits and (new.node is None or new.n_exits):
            return  # an output has a name of its own
        if old.n_exits:
            new.name, old.name = old.name, ""
        self._graph.replace(old, new)


def _images_of(node: Node) -> list[Value]:
    """The outputs of a node but for the numbers that some ops give besides."""
    return [v for v in node.outputs if rank_of(v) >= 3]


def _needs(order: list[Node], turns: dict[Node, Turn], graph: Graph) -> dict[Value, int]:
    """In which form each value is needed in the end, by what cannot be turned."""
    needs: dict[Value, int] = dict.fromkeys(graph.outputs, FIRST)
    for node in reversed(order):
        turn = turns.get(node)
        slots: tuple[int, ...] = ()
        wanted = 0
        if turn is not None:
            slots, wanted = turn.slots, LAST if turn.is_must else 0
            for value in _images_of(node) if turn.is_image and not turn.is_must else ():
                wanted |= needs.get(value, 0)
        elif node.op.name == "Transpose" and rank_of(node.outputs[0]) >= 3:
            perm, rank = tuple(node.attrs["perm"] or ()), rank_of(node.outputs[0])
            is_swap = perm in (to_last(rank), to_first(rank))
            slots, wanted = (0,), _SWAPPED[needs.get(node.outputs[0], 0)] if is_swap else 0
        if node.op.name in _ONLY_SHAPE:
            continue
        for i, read in enumerate(node.reads() if node.op.has_bodies else node.inputs):
            if read is not None:
                needs[read] = needs.get(read, 0) | (wanted if i in slots else FIRST)
    return needs


def _source(value: Value, order: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
    """What a value's axes come from through Transposes, and their order all together."""
    while value.op == "Transpose" and value.node is not None:
        perm, inner = value.node.attrs["perm"], value.node.inputs[0]
        if not perm or inner is None:
            break
        value, order = inner, _after(tuple(perm), order)
    return value, order


def _after(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Two orders of axes as one."""
    return tuple(first[i] for i in second)


def _has_image(node: Node) -> bool:
    """Whether the output's rank does not hang on a constant."""
    rank = rank_of(node.outputs[0])
    return any(rank_of(v) == rank and not v.is_const for v in node.inputs if v is not None)


def _cost(value: Value, is_last: bool = False) -> int:
    """How many bytes, or so, move when an image is turned."""
    fact = value.tensor
    dims = fact.dims if not is_last else (fact.dims[0], fact.dims[-1], *fact.dims[1:-1])
    if len(dims) < 3 or is_free(dims):
        return 0
    count = fact.dtype.itemsize
    for d in dims:
        count *= d if isinstance(d, int) else _OPEN_SIZE
    return count
