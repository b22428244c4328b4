"""Gradients of Loop and Scan: a loop that runs the iterations in reverse.

The inputs of each iteration are collected in the forward loop: as scan outputs, or as a sequence
where shapes change from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sardonyx.autodiff.backward import Backward, Gradients, accumulate
from sardonyx.autodiff.bodies import BodyGradient, Contributions, random_nodes
from sardonyx.autodiff.dependence import captured
from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import Dim, symbols
from sardonyx.graph.dtype import BOOL, I64
from sardonyx.graph.fact import AnyFact, Fact, SequenceFact, names_in
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.ops.builder import Builder
from sardonyx.ops.control.scan_outputs import stacked
from sardonyx.ops.control.standard import axes_and_directions, stays_true
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import element_type, ranked
from sardonyx.ops.inference import axis_of

Seeds = list[tuple[Value, Value]]


def gradients(b: Backward, node: Node, grads: Sequence[Value | None]) -> Contributions:
    """Yield the values that a Loop or Scan reads, each with its gradient."""
    kind = _LoopGradient if node.op.name == "Loop" else _ScanGradient
    return kind(b, node, grads).contributions()


class _IterationGradient:
    """Common to Loop and Scan: carried values, and values that an iteration reads."""

    n_before = 0  # inputs of the body before the carried ones
    n_results_before = 0  # outputs of the body before the carried ones

    def __init__(self, b: Backward, node: Node, grads: Sequence[Value | None]) -> None:
        self.b, self.node = b, node
        self.body: Graph = node.attrs["body"]
        n_scanned = node.attrs.get("num_scan_inputs", 0)
        self.n_carried = max(0, len(node.inputs) - self.n_before - n_scanned)
        self.grads = [*grads[: self.n_carried]]
        self.scan_grads = grads[self.n_carried :]
        self.inner = BodyGradient(b, self.body)
        self.states: list[Value] = []  # gradients that the backward body carries
        # Forward values that an iteration reads; where the backward body reads them.
        self.kept: dict[Value, Value] = {}
        first = self.n_before
        carried = self.body.inputs[first : first + self.n_carried]
        self.carried = {i: v for i, v in enumerate(carried) if b.wants(v)}
        self.captured = [v for v in dict.fromkeys(captured(node)) if b.wants(v)]

    def read(self, value: Value) -> Value:
        """Return a value of the forward iteration, in the backward iteration."""
        raise NotImplementedError

    def seeds(self) -> Seeds:
        """Return the gradients of the body's scan outputs in one iteration."""
        raise NotImplementedError

    @property
    def results(self) -> Sequence[Value]:
        """The carried values as the body returns them, then its scan outputs."""
        return self.body.outputs[self.n_results_before :]

    def given(self) -> Iterator[Value]:
        """Yield the values that an iteration starts from, or cannot recompute."""
        yield from self.body.inputs[self.n_before : self.n_before + self.n_carried]
        for node in random_nodes(self.body):
            yield from node.outputs

    def backpropagate(self, slices: Sequence[Value] = ()) -> Gradients:
        """Return the gradients of what one iteration reads, and of `slices` of outer values."""
        inner, seeds = self.inner, self.seeds()
        for i, value in self.carried.items():
            self.states.append(inner.input(_carried_fact(value, self.results[i])))
            seeds.append((self.results[i], self.states[-1]))
        targets = [*self.carried.values(), *self.captured, *slices]
        return inner.backpropagate(seeds, targets, ends=slices)

    def initial(self, found: Gradients) -> list[Value]:
        """Return the initial carried values: gradients of final values, and zeros to add to."""
        finals = [(self.node.outputs[i], self.grads[i]) for i in self.carried]
        return [
            *(self.b.zeros(v) if g is None else g for v, g in finals),
            *(self.b.zeros(v) for v in self.captured if v in found),
        ]

    def carried_out(self, found: Gradients) -> list[Value]:
        """Return the values that a backward iteration carries; adds the inputs for sums."""
        inner = self.inner
        outs = [
            found[v] if v in found else inner.b.zeros(inner.of(v)) for v in self.carried.values()
        ]
        for value in self.captured:
            if value in found:
                self.states.append(inner.input(value.fact))
                outs.append(accumulate(inner.b, value, self.states[-1], found[value]))
        return outs

    def results_of(self, made: Node, found: Gradients) -> Contributions:
        """Yield the gradients that the backward loop returns."""
        read = [self.node.inputs[self.n_before + i] for i in self.carried]
        values = [*read, *(v for v in self.captured if v in found)]
        for value, grad in zip(values, made.outputs, strict=False):
            if value is not None and self.b.wants(value):
                yield value, self.b.like(grad, value)

    def keep(self, value: Value, fact: AnyFact) -> Value:
        """Collect a value over the forward iterations; `fact` is that of the collection."""
        body, node = self.body, self.node
        copy = Builder(body, body.scope).Identity(value)
        body.set_outputs([*body.outputs, copy], [*body.declared, None])
        collected = Value("", fact)
        node.graph.add_outputs(node, [collected])
        return collected


