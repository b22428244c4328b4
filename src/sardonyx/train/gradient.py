"""Gradient graphs: a model and its backward pass in one graph, which any session runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx._native import decode
from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument
from sardonyx.graph.copy import copied
from sardonyx.graph.dim import Size, lone_name, product, symbol
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import Decomposition
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import read_model
from sardonyx.ops.decomposition import in_training
from sardonyx.ops.gradients import outputs_of, ranked, rule_of
from sardonyx.passes.replace import prune
from sardonyx.train.backward import Backward, Gradients, flow, takes_gradients
from sardonyx.train.nodes import with_gradients
from sardonyx.train.prepare import prepare
from sardonyx.train.recompute import Choice, chosen, repeat

SUFFIX: Final = "_grad"


def gradient(
    model: Any,
    of: str | Sequence[str] | None = None,
    by: Sequence[str] | None = None,
    *,
    seeds: bool = False,
    recompute: Choice = None,
    dims: Mapping[str, int] | None = None,
) -> Model:
    """A model that computes its outputs, and gradients of some by its inputs and weights.

    `model` is whatever a session takes. `of` names outputs, whose sum is differentiated (the only
    one, if not given); `by` names inputs and initializers (if not given, the initializers of floats
    that gradients reach, but for single numbers and the statistics of BatchNormalization). For each
    there is a further output, `<name>_grad`, and an initializer becomes an input that need not be
    fed, so that it can be trained.

    The outputs `of` have one element each. With `seeds` they may have any shape, and for each an
    input `<output>_grad` takes its gradient. `dims` settles open sizes of inputs by their names.

    `recompute` says which forward nodes run again in the backward part: names of nodes, a function
    of a node, or "layers" for all nodes between values that are the only connection of two layers.
    """
    names = by
    if names is not None and not len(names):
        raise InvalidArgument("`by` names nothing to differentiate by", hint="leave it out for all")
    if names is None:
        probe = _Work(*_loaded(model, dims))
        names = probe.reached(of, seeds)
    work = _Work(*_loaded(model, dims))
    work.differentiate(of, names, seeds, recompute)
    return work.model


def _loaded(source: Any, dims: Mapping[str, int] | None) -> tuple[Model, frozenset[str]]:
    """A model of our own, and the names of its initializers."""
    if isinstance(source, Model):
        graph = copied(source.graph, dims)
        named = {name for name, value in _constants(graph).items() if name}
        own = replace(
            source,
            graph=graph,
            inputs=list(source.inputs),
            outputs=list(source.outputs),
            overridable=list(source.overridable),
        )
        return own, frozenset((*named, *(v.name for v in graph.defaults)))
    given = read_model(source)
    model = with_gradients(load(given, LoadOptions(dims_by_name=dict(dims or {}))))
    record = decode(given.source.data).graph
    return model, frozenset(
        t.name for t in record.initializers
    ) if record is not None else frozenset()


def _constants(graph: Graph) -> dict[str, Value]:
    """The constants that nodes read, by name."""
    found: dict[str, Value] = {}
    for node in graph.all_nodes():
        found.update((v.name, v) for v in node.inputs if v is not None and v.const is not None)
    return found


class _Work:
    """One model on its way to a gradient graph."""

    def __init__(self, model: Model, weights: Collection[str]) -> None:
        self.model = model
        self.graph = model.graph
        self._weights = weights
        self._b = Backward(self.graph)

    def reached(self, of: str | Sequence[str] | None, seeds: bool) -> list[str]:
        """The initializers that gradients reach; what is built to find out is thrown away."""
        constants = _constants(self.graph)
        wanted = {
            name: value
            for name, value in constants.items()
            if name in self._weights and _is_trained(value)
        }
        wanted.update((v.name, v) for v in self.graph.defaults if takes_gradients(v))
        prepare(self.graph)
        losses = self._losses(of)
        found, _ = self._flow(self._seeds(losses, seeds), wanted.values())
        names = [name for name, value in wanted.items() if value in found]
        if not names:
            raise InvalidArgument(
                f"{', '.join(losses)} depends on no initializer by a path that has gradients",
                hint="name the inputs to differentiate by",
            )
        return names

    def differentiate(
        self,
        of: str | Sequence[str] | None,
        by: Sequence[str],
        seeds: bool,
        recompute: Choice,
    ) -> None:
        """Adds the backward part, and the gradients as outputs."""
        targets = self._targets([by] if isinstance(by, str) else list(by))
        prepare(self.graph)
        losses = self._losses(of)
        found, forward = self._flow(self._seeds(losses, seeds), targets.values())
        again = chosen(recompute, forward, self._b.active)
        names = {value.name: value for node in self.graph.nodes for value in node.outputs}
        for name, value in targets.items():
            if value not in found:
                raise InvalidArgument(
                    f"{', '.join(losses)} does not depend on {name} by a path that has gradients",
                    hint="leave it out of `by`",
                )
            if name + SUFFIX in names:  # of a value in between, which can do without
                names[name + SUFFIX].name = ""
            self._add_output(name, value, found[value])
        for node in self._b.made:
            node.is_backward = True
        prune(self.graph)
        repeat(self.graph, again, forward, [n for n in self.graph.nodes if n.is_backward])
        for node in forward:
            _trim(node)
        prune(self.graph)

    def _losses(self, of: str | Sequence[str] | None) -> dict[str, Value]:
        """The outputs to differentiate, by name."""
        declared = self.model.outputs
        outputs = {d.name: v for d, v in zip(declared, self.graph.outputs, strict=True)}
        names = [of] if isinstance(of, str) else list(of) if of is not None else list(outputs)
        if of is None and len(names) != 1:
            raise InvalidArgument(
                f"the model has {len(names)} outputs: {', '.join(names)}",
                hint="name those to differentiate by `of`",
            )
        for name in names:
            if name not in outputs:
                raise InvalidArgument(
                    f"the model has no output {name!r}; it has {', '.join(outputs)}"
                )
            if not takes_gradients(outputs[name]):
                raise InvalidArgument(
                    f"the output {name} is {outputs[name].fact}, and only floats have gradients"
                )
        return {name: outputs[name] for name in names}

    def _targets(self, names: list[str]) -> dict[str, Value]:
        """Inputs and initializers by name; initializers become inputs with a default."""
        inputs = {v.name: v for v in self.graph.inputs}
        constants = _constants(self.graph)
        found: dict[str, Value] = {}
        for name in names:
            value = inputs.get(name, constants.get(name))
            if value is None or (name not in inputs and name not in self._weights):
                raise InvalidArgument(
                    f"the model has no input or initializer {name!r} that a node reads"
                )
            if not takes_gradients(value):
                raise InvalidArgument(f"{name} is {value.fact}, and only floats have gradients")
            const = value.const
            if const is not None:
                value.fact = value.tensor.plain()
                self.graph.add_input(value, const)
                self.model.overridable.append(_declared(name, value.tensor))
            found[name] = value
        return found

    def _seeds(self, losses: Mapping[str, Value], are_fed: bool) -> Gradients:
        """The gradients that the backward part begins with."""
        seeds: Gradients = {}
        for name, value in losses.items():
            seed = self._fed(name, value) if are_fed else _ones(self._b, name, value)
            seeds[value] = self._b.Add(seeds[value], seed) if value in seeds else seed
        return seeds

    def _fed(self, name: str, loss: Value) -> Value:
        """An input that takes the gradient of an output."""
        fact, label = ranked(loss), self._free(name)
        # An input's sizes are numbers or names; those of the output may be formulas.
        shape: list[Size] = [
            d if isinstance(d, int) or lone_name(d) is not None else symbol(f"{label}.{i}")
            for i, d in enumerate(fact.dims)
        ]
        seed = Value(label, Fact(fact.dtype, tuple(shape)))
        self.graph.add_input(seed)
        self.graph.scope.entry.update(n for d in shape if (n := lone_name(d)) is not None)
        self.model.inputs.append(_declared(label, seed.tensor))
        return self._b.reshape(seed, loss)

    def _flow(self, seeds: Gradients, wanted: Collection[Value]) -> tuple[Gradients, list[Node]]:
        """Gradients, and the nodes that they went through."""
        self._b.active.update(wanted)
        _replace_parts(self.graph, seeds, wanted)
        forward = _before(self.graph, seeds)
        return flow(self._b, forward, seeds, wanted), forward

    def _add_output(self, name: str, value: Value, grad: Value) -> None:
        label = self._free(name)
        if not all(isinstance(d, int) for d in ranked(value).dims):
            # Sizes of equal names were taken as equal; where they are not, this fails.
            grad = self._b.Reshape(grad, self._b.shape(value), allowzero=1)
        if grad.node is not None and not grad.name:
            grad.name = label
        self.graph.set_outputs((*self.graph.outputs, grad))
        self.model.outputs.append(_declared(label, value.tensor))

    def _free(self, name: str) -> str:
        """The name of a gradient; one that is taken, as in a gradient model, gets a longer one."""
        model, label = self.model, name + SUFFIX
        taken = {d.name for d in (*model.inputs, *model.overridable, *model.outputs)}
        while label in taken:
            label += SUFFIX
        return label


def _is_trained(value: Value) -> bool:
    """Whether a constant is a weight, and neither a single number nor a statistic of batches."""
    if not takes_gradients(value) or not value.tensor.dims:
        return False
    return any(n.op.name != "BatchNormalization" or slot < 3 for n, slot in value.uses)


def _ones(b: Backward, name: str, loss: Value) -> Value:
    fact = ranked(loss)
    if product(fact.dims) != 1:
        raise InvalidArgument(
            f"the output {name} is {fact}, and a loss has one element",
            hint="reduce it in the model, or give seeds=True and feed its gradient",
        )
    return b.const(np.ones((1,) * fact.rank), fact.dtype)


def _declared(name: str, fact: Fact) -> Declared:
    dims = tuple(d if isinstance(d, int) else lone_name(d) for d in fact.dims)
    return Declared(name, fact.plain(), dims)


def _before(graph: Graph, values: Collection[Value]) -> list[Node]:
    """The nodes that some values are made by, each after those it reads."""
    found: set[Node] = set()
    work = [v.node for v in values if v.node is not None]
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            work.extend(
                v.node for v in node.reads() if v.node is not None and v.node.graph is graph
            )
    return [node for node in graph.sorted_nodes() if node in found]


def _replace_parts(graph: Graph, seeds: Gradients, wanted: Collection[Value]) -> None:
    """Nodes without a kernel that are made of others give way to these."""
    for node in _before(graph, seeds):
        rule = rule_of(node.op)
        if not isinstance(rule, Decomposition) or not (rule.when is in_training or rule.when(node)):
            continue
        b = Backward(graph)
        b.active.update(wanted)
        for old, new in zip(node.outputs, outputs_of(rule, b, node), strict=False):
            assert new is not None
            new.name, old.name = old.name, ""
            if old in seeds:
                seeds[new] = seeds.pop(old)
            graph.replace(old, new)
        for made in b.made:
            made.name, made.annotations = node.name, node.annotations
        graph.remove(node)


def _trim(node: Node) -> None:
    """Takes back outputs that were saved for a gradient which nobody asked for after all."""
    while len(node.outputs) > 1 and not node.outputs[-1].is_used and not node.outputs[-1].name:
        node.graph.drop_outputs(node, {len(node.outputs) - 1})
