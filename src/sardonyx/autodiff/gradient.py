"""Gradient graphs: a model and its backward pass in one graph, which any session runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx._native import decode
from sardonyx.autodiff.backward import Backward, Gradients, backpropagate, prepare, replace_by
from sardonyx.autodiff.dependence import takes_gradients
from sardonyx.autodiff.export_signature import exported_parameters
from sardonyx.autodiff.exports import warn_of_export
from sardonyx.autodiff.nodes import with_gradients
from sardonyx.autodiff.recompute import Choice, insert_clones, nodes_to_recompute
from sardonyx.autodiff.stops import rule_for
from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument
from sardonyx.graph.copy import copied
from sardonyx.graph.dim import Size, lone_name, product, symbol, symbols
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import Decomposition
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.load.types import fact_of
from sardonyx.ops.decomposition import in_training
from sardonyx.ops.gradient_rules import ranked
from sardonyx.passes.replace import prune

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
    """Return a model that computes its outputs and the gradients of some of them.

    `model` is anything that a session accepts. `of` names outputs, whose sum is differentiated; the
    default is the only output. `by` names inputs and initializers; the default is every float
    initializer that gradients reach, except scalars, the statistics of BatchNormalization and the
    scales of quantization. For each name the model gets an output `<name>_grad`, and an initializer
    becomes an input with a default, so that it can be trained.

    The outputs `of` must have one element each. With `seeds` they may have any shape, and the model
    gets an input `<output>_grad` for each, which takes the output gradient (cotangent). `dims`
    fixes symbolic dims of inputs by name.

    `recompute` says which forward nodes the backward pass recomputes: names of nodes, a predicate
    over nodes, or "layers" for all nodes between checkpoints, the values that alone connect two
    layers.
    """
    if by is not None and not len(by):
        raise InvalidArgument("`by` is empty", hint="leave it out for the gradients of all weights")
    # The default of `by` takes a backward graph of its own, which is discarded.
    names = by if by is not None else GradientGraph(*loaded_model(model, dims)).reached(of, seeds)
    graph = GradientGraph(*loaded_model(model, dims))
    graph.differentiate(of, names, seeds, recompute)
    return graph.model


def loaded_model(source: Any, dims: Mapping[str, int] | None) -> tuple[Model, frozenset[str]]:
    """Return a model that may be modified, and the names of its initializers."""
    _check_sizes({} if dims is None else dims)
    if isinstance(source, Model):
        _check_names(dims or {}, [value.fact for value in source.graph.inputs])
        graph = copied(source.graph, dims)
        lists = {name: list(getattr(source, name)) for name in ("inputs", "outputs", "overridable")}
        names = {name for name in constants_of(graph) if name} | {v.name for v in graph.defaults}
        return replace(source, graph=graph, **lists), frozenset(names)
    loaded = source if isinstance(source, ModelBytes) else read_model(source)
    model = with_gradients(load(loaded, LoadOptions(dims_by_name=dict(dims or {}))))
    model.exported_parameters = exported_parameters(loaded.source.data)
    record = decode(loaded.source.data).graph
    _check_names(dims or {}, [] if record is None else [fact_of(i.type) for i in record.inputs])
    return model, frozenset(() if record is None else (t.name for t in record.initializers))


def _check_sizes(dims: Any) -> None:
    if not isinstance(dims, Mapping):
        raise InvalidArgument(f"dims must be sizes by name, got {dims!r:.60}")
    for name, size in dims.items():
        if not isinstance(size, int) or size < 0:
            raise InvalidArgument(f"the dim {name} must be a number of 0 or more, got {size!r}")


def _check_names(dims: Mapping[str, int], inputs: Iterable[AnyFact | None]) -> None:
    """Raise for sizes of dims that no input has."""
    shapes = [fact.shape or () for fact in inputs if isinstance(fact, Fact)] if dims else []
    known = sorted({name for shape in shapes for size in shape for name in symbols(size)})
    for name in dims:
        if name not in known:
            raise InvalidArgument(
                f"dims has a size for {name!r}, and no input has a dim of this name",
                dims=", ".join(n for n in known if "#" not in n) or "none has a name",
            )


def constants_of(graph: Graph) -> dict[str, Value]:
    """Return the constants that nodes read, by name."""
    read = (v for node in graph.all_nodes() for v in node.inputs)
    return {v.name: v for v in read if v is not None and v.const is not None}


class GradientGraph:
    """A model to which the backward graph is added."""

    def __init__(self, model: Model, weights: Collection[str]) -> None:
        self.model = model
        self.graph = model.graph
        self._weights = weights  # names of initializers
        self._b = Backward(self.graph)

    def reached(self, of: str | Sequence[str] | None, seeds: bool) -> list[str]:
        """Return the names of the initializers that gradients reach.

        Export-time rewrites that change training semantics are logged as a warning.
        """
        warn_of_export(self.graph, self._weights, self.model.exported_parameters)
        constants = constants_of(self.graph).items()
        targets = {n: v for n, v in constants if n in self._weights and _is_trainable(v)}
        targets.update((v.name, v) for v in self.graph.defaults if _is_trainable(v))
        prepare(self.graph)
        losses = self._losses(of)
        gradients, _ = self._backpropagate(self._seeds(losses, seeds), targets.values())
        names = [name for name, value in targets.items() if value in gradients]
        if not names:
            raise InvalidArgument(
                f"{', '.join(losses)} depends on no initializer through a differentiable path",
                hint="name inputs in `by`, or, for a model with quantized weights, add adapters "
                "(sardonyx.train.lora)",
            )
        return names

    def differentiate(
        self, of: str | Sequence[str] | None, by: Sequence[str], seeds: bool, recompute: Choice
    ) -> None:
        """Add the backward graph, and the gradients as outputs."""
        targets = self._targets([by] if isinstance(by, str) else list(by))
        prepare(self.graph)
        losses = self._losses(of)
        gradients, forward = self._backpropagate(self._seeds(losses, seeds), targets.values())
        recomputed = nodes_to_recompute(recompute, forward, self._b.active)
        names = {value.name: value for node in self.graph.nodes for value in node.outputs}
        for name, value in targets.items():
            grad = gradient_by(gradients, name, value, losses)
            if name + SUFFIX in names:  # an intermediate value, which needs no name
                names[name + SUFFIX].name = ""
            self._add_output(name, value, grad)
        self._finish(forward, recomputed)

    def _finish(self, forward: Sequence[Node], recomputed: Collection[Node]) -> None:
        """Mark backward nodes, insert recomputed ones, and remove dead ones."""
        for node in self._b.new_nodes:
            node.is_backward = True
        # Recomputation looks at what backward nodes read, so dead nodes must be gone.
        prune(self.graph)
        backward = [n for n in self.graph.nodes if n.is_backward]
        insert_clones(self.graph, recomputed, forward, backward)
        for node in forward:
            _drop_unused_outputs(node)
        prune(self.graph)

    def _losses(self, of: str | Sequence[str] | None) -> dict[str, Value]:
        """Return the outputs to differentiate, by name."""
        declared = self.model.outputs
        outputs = {d.name: v for d, v in zip(declared, self.graph.outputs, strict=True)}
        names = [of] if isinstance(of, str) else list(of) if of is not None else list(outputs)
        if of is None and len(names) != 1:
            raise InvalidArgument(
                f"the model has {len(names)} outputs: {', '.join(names)}",
                hint="name the ones to differentiate in `of`",
            )
        for name in names:
            if name not in outputs:
                raise InvalidArgument(
                    f"the model has no output {name!r}; it has {', '.join(outputs)}"
                )
            if not takes_gradients(outputs[name]):
                raise InvalidArgument(
                    f"the output {name} must be f16, bf16, f32 or f64 to have a gradient, "
                    f"got {outputs[name].fact}"
                )
        return {name: outputs[name] for name in names}

    def _targets(self, names: list[str]) -> dict[str, Value]:
        """Return inputs and initializers by name; initializers become inputs with a default."""
        inputs = {v.name: v for v in self.graph.inputs}
        constants = constants_of(self.graph)
        found: dict[str, Value] = {}
        for name in names:
            value = inputs.get(name, constants.get(name))
            if value is None or (name not in inputs and name not in self._weights):
                raise InvalidArgument(
                    f"the model has no input or initializer {name!r} that a node reads"
                )
            if not takes_gradients(value):
                raise InvalidArgument(
                    f"{name} must be f16, bf16, f32 or f64 to have a gradient, got {value.fact}"
                )
            self._make_input(value)
            found[name] = value
        return found

    def _make_input(self, value: Value) -> None:
        """Make a constant an input with a default: it is not folded, and runs may feed updates."""
        const = value.const
        if const is not None:
            value.fact = value.tensor.without_contents()
            self.graph.add_input(value, const)
            self.model.overridable.append(declare(value.name, value.tensor))

    def _seeds(self, losses: Mapping[str, Value], are_fed: bool) -> Gradients:
        """Return the output gradients that the backward pass starts from: inputs, or ones."""
        seeds: Gradients = {}
        for name, value in losses.items():
            seed = self._seed_input(name, value) if are_fed else one_like(self._b, name, value)
            # Two outputs may be the same value.
            seeds[value] = self._b.Add(seeds[value], seed) if value in seeds else seed
        return seeds

    def _seed_input(self, name: str, loss: Value) -> Value:
        """Add an input that takes the gradient of an output."""
        fact, label = ranked(loss), self._gradient_name(name)
        # Dims of inputs are numbers or names; those of the output may be expressions, or dims that
        # are known once a node has run, which inference names anew for each session.
        shape: list[Size] = [
            d if isinstance(d, int) or lone_name(d) in self.graph.scope.entry
            else symbol(f"{label}.{i}")
            for i, d in enumerate(fact.dims)
        ]  # fmt: skip
        seed = Value(label, Fact(fact.dtype, tuple(shape)))
        self.graph.add_input(seed)
        self.graph.scope.entry.update(n for d in shape if (n := lone_name(d)) is not None)
        self.model.inputs.append(declare(label, seed.tensor))
        return self._b.reshape(seed, loss)

    def _backpropagate(
        self, seeds: Gradients, targets: Collection[Value]
    ) -> tuple[Gradients, list[Node]]:
        """Return the gradients, and the forward nodes that the seeds depend on."""
        self._b.active.update(targets)
        _decompose(self.graph, seeds, targets)
        forward = _ancestors(self.graph, seeds)
        return backpropagate(self._b, forward, seeds, targets), forward

    def _add_output(self, name: str, value: Value, grad: Value) -> None:
        """Make the gradient of an input or initializer an output of the model."""
        label = self._gradient_name(name)
        if not all(isinstance(d, int) for d in ranked(value).dims):
            # Dims of equal names were assumed to be equal; where they are not, this Reshape fails.
            grad = self._b.Reshape(grad, self._b.shape(value), allowzero=1)
        # A gradient that is an input or a constant, or already has a name, keeps its name.
        if grad.node is not None and not grad.name:
            grad.name = label
        self.graph.set_outputs((*self.graph.outputs, grad))
        self.model.outputs.append(declare(label, value.tensor))

    def _gradient_name(self, name: str) -> str:
        """Return a unique name of a gradient: second derivatives end in _grad_grad."""
        model, label = self.model, name + SUFFIX
        used = {d.name for d in (*model.inputs, *model.overridable, *model.outputs)}
        while label in used:
            label += SUFFIX
        return label


def gradient_by(gradients: Gradients, name: str, value: Value, losses: Collection[str]) -> Value:
    """Return the gradient of an input or initializer; raise if the losses do not depend on it."""
    if value not in gradients:
        raise InvalidArgument(
            f"{', '.join(losses)} does not depend on {name} through a differentiable path",
            hint="leave it out of `by`",
        )
    return gradients[value]


# Inputs that are not weights: statistics, scales of quantization, tables of cosines and sines.
_NOT_WEIGHTS: Final = {
    "BatchNormalization": (3, 4),
    "DequantizeLinear": (1,),
    "DynamicQuantizeMatMul": (2,),
    "GatherBlockQuantized": (2,),
    "GroupQueryAttention": (7, 8),
    "MRotaryEmbedding": (2, 3),
    "MatMulBnb4": (2,),
    "MatMulNBits": (2, 3),
    "QuantizeLinear": (1,),
    "RotaryEmbedding": (1, 2, 3),
}


def _is_trainable(value: Value) -> bool:
    """Whether an initializer is a weight, not a scalar, a statistic or a scale."""
    if not takes_gradients(value) or not value.tensor.dims:
        return False
    return any(slot not in _NOT_WEIGHTS.get(n.op.name, ()) for n, slot in value.uses)


def one_like(b: Backward, name: str, loss: Value) -> Value:
    """Return the output gradient of a loss, which must have one element: one."""
    check_loss(name, loss, "reduce it in the model, or pass seeds=True and feed its gradient")
    fact = ranked(loss)
    return b.const(np.ones((1,) * fact.rank), fact.dtype)


def check_loss(name: str, loss: Value, hint: str = "reduce it in the model") -> None:
    """Raise if a loss has more than one element."""
    fact = ranked(loss)
    if product(fact.dims) != 1:
        raise InvalidArgument(
            f"a loss must have one element, got {fact} for the output {name}", hint=hint
        )


def declare(name: str, fact: Fact) -> Declared:
    """Return the declaration of a new input or output of the model."""
    dims = tuple(d if isinstance(d, int) else lone_name(d) for d in fact.dims)
    return Declared(name, fact.without_contents(), dims)


def _ancestors(graph: Graph, values: Collection[Value]) -> list[Node]:
    """Return the nodes of a graph that some values depend on, in topological order."""
    needed, ancestors = set(values), []
    for node in reversed(graph.sorted_nodes()):
        if not needed.isdisjoint(node.outputs):
            ancestors.append(node)
            needed.update(node.reads())
    return ancestors[::-1]


def _decompose(graph: Graph, seeds: Gradients, targets: Collection[Value]) -> None:
    """Replace nodes that lowering would decompose anyway, so that their gradients have kernels."""
    dependent = set(targets)
    for node in _ancestors(graph, seeds):
        is_dependent = not dependent.isdisjoint(node.reads())
        if is_dependent:
            dependent.update(node.outputs)
        rule = rule_for(node.op)
        own = node.op.decomposition
        if is_dependent and own is not None and own.when is in_training:
            rule = own  # rather than a gradient rule: it saves what the backward pass reads
        if not isinstance(rule, Decomposition) or not (rule.when is in_training or rule.when(node)):
            continue
        # Without a decomposition its gradient rule, if it has one, is used.
        for old, new in replace_by(graph, node, rule, targets, seeds):
            dependent.update([new] if old in dependent else ())
            if old in seeds:
                seeds[new] = seeds.pop(old)


def _drop_unused_outputs(node: Node) -> None:
    """Remove optional outputs that a gradient rule added to a node, if no gradient reads them."""
    slots = node.op.outputs
    while len(slots) >= len(node.outputs) > 1 and slots[len(node.outputs) - 1].optional:
        if node.outputs[-1].is_used or node.outputs[-1].name:
            return
        node.graph.drop_outputs(node, {len(node.outputs) - 1})