def _carried_fact(value: Value, result: Value) -> Fact | SequenceFact:
    """Return the fact of a carried gradient: of unknown rank if the shape may change."""
    if isinstance(result.fact, SequenceFact):
        return SequenceFact(Fact(element_type(result.fact), None))
    if isinstance(result.fact, Fact) and isinstance(value.fact, Fact):
        is_fixed = result.fact.static is not None and value.fact.static == result.fact.static
        return result.fact if is_fixed else Fact(result.fact.dtype, None)
    raise NotImplemented(f"the carried value {value} changes its kind, so it has no gradient")


def _scattered(b: Backward, node: Node, grads: Value, indices: Value) -> Value:
    """Return the gradient of a Gather's data in a loop, from those of all its slices."""
    x = input_of(node, 0)
    rank, axis = ranked(x).rank, axis_of(node.attrs["axis"], ranked(x).rank)
    if axis:  # the axis of iterations is before those of the indices
        others = [i for i in range(ranked(grads).rank) if i]
        grads = b.Transpose(grads, perm=(*others[:axis], 0, *others[axis:]))
    # With zero iterations, a collection may have other sizes than these.
    sizes = b.shape(x)
    before, after = (b.Slice(sizes, b.ints(i), b.ints(j)) for i, j in ((0, axis), (axis + 1, rank)))
    grads = b.Reshape(grads, b.Concat(before, b.shape(indices), after, axis=0), allowzero=1)
    return scatter_add(b, x, indices, grads, axis)


