"""The graph IR: nodes, the values between them, and the only code that changes its edges.

Edges are stored on both sides: a node's inputs and each value's uses, a node's outputs and each
value's node and index, a graph's outputs and each value's number of exits. Only the methods of
`Graph` write them; `tests/graph/test_edges.py` checks that no other code does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import InternalError, InvalidGraph
from sardonyx.graph.dim import Shape
from sardonyx.graph.fact import AnyFact, Fact, filled, refines
from sardonyx.graph.guard import Scope

if TYPE_CHECKING:
    from sardonyx.graph.const import Const
    from sardonyx.graph.op import Op

# Ops whose output may share the bytes of their first input: views on the CPU and in numpy.
VIEWS: Final = frozenset((
    "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
))  # fmt: skip
MAX_PRIORITY: Final = 2**31 - 1  # of a node's priority, which is within [-max, max]
Annotations = tuple[int, bool] | tuple[int, bool, int]
Attrs = dict[str, Any]  # numbers, bytes, tuples of them, numpy arrays, Const, Graph, facts


class Value:
    """An output of a node, an input of a graph, or a constant; any number of slots read it."""

    __slots__ = ("fact", "index", "n_exits", "name", "node", "uses")

    def __init__(self, name: str, fact: AnyFact | None = None) -> None:
        self.name = name
        self.fact: AnyFact | None = fact  # None until inferred
        self.node: Node | None = None
        self.index = 0  # which output of the node
        self.uses: list[tuple[Node, int]] = []
        self.n_exits = 0  # how many times it is an output of a graph

    @property
    def is_used(self) -> bool:
        """Whether a node reads it or a graph returns it."""
        return bool(self.uses) or self.n_exits > 0

    @property
    def tensor(self) -> Fact:
        """The fact of a value that is known to be a tensor."""
        assert isinstance(self.fact, Fact), f"{self} is not a tensor"
        return self.fact

    @property
    def const(self) -> Const | None:
        """The constant of the value, if it is one."""
        fact = self.fact
        return fact.const if isinstance(fact, Fact) else None

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def op(self) -> str:
        """The op type of the node that makes the value; empty for inputs and constants."""
        return "" if self.node is None else self.node.op.name

    def __repr__(self) -> str:
        return f"{self.name or '_'}:{self.fact if self.fact is not None else '?'}"


class Node:
    """One call of an op. Inputs change only through the graph, which keeps the use lists."""

    __slots__ = (
        "assignment", "attrs", "graph", "inputs", "is_backward", "name", "op", "outputs",
        "priority",
    )  # fmt: skip

    def __init__(self, graph: Graph, op: Op, name: str, attrs: Attrs) -> None:
        self.graph = graph
        self.op = op
        self.name = name
        self.attrs = attrs
        self.inputs: tuple[Value | None, ...] = ()
        self.outputs: tuple[Value, ...] = ()
        # The priority-based execution order runs smaller numbers first; above 0: recomputation.
        self.priority = 0
        self.is_backward = False  # whether it computes gradients, in a training graph
        self.assignment = 0  # number of the user's device assignment, from 1; 0: none

    @property
    def annotations(self) -> Annotations:
        """Priority, whether the node is backward, and its device assignment, if any.

        Nodes of different annotations are not merged.
        """
        annotations = self.priority, self.is_backward
        return (*annotations, self.assignment) if self.assignment else annotations

    @annotations.setter
    def annotations(self, annotations: Annotations) -> None:
        self.priority, self.is_backward, self.assignment = (*annotations, 0)[:3]

    @property
    def is_used(self) -> bool:
        """Whether an output has a reader."""
        for value in self.outputs:  # noqa: SIM110 - a generator is slower, and this is hot
            if value.uses or value.n_exits:
                return True
        return False

    @property
    def subgraphs(self) -> list[tuple[str, Graph]]:
        """The bodies of this node, with their attribute names."""
        if not self.op.has_bodies:
            return []
        return [(k, v) for k, v in self.attrs.items() if isinstance(v, Graph)]

    def reads(self) -> Iterator[Value]:
        """Yield every value that the node reads, captures of its bodies included."""
        for value in self.inputs:
            if value is not None:
                yield value
        for _, body in self.subgraphs:
            yield from body.captures()

    def __repr__(self) -> str:
        return f"{self.name} ({self.op.name})" if self.name else self.op.name


class Graph:
    """Nodes, inputs and outputs. Nodes are in insertion order, which need not be topological."""

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(v.name for v in side) for side in (self.inputs, self.outputs))
        return f"<Graph {self.name} of {len(self.nodes)} nodes: {inputs} -> {outputs}>"

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import panel

        rows = ((n.op.name, n.name, ", ".join(str(v.fact) for v in n.outputs)) for n in self.nodes)
        return panel(f"Graph {self.name}", f"{len(self.nodes)} nodes", rows)

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: tuple[Value, ...] = ()
        self.declared: tuple[Shape | None, ...] = ()  # shapes of a body's outputs, from its file
        self.defaults: dict[Value, Const] = {}  # default values of overridable inputs
        self.nodes: dict[Node, None] = {}  # an ordered set
        self.scope = Scope()  # holds the guards from inference
        self.owner: Node | None = None  # the node whose body this is
        self.whole: Graph | None = None  # the graph that this one was cut out of

    def add(
        self,
        op: Op,
        inputs: Sequence[Value | None],
        attrs: Attrs,
        outputs: Sequence[Value] | int = 1,
        name: str = "",
    ) -> Node:
        """Append a node; `outputs` are values that no node makes yet, or their number."""
        node = Node(self, op, name, attrs)
        self.nodes[node] = None
        node.inputs = tuple(inputs)
        self._link_inputs(node)
        node.outputs = _values(outputs)
        for index, value in enumerate(node.outputs):
            value.node, value.index = node, index
        for value in attrs.values() if op.has_bodies else ():
            if isinstance(value, Graph):
                value.owner = node
        return node

    def add_input(self, value: Value, default: Const | None = None) -> None:
        """Append an input to the graph; one with a default need not be fed."""
        self.inputs.append(value)
        if default is not None:
            self.defaults[value] = default

    def set_default(self, value: Value, default: Const | None) -> None:
        """Change the default of an input; without one, every run feeds it."""
        self.defaults.pop(value, None)
        if default is not None:
            self.defaults[value] = default

    def set_inputs(self, values: Iterable[Value]) -> None:
        """Make these values the graph's inputs."""
        self.inputs = list(values)

    def set_input(self, node: Node, slot: int, value: Value | None) -> None:
        """Make one slot of a node read another value; slots up to it are added as absent."""
        if slot >= len(node.inputs):
            node.inputs += (None,) * (slot + 1 - len(node.inputs))
        old = node.inputs[slot]
        if old is not None:
            old.uses.remove((node, slot))
        if value is not None:
            value.uses.append((node, slot))
        node.inputs = (*node.inputs[:slot], value, *node.inputs[slot + 1 :])

    def replace_inputs(self, node: Node, values: Sequence[Value | None]) -> None:
        """Make a node read these values, which may be fewer or more than before."""
        self._unlink_inputs(node)
        node.inputs = tuple(values)
        self._link_inputs(node)

    def _link_inputs(self, node: Node) -> None:
        for slot, value in enumerate(node.inputs):
            if value is not None:
                value.uses.append((node, slot))

    def _unlink_inputs(self, node: Node) -> None:
        for slot, value in enumerate(node.inputs):
            if value is not None:
                value.uses.remove((node, slot))

    def add_outputs(self, node: Node, values: Iterable[Value], position: int | None = None) -> None:
        """Add outputs to a node, by default at the end; no node makes these values yet."""
        at = len(node.outputs) if position is None else position
        node.outputs = (*node.outputs[:at], *values, *node.outputs[at:])
        for index, value in enumerate(node.outputs):
            value.node, value.index = node, index

    def drop_outputs(self, node: Node, positions: Collection[int]) -> None:
        """Remove outputs that have no readers from a node; those after them move up."""
        dropped = [node.outputs[i] for i in positions]
        if any(value.is_used for value in dropped):
            raise InternalError(f"outputs of {node} are dropped while they are read: {dropped}")
        for value in dropped:
            value.node, value.index = None, 0
        node.outputs = tuple(v for i, v in enumerate(node.outputs) if i not in positions)
        for index, value in enumerate(node.outputs):
            value.index = index

    def adopt(self, nodes: Iterable[Node]) -> None:
        """Move nodes, with their bodies, from the graphs they are in to the end of this one.

        Their edges stay: what they read and what reads them must be visible from here.
        """
        for node in list(nodes):
            del node.graph.nodes[node]
            node.graph = self
            self.nodes[node] = None

    def replace(self, old: Value, new: Value) -> None:
        """Make every reader of `old`, graph outputs included, read `new`."""
        if old.fact is not None and new.fact is not None and not refines(new.fact, old.fact):
            raise InternalError(f"replacement changes {old} to {new}")
        for node, slot in tuple(old.uses):
            node.graph.set_input(node, slot, new)
        for graph in self.family():
            if not old.n_exits:
                break  # `family` visits all nodes
            if old in graph.outputs:
                graph.set_outputs([new if v is old else v for v in graph.outputs])

    def set_outputs(
        self, values: Iterable[Value], declared: Iterable[Shape | None] | None = None
    ) -> None:
        """Make these values the graph's outputs, with the shapes that the model declares.

        Without `declared`, the declared shapes stay if the number of outputs does.
        """
        for value in self.outputs:
            value.n_exits -= 1
        self.outputs = tuple(values)
        for value in self.outputs:
            value.n_exits += 1
        if declared is not None:
            self.declared = tuple(declared)
        elif len(self.declared) != len(self.outputs):
            self.declared = (None,) * len(self.outputs)

    def zero_trip_facts(self) -> list[AnyFact | None]:
        """Return facts of a body's outputs for a loop without iterations.

        Unknown sizes are as the model declares them. Declarations are not verified, so this serves
        only tensors without elements.
        """
        return [filled(v.fact, d) for v, d in zip(self.outputs, self.declared, strict=True)]

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs have no readers, with its bodies."""
        if node.is_used:
            raise InternalError(f"{node} is removed while {node.outputs} are read")
        self._unlink_inputs(node)
        for _, body in node.subgraphs:
            body.set_outputs(())
            for inner in reversed(body.sorted_nodes()):
                body.remove(inner)
        del self.nodes[node]
        # Break the reference cycle of node and values: both are freed without garbage collection.
        node.outputs = ()

    def remove_folded(self, node: Node) -> None:
        """Remove a node whose outputs have become constants, which have no node."""
        for value in node.outputs:
            value.node, value.index = None, 0
        node.outputs = ()
        self.remove(node)

    def family(self) -> Iterator[Graph]:
        """Yield this graph and all nested bodies."""
        yield self
        for node in self.nodes:
            if node.op.has_bodies:
                for _, body in node.subgraphs:
                    yield from body.family()

    def all_nodes(self) -> Iterator[Node]:
        """Yield every node of the graph and of its nested bodies."""
        for graph in self.family():
            yield from graph.nodes

    def all_values(self) -> list[Value]:
        """Return every value that the graph or a nested body has, reads or returns, once each."""
        found: dict[Value | None, None] = {}  # an ordered set
        for graph in self.family():
            found.update(dict.fromkeys((*graph.inputs, *graph.outputs)))
            for node in graph.nodes:
                found.update(dict.fromkeys((*node.inputs, *node.outputs)))
        return [value for value in found if value is not None]

    def captures(self, constants: bool = False) -> list[Value]:
        """Return the values from outside that the graph or a nested body reads, once each.

        With `constants`, constants that it reads are among them.
        """
        made: set[Value] = set()
        read: dict[Value | None, None] = {}  # an ordered set
        for graph in self.family():
            made.update(graph.inputs)
            for node in graph.nodes:
                made.update(node.outputs)
                read.update(dict.fromkeys(node.inputs))
            read.update(dict.fromkeys(graph.outputs))
        outside = (v for v in read if v is not None and v not in made)
        return [v for v in outside if constants or v.const is None]

    def sort(self) -> None:
        """Put the nodes into topological order, which inference needs."""
        self.nodes = dict.fromkeys(self.sorted_nodes())

    def sorted_nodes(self) -> list[Node]:
        """Return the nodes in topological order, else in insertion order; a cycle is an error.

        Depth-first search with an explicit stack, as graphs are deeper than the recursion limit.
        """
        order: list[Node] = []
        done: set[Node] = set()
        open_: set[Node] = set()
        for root in self.nodes:
            stack: list[tuple[Node, Iterator[Node]]] = []
            if root not in done:
                stack.append((root, self.predecessors(root)))
                open_.add(root)
            while stack:
                node, producers = stack[-1]
                for producer in producers:
                    if producer in open_:
                        cycle = " -> ".join(str(n) for n, _ in stack[-8:])
                        hint = "a node may read only what earlier nodes make"
                        what = f"the graph has a cycle through {producer}"
                        raise InvalidGraph(what, path=cycle, hint=hint)
                    if producer not in done:
                        stack.append((producer, self.predecessors(producer)))
                        open_.add(producer)
                        break
                else:
                    stack.pop()
                    open_.discard(node)
                    done.add(node)
                    order.append(node)
        return order

    def predecessors(self, node: Node) -> Iterator[Node]:
        """Yield the nodes of this graph that run before a node: they make or read its inputs.

        Those that read an input which the node updates in place must have read it before.
        """
        values: Iterable[Value | None] = node.inputs if not node.op.has_bodies else node.reads()
        for value in values:
            if value is not None and value.node is not None and value.node.graph is self:
                yield value.node
        for slot in node.op.updates.values():
            updated = node.inputs[slot] if slot < len(node.inputs) else None
            if updated is not None:
                yield from (reader for reader in self._readers(updated) if reader is not node)

    def _readers(self, value: Value) -> Iterator[Node]:
        """Yield the nodes of this graph that read the bytes of a value, also through views."""
        for user, _ in value.uses:
            node: Node | None = user
            while node is not None and node.graph is not self:
                node = node.graph.owner  # of the body that reads it
            if node is None:
                continue
            yield node
            if node.op.name in VIEWS:
                for view in node.outputs:
                    yield from self._readers(view)


def detached(
    graph: Graph,
    op: Op,
    inputs: Sequence[Value | None],
    attrs: Attrs,
    outputs: Sequence[Value] | int = 1,
    name: str = "",
) -> Node:
    """Return a node that is in no graph, for inference or folding.

    It is not among the uses of its inputs, and its outputs do not refer to it.
    """
    node = Node(graph, op, name, attrs)
    node.inputs, node.outputs = tuple(inputs), _values(outputs)
    return node


def _values(outputs: Sequence[Value] | int) -> tuple[Value, ...]:
    """Return the values themselves, or that many new ones."""
    return tuple(Value("") for _ in range(outputs)) if isinstance(outputs, int) else tuple(outputs)


def input_of(node: Node, slot: int) -> Value:
    """Return an input that the op requires."""
    value = node.inputs[slot]
    assert value is not None
    return value


def optional_input(node: Node, slot: int) -> Value | None:
    """Return an optional input; None where the node omits it."""
    return node.inputs[slot] if slot < len(node.inputs) else None
