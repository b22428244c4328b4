"""Training steps as graphs: a model, its backward pass and the updates of its parameters.

Parameters, optimizer states, accumulated gradients and running statistics are inputs that the
nodes update in place (`ops/optimizer/training_step.py`). Without clipping and loss scaling each
update runs as soon as its gradient is computed, which is dead afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from sardonyx.autodiff.backward import Backward, Gradients, prepare
from sardonyx.autodiff.draws import draw_by_run
from sardonyx.autodiff.forward_rewrites import (
    autocast,
    batch_statistics,
    fuse_patterns,
    trains_statistics,
)
from sardonyx.autodiff.gradient import (
    GradientGraph,
    check_loss,
    constants_of,
    declare,
    gradient_by,
    loaded_model,
)
from sardonyx.autodiff.recompute import Choice, nodes_to_recompute
from sardonyx.base.records import field, frozen, mutable
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, F64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import GRADIENT
from sardonyx.load.model import Model
from sardonyx.ops.optimizer.training_step import SETTINGS

# Inputs and the output that a step adds to the model.
SETTINGS_INPUT: Final = "sardonyx.settings"
LOSS_SCALE_INPUT: Final = "sardonyx.loss_scale"
UPDATED_OUTPUT: Final = "sardonyx.updated"
GRAD_SUM: Final = "grad_sum"


@frozen
class UpdateRule:
    """How an optimizer updates one parameter: an op, its attributes and its states."""

    op: str
    attrs: Mapping[str, Any]
    states: Callable[[Shape], dict[str, Shape]]  # names and shapes, from the parameter's shape


@frozen
class StepOptions:
    """Options of a training step."""

    rule: UpdateRule
    loss: str | None = None
    parameters: Sequence[str] | None = None  # names and patterns; None: all that gradients reach
    max_norm: float | None = None
    accumulates: bool = False
    precision: DType | None = None  # of matmuls and convolutions
    skips: bool = False  # skip steps whose gradients are not finite
    recompute: Choice = None
    dims: Mapping[str, int] | None = None


@mutable
class StepModel:
    """The model of a step, and the initial values of its inputs."""

    model: Model
    loss: str
    parameters: dict[str, Const] = field(default_factory=dict)
    statistics: dict[str, Const] = field(default_factory=dict)  # running means and variances
    states: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)  # start as 0


def training_model(source: Any, options: StepOptions) -> StepModel:
    """Return the model of a training step."""
    loaded = loaded_model(source, options.dims)
    names = _parameter_names(source, options, loaded[1])
    graph = _TrainingGraph(*loaded, options)
    return graph.build(names)


def _parameter_names(source: Any, options: StepOptions, initializers: Collection[str]) -> list[str]:
    """Return the names of the parameters to train; patterns choose among those with gradients.

    The name of an initializer is not a pattern, whatever characters it has.
    """
    wanted = options.parameters
    if wanted is not None and not all(isinstance(name, str) for name in wanted):
        raise InvalidArgument(f"`parameters` must be names or patterns, got {wanted!r:.60}")
    if wanted is not None and not len(wanted):
        raise InvalidArgument("`parameters` is empty", hint="leave it out to train all")
    others = [] if wanted is None else [p for p in wanted if p not in initializers]
    patterns = [p for p in others if set(p) & set("*?[")]
    if wanted is not None and not patterns:
        return list(dict.fromkeys(wanted))
    graph = _TrainingGraph(*loaded_model(source, options.dims), options)
    reached = graph.reached(options.loss, False)
    if wanted is None:
        return reached
    chosen = _matching(patterns, reached)
    named = [p for p in wanted if p not in patterns and p not in chosen]
    return [*chosen, *named]


def _matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that match a pattern; a pattern that matches none is an error."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidArgument(
                f"no parameter that gradients reach matches {pattern!r}; "
                f"there are {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}"
            )
    return [n for n in names if any(fnmatchcase(n, p) for p in patterns)]


class _TrainingGraph(GradientGraph):
    """A model to which the backward graph and the updates are added."""

    def __init__(self, model: Model, weights: Collection[str], options: StepOptions) -> None:
        super().__init__(model, weights)
        self._options = options
        self._names = {value.name for value in self.graph.all_values()}
        self._flags: list[Value] = []  # an output of each node that writes

    def build(self, names: list[str]) -> StepModel:
        """Add all nodes of the step."""
        options, b = self._options, self._b
        fed = {v.name for v in self.graph.inputs if v not in self.graph.defaults}
        for name in names:
            if name in fed:
                raise InvalidArgument(f"{name} is an input of the model, not a parameter")
        params = self._targets(names)
        statistics = self._statistics()
        consts = {n: self._required(v) for n, v in params.items()}
        running = {n: self._required(v) for n, v in statistics.items()}
        settings = self._new_input(SETTINGS_INPUT, Fact(F64, (len(SETTINGS),)))
        prepare(self.graph)
        fused = fuse_patterns(self.graph)
        rewriter = Backward(self.graph)  # its nodes are part of the forward pass
        rewriter.active.update(params.values())
        new_statistics = batch_statistics(rewriter, statistics)
        draw_by_run(rewriter, settings)
        if options.precision is not None:
            autocast(rewriter, options.precision)
        losses = self._losses(options.loss)
        (name, loss), *_ = losses.items()
        made = StepModel(self.model, name, consts, running)
        gradients, forward = self._backpropagate(self._scaled_seed(name, loss), params.values())
        recomputed = nodes_to_recompute(options.recompute, forward, b.active, fused)
        grads = {n: gradient_by(gradients, n, v, losses) for n, v in params.items()}
        # A decomposition may have replaced the loss.
        loss = self._losses(name)[name]
        self._update(made, params, grads, settings, b.cast(loss, F64))
        self._store(statistics, new_statistics, settings, b.cast(loss, F64))
        self._add_flags()
        self._finish(forward, recomputed)
        return made

    def _losses(self, of: str | Sequence[str] | None) -> dict[str, Value]:
        names = [d.name for d in self.model.outputs]
        if of is None and len(names) > 1:
            raise InvalidArgument(
                f"the model has {len(names)} outputs: {', '.join(names)}",
                hint="name the one to minimize by `loss`",
            )
        return super()._losses(of)

    def _seeds(self, losses: Mapping[str, Value], are_fed: bool) -> Gradients:
        for name, value in losses.items():
            check_loss(name, value)
        return super()._seeds(losses, are_fed)

    def _statistics(self) -> dict[str, Value]:
        """Return the running statistics of batch norms in training, as inputs."""
        constants = constants_of(self.graph)
        found: dict[str, Value] = {}
        for node in self.graph.all_nodes():
            if not trains_statistics(node):
                continue
            for value in node.inputs[3:5]:
                if value is None or value.name not in self._weights:
                    continue
                if value.name in constants or value in self.graph.defaults:
                    self._make_input(value)
                    found[value.name] = value
        return found

    def _required(self, value: Value) -> Const:
        """Make an input with a default one that every run feeds; return the default."""
        model = self.model
        declared = next(d for d in model.overridable if d.name == value.name)
        model.overridable.remove(declared)
        model.inputs.append(declared)
        default = self.graph.defaults[value]
        self.graph.set_default(value, None)
        return default

    def _new_input(self, name: str, fact: Fact) -> Value:
        value = Value(name, fact)
        self.graph.add_input(value)
        self.model.inputs.append(declare(name, fact))
        return value

    def _scaled_seed(self, name: str, loss: Value) -> Gradients:
        """Return the gradient of the loss: the loss scale, an input.

        With a constant 1, which is folded, the gradients of loss = a * b would alias the parameters
        b and a, and each in-place update would have to wait for the other.
        """
        check_loss(name, loss)
        b, scale = self._b, self._new_input(LOSS_SCALE_INPUT, Fact(F32, ()))
        return {loss: b.reshape(b.cast(scale, loss.tensor.dtype), loss)}

    def _update(
        self,
        made: StepModel,
        params: Mapping[str, Value],
        grads: dict[str, Value],
        settings: Value,
        loss: Value,
    ) -> None:
        """Add the nodes from gradients to updated parameters."""
        b, options = self._b, self._options
        own: dict[str, Any] = {"domain": GRADIENT}
        if options.accumulates:
            control = b.StepControl(settings, loss, **own)
            for name, grad in grads.items():
                total = self._new_state(made, f"{name}.{GRAD_SUM}", params[name].tensor)
                grads[name] = b.AccumulateGradient(control, total, grad, **own)
        norm = None
        if options.max_norm is not None or options.skips:
            norm = b.GradientNorm(*grads.values(), **own)
        if options.skips:
            # A loss that is not finite changes nothing, whatever its gradients are.
            norm = b.Add(norm, b.Mul(loss, 0.0))
        limit = -1.0 if options.max_norm is None else float(options.max_norm)
        skips = int(options.skips)
        control = b.StepControl(settings, loss, norm, max_norm=limit, skips=skips, **own)
        # In the order in which the backward pass computes the gradients.
        position: dict[Node | None, int] = {n: i for i, n in enumerate(self.graph.sorted_nodes())}
        for name in sorted(grads, key=lambda n: position.get(grads[n].node, 0)):
            value, rule = params[name], options.rule
            states = [
                self._new_state(made, f"{name}.{label}", value.tensor.shaped(shape))
                for label, shape in rule.states(value.tensor.dims).items()
            ]
            inputs = (control, value, grads[name], *states)
            node = b.node(rule.op, *inputs, outputs=2 + len(states), **own, **rule.attrs)
            self._flags.append(node.outputs[0])

    def _new_state(self, made: StepModel, name: str, fact: Fact) -> Value:
        shape = fact.static
        assert shape is not None, "parameters are constants of the model"
        while name in self._names:  # of another value, as a parameter w.exp_avg beside w
            name += "_"
        self._names.add(name)
        made.states[name] = fact.dtype, shape
        return self._new_input(name, Fact(fact.dtype, shape))

    def _store(
        self,
        statistics: Mapping[str, Value],
        new: Mapping[str, Value],
        settings: Value,
        loss: Value,
    ) -> None:
        """Add the nodes that write the new running statistics."""
        if not new:
            return
        own: dict[str, Any] = {"domain": GRADIENT}
        # As in torch, a step that is skipped for its gradients still updates the statistics.
        control = self._b.StepControl(settings, loss, **own)
        for name, value in new.items():
            node = self._b.node("StoreState", control, statistics[name], value, outputs=2, **own)
            self._flags.append(node.outputs[0])

    def _add_flags(self) -> None:
        flags = self._b.Concat(*self._flags, axis=0)
        flags.name = UPDATED_OUTPUT
        self.graph.set_outputs((*self.graph.outputs, flags))
        self.model.outputs.append(declare(UPDATED_OUTPUT, flags.tensor))