class _LoopGradient(_IterationGradient):
    n_before = 2
    n_results_before = 1

    def contributions(self) -> Contributions:
        """Build the backward loop, which counts down the iterations."""
        inner, body = self.inner, self.body
        iteration, condition = inner.input(Fact(I64, ())), inner.input(Fact(BOOL, ()))
        count = self._count()
        self._position = inner.b.Sub(inner.b.Sub(count, 1), iteration)
        self._unreadable: dict[Value, Value] = {}  # sequences in the backward body, and forward
        given = {v: self.read(v) for v in self.given()}
        given |= {body.inputs[0]: self._position, body.inputs[1]: inner.b.const(True)}
        inner.recompute(given)
        gathers = {node.outputs[0]: node for node in body.nodes if self._is_slice(node)}
        found = self.backpropagate(list(gathers))
        outs = self.carried_out(found)
        slices = [node for value, node in gathers.items() if value in found]
        for node in slices:
            index = Builder.node(inner.b, "Identity", inner.of(input_of(node, 1))).outputs[0]
            outs += [found[node.outputs[0]], index]
        self._read_from_sequences()
        inner.finish([condition, *outs])
        self._attach()
        start = self.initial(found)
        made = Builder.node(
            self.b, "Loop", count, None, *start, outputs=len(outs), body=inner.graph
        )
        yield from self.results_of(made, found)
        for i, node in enumerate(slices):
            grads, indices = made.outputs[len(start) + 2 * i :][:2]
            yield input_of(node, 0), _scattered(self.b, node, grads, indices)

    def _is_slice(self, node: Node) -> bool:
        """Whether a node gathers from a value outside the loop.

        Gradients of such slices are collected and scattered once: accumulating full-size gradients
        would cost the whole value in each iteration.
        """
        if node.op.key != ("", "Gather") or node.inputs[0] not in self.captured:
            return False
        index, out = input_of(node, 1).tensor, node.outputs[0].tensor
        return index.static is not None and self._is_fixed(out)

    def _attach(self) -> None:
        """Connect the backward body to the values that the forward loop collects."""
        for copy, value in self._unreadable.items():
            if copy.uses:
                raise NotImplemented(
                    f"Loop has no gradient here: {copy.uses[0][0]} needs the value of {value} in "
                    "each iteration, and only tensors can be collected",
                    hint="carry a tensor instead",
                )
        for value, collection in self.kept.items():
            if collection.uses and collection.fact is not None:
                self.inner.graph.replace(collection, self.keep(value, collection.fact))

    def seeds(self) -> Seeds:
        pairs = zip(self.results[self.n_carried :], self.scan_grads, strict=False)
        return [
            (value, self.inner.b.Gather(grad, self._position, axis=0))
            for value, grad in pairs
            if grad is not None
        ]

    def _count(self) -> Value:
        """Return the number of iterations that the forward loop runs, as a scalar."""
        b, body = self.b, self.body
        trips, cond = (optional_input(self.node, i) for i in range(2))
        is_counted = cond is None or cond.tensor.ints == (1,)
        if trips is not None and is_counted and stays_true(body):
            return b.Max(b.Reshape(trips, b.ints()), b.const(0, I64))
        return b.Size(self.keep(body.inputs[0], stacked(Fact(I64, ()), self._new_dim())))

    def _new_dim(self) -> Dim:
        return self.b.graph.scope.new_dim("trips")

    def read(self, value: Value) -> Value:
        fact, b = value.fact, self.inner.b
        if not isinstance(fact, Fact):
            copy = Value("", fact)
            self._unreadable[copy] = value
            return copy
        fact = fact.without_contents()
        if self._is_fixed(fact):
            self.kept[value] = Value("", stacked(fact, self._new_dim()))
            return b.Gather(self.kept[value], self._position, axis=0)
        self.kept[value] = Value("", SequenceFact(fact))
        element = b.SequenceAt(self.kept[value], self._position)
        element.fact = fact
        return element

    def _is_fixed(self, fact: Fact) -> bool:
        """Whether a tensor in the body has the same shape in each iteration."""
        seen = [v.fact for v in (*self.node.inputs, *self.body.captures()) if v is not None]
        names = {name for f in seen for name in names_in(f)}
        return fact.shape is not None and all(symbols(d) <= names for d in fact.shape)

    def _read_from_sequences(self) -> None:
        """Collect tensors that are read from carried sequences, which are not collected."""
        graph, forward = self.inner.graph, self.inner.originals()
        forward.update(self._unreadable)
        unreadable = set(self._unreadable)
        for node in graph.sorted_nodes() if unreadable else ():
            if unreadable.isdisjoint(node.reads()):
                continue
            for inner in (node, *(n for _, body in node.subgraphs for n in body.all_nodes())):
                sequence = inner.inputs[0] if inner.op.key == ("", "SequenceLength") else None
                if sequence in unreadable and sequence in forward:
                    length = Builder(self.body, self.body.scope).SequenceLength(forward[sequence])
                    graph.replace(inner.outputs[0], self.read(length))
            for out in node.outputs:
                if not isinstance(out.fact, Fact):
                    unreadable.add(out)
                elif out in forward:
                    graph.replace(out, self.read(forward[out]))

    def keep(self, value: Value, fact: AnyFact) -> Value:
        if not isinstance(fact, SequenceFact):
            return super().keep(value, fact)
        # A carried sequence, to which each iteration appends.
        node, body, n = self.node, self.body, max(0, len(self.node.inputs) - 2)
        before = Value("", fact)
        after = Builder(body, body.scope).SequenceInsert(before, value)
        body.set_inputs([*body.inputs[: 2 + n], before, *body.inputs[2 + n :]])
        outputs, declared = list(body.outputs), list(body.declared)
        outputs.insert(1 + n, after)
        declared.insert(1 + n, None)
        body.set_outputs(outputs, declared)
        empty = Builder(node.graph, node.graph.scope).SequenceEmpty(dtype=value.tensor.dtype.onnx)
        node.graph.set_input(node, 2 + n, empty)
        final = Value("", fact)
        node.graph.add_outputs(node, [final], position=n)
        return final


