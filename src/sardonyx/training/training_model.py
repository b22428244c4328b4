"""Reads training and evaluation models: which inputs are parameters, gradients or the user's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen, replace
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.dim import lone_name
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.load.model import Declared, Model
from sardonyx.passes.replace import prune
from sardonyx.training.names import BUFFER, RESET
from sardonyx.training.state import TrainingState

_ACCUMULATOR: Final = "AccumulateInPlace"  # InPlaceAccumulatorV2 as it is loaded


@frozen
class TrainingModel:
    """A model, and the names of its inputs by kind; `gradients` are parameters with a gradient.

    A training model returns its user's outputs, then one gradient per name.
    """

    model: Model
    name: str
    user_inputs: list[str]
    parameters: list[str]
    gradients: list[str]
    outputs: list[str]

    def size(self, names: Iterable[str]) -> int:
        """Return the number of elements of some parameters, by their declarations."""
        declared = {d.name: d for d in self.model.inputs}
        return sum(math.prod(_shape(declared[name], self.name)[1]) for name in names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the declared shape of a parameter."""
        return _shape(next(d for d in self.model.inputs if d.name == name), self.name)[1]


def read_model_of(path: str | os.PathLike[str], state: TrainingState) -> TrainingModel:
    """Load a training or evaluation model; parameters are those of the state."""
    model, name = load(path), os.path.basename(os.fspath(path))
    inputs = [d.name for d in model.inputs]
    gradients = _gradients_as_outputs(model)
    parameters = [i for i in inputs if i in state.parameters]
    others = {RESET, *parameters, *(g + BUFFER for g in gradients)}
    user = [i for i in inputs if i not in others]
    for declared in model.inputs:
        if declared.name in state.parameters:
            _check_parameter(declared, state.parameters[declared.name].data, name)
    outputs = [d.name for d in model.outputs[: len(model.outputs) - len(gradients)]]
    return TrainingModel(model, name, user, parameters, gradients, outputs)


def _gradients_as_outputs(model: Model) -> list[str]:
    """Replace accumulators by outputs with the gradients; return the names of the parameters."""
    graph = model.graph
    sums: dict[str, Node] = {}
    for node in graph.nodes:
        name = _buffer(node)
        if name in sums:
            raise InvalidArgument(f"two nodes add to {name}", nodes=f"{sums[name]}, {node}")
        if name:
            sums[name] = node
    flags = {value for node in sums.values() for value in node.outputs}
    kept = [i for i, value in enumerate(graph.outputs) if value not in flags]
    gradients = [_gradient(node) for node in sums.values()]
    graph.set_outputs([*(graph.outputs[i] for i in kept), *gradients])
    declared = {d.name: d for d in model.inputs}
    names = [name.removesuffix(BUFFER) for name in sums]
    model.outputs[:] = [model.outputs[i] for i in kept]
    # A name that the user's outputs cannot have.
    model.outputs += [replace(declared[n + BUFFER], name=n + BUFFER) for n in names]
    for node in sums.values():
        graph.remove(node)
    prune(graph)
    removed = {RESET, *sums}
    graph.set_inputs(v for v in graph.inputs if v.name not in removed)
    model.inputs[:] = [d for d in model.inputs if d.name not in removed]
    return names


def _buffer(node: Node) -> str:
    """Return the name of the input that a node adds a gradient to; empty for other nodes."""
    buffer = node.inputs[0] if node.op.name == _ACCUMULATOR else None
    is_input = buffer is not None and buffer in node.graph.inputs and buffer.name.endswith(BUFFER)
    return buffer.name if buffer is not None and is_input else ""


def _gradient(node: Node) -> Value:
    """Return the gradient that an accumulator reads, before it is cast to the buffer's type."""
    value = input_of(node, 1)
    cast = value.node
    if cast is not None and cast.op.name == "CastLike" and cast.inputs[1] is node.inputs[0]:
        return input_of(cast, 0)
    return value


def _shape(declared: Declared, name: str) -> tuple[DType, tuple[int, ...]]:
    """Return type and shape of a parameter, which must be known."""
    fact, dims = declared.fact, declared.dims
    if not isinstance(fact, Fact) or dims is None or not all(isinstance(d, int) for d in dims):
        raise InvalidArgument(f"the parameter {declared.name} of {name} has no fixed shape: {fact}")
    return fact.dtype, tuple(d for d in dims if isinstance(d, int))


def _check_parameter(declared: Declared, data: Array | None, name: str) -> None:
    """Check that a parameter of a checkpoint fits its declaration."""
    dtype, shape = _shape(declared, name)
    if data is not None and (data.dtype != dtype.np or data.shape != shape):
        raise InvalidArgument(
            f"the parameter {declared.name} is {dtype.np}{list(shape)} in {name}, "
            f"and {data.dtype}{list(data.shape)} in the checkpoint",
            hint="the checkpoint is of another model",
        )


def inference_model(
    path: str | os.PathLike[str], state: TrainingState, outputs: Sequence[str]
) -> Model:
    """Return an evaluation model with other outputs, and its parameters as initializers."""
    if not outputs or isinstance(outputs, str):
        raise InvalidArgument("graph_output_names must be a list of at least one name")
    model = load(path)
    graph = model.graph
    infer(graph)
    values = {value.name: value for value in graph.all_values() if value.name}
    for name in outputs:
        if name not in values:
            raise InvalidArgument(
                f"{os.fspath(path)} has no value {name!r}",
                hint=f"its outputs are {', '.join(d.name for d in model.outputs)}",
            )
    graph.set_outputs([values[name] for name in outputs])
    for value in graph.inputs:
        parameter = state.parameters.get(value.name)
        if parameter is not None and parameter.data is not None:
            value.fact = const_fact(ArrayConst(parameter.data))
    prune(graph)
    graph.set_inputs(v for v in graph.inputs if _is_read(graph, v) and not v.is_const)
    kept = {value.name for value in graph.inputs}
    inputs = [d for d in model.inputs if d.name in kept]
    return replace(model, inputs=inputs, outputs=[_declared(values[name]) for name in outputs])


def _is_read(graph: Graph, value: Value) -> bool:
    return bool(value.uses) or value in graph.outputs


def _declared(value: Value) -> Declared:
    fact: Any = value.fact
    if isinstance(fact, Fact) and fact.shape is not None:
        dims = tuple(d if isinstance(d, int) else lone_name(d) for d in fact.dims)
        return Declared(value.name, fact.without_contents(), dims)
    return Declared(value.name, fact, None)