class _ScanGradient(_IterationGradient):
    def contributions(self) -> Contributions:
        """Build the backward Scan, which reads and writes all slices in reverse."""
        node, body, inner, n = self.node, self.body, self.inner, self.n_carried
        slices = {v: inner.input(v.fact) for v in body.inputs[n:]}
        inner.recompute({v: self.read(v) for v in self.given()} | slices)
        found = self.backpropagate([v for v in slices if self.b.wants(v)])
        outs = self.carried_out(found)
        columns = [v for v in slices if v in found]
        inner.finish([*outs, *(found[v] for v in columns)])
        self._add_slices(slices)
        inner.graph.set_inputs([*self.states, *(v for v, *_ in self._scanned)])
        ways = {v: way for v, _, *way in self._scanned}
        start = self.initial(found)
        made = Builder.node(
            self.b,
            "Scan",
            *start,
            *(outer for _, outer, *_ in self._scanned),
            outputs=len(start) + len(columns),
            body=inner.graph,
            num_scan_inputs=len(self._scanned),
            scan_input_axes=tuple(axis for *_, axis, _ in self._scanned),
            scan_input_directions=tuple(way for *_, way in self._scanned),
            scan_output_axes=tuple(ways[slices[v]][0] for v in columns),
            scan_output_directions=tuple(ways[slices[v]][1] for v in columns),
        )
        yield from self.results_of(made, found)
        for value, grad in zip(columns, made.outputs[len(start) :], strict=True):
            outer = input_of(node, body.inputs.index(value))
            yield outer, self.b.like(grad, outer)

    def seeds(self) -> Seeds:
        results = self.results[self.n_carried :]
        ways = axes_and_directions(self.node.attrs, "scan_output", len(results))
        # Of the backward body: inputs, what they are slices of, its axis and direction.
        self._scanned: list[tuple[Value, Value, int, int]] = []
        seeds: Seeds = []
        for value, grad, (axis, way) in zip(results, self.scan_grads, ways, strict=False):
            if grad is not None:
                element = self.inner.input(value.fact)
                self._scanned.append((element, grad, axis, 1 - way))
                seeds.append((value, element))
        return seeds

    def _add_slices(self, slices: Mapping[Value, Value]) -> None:
        """Scan what the forward body reads, and what the backward body needs from it."""
        given = zip(slices.values(), self.node.inputs[self.n_carried :], strict=True)
        ways = axes_and_directions(self.node.attrs, "scan_input", len(slices))
        for (inner, outer), (axis, way) in zip(given, ways, strict=True):
            assert outer is not None
            self._scanned.append((inner, outer, axis, 1 - way))
        for value, inner in self.kept.items():
            if inner.is_used:
                dim = self.b.graph.scope.new_dim("scanned")
                kept = self.keep(value, stacked(value.tensor.without_contents(), dim))
                self._scanned.append((inner, kept, 0, 1))

    def read(self, value: Value) -> Value:
        self.kept[value] = self.inner.input(value.fact)
        return self.kept[value]

    def keep(self, value: Value, fact: AnyFact) -> Value:
        for name in ("scan_output_axes", "scan_output_directions"):
            if self.node.attrs[name] is not None:
                self.node.attrs[name] = (*self.node.attrs[name], 0)
        return super().keep(value, fact)
