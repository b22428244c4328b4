"""Adds a loss to a model that was exported without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Size, lone_name, symbol
from sardonyx.graph.dtype import FLOATS, I64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import read_model
from sardonyx.ops.builder import Builder
from sardonyx.passes.replace import prune
from sardonyx.train.adapters.targets import editable

IGNORED: Final = -100  # the label of a position without a loss, as in torch


def add_loss(
    model: Any,
    output: str | None = None,
    *,
    kind: str = "cross_entropy",
    labels: str = "labels",
    loss: str = "loss",
    keep: Sequence[str] = (),
) -> Model:
    """Return a model with a loss of an output as its first output, and labels as a new input.

    "cross_entropy": labels are class numbers, [batch] or [batch, positions], for scores with one
    more axis of classes; -100 marks positions that do not count. A Softmax at the end is left out,
    as the loss has one. "mse" is the mean squared error to labels of the output's shape. Of the
    other outputs those in `keep` stay. What `fit` trains is saved as `model` was: without the loss,
    with all outputs.
    """
    if kind not in _KINDS:
        raise InvalidArgument(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    source = read_model(model)
    changed = editable(source)
    outputs = {d.name: v for d, v in zip(changed.outputs, changed.graph.outputs, strict=True)}
    unknown = next((n for n in (output, *keep) if n is not None and n not in outputs), None)
    if unknown is not None or (output is None and len(outputs) != 1):
        what = "name the one to train" if unknown is None else f"there is no {unknown!r}"
        raise InvalidArgument(f"the model has the outputs {', '.join(outputs)}; {what}")
    scores = outputs[output or next(iter(outputs))]
    if not isinstance(scores.fact, Fact) or scores.fact.dtype not in FLOATS:
        raise InvalidArgument(f"the output {output} is {scores.fact}, and a loss needs floats")
    _free(changed, loss, [outputs[n] for n in keep])
    made = _KINDS[kind](Builder(changed.graph, changed.graph.scope), changed, scores, labels)
    made.name = loss
    kept = [n for n in outputs if n in keep]
    declared = {d.name: d for d in changed.outputs}
    changed.graph.set_outputs([made, *(outputs[n] for n in kept)])
    changed.outputs[:] = [Declared(loss, made.tensor, ()), *(declared[n] for n in kept)]
    changed.before_loss = partial(editable, source)
    prune(changed.graph)
    return changed


def _free(model: Model, name: str, kept: Sequence[Value]) -> None:
    """Take a name from an intermediate value, which needs none; raise if another value has it."""
    for value in model.graph.all_values():
        if value.name != name:
            continue
        if value.node is None or value in kept:
            raise InvalidArgument(
                f"the model already has a value {name!r}; choose another name by `loss`"
            )
        value.name = ""


def _cross_entropy(b: Builder, model: Model, scores: Value, labels: str) -> Value:
    source = scores.node
    is_softmax = source is not None and source.op.name == "Softmax"
    if source is not None and is_softmax and source.attrs["axis"] in (-1, scores.tensor.rank - 1):
        first = source.inputs[0]
        assert first is not None
        scores = first
    *dims, n_classes = scores.tensor.dims
    if not dims or not isinstance(n_classes, int):
        raise InvalidArgument(
            f"the scores are {scores.tensor}, and cross entropy needs a last axis of classes"
        )
    target = _label_input(model, labels, I64, dims)
    rows = b.Reshape(scores, b.ints(-1, n_classes))
    flat = b.Reshape(target, b.ints(-1))
    return b.SoftmaxCrossEntropyLoss(rows, flat, ignore_index=IGNORED)


def _mean_squared_error(b: Builder, model: Model, scores: Value, labels: str) -> Value:
    target = _label_input(model, labels, scores.tensor.dtype, scores.tensor.dims)
    difference = b.Sub(scores, target)
    return b.ReduceMean(b.Mul(difference, difference), keepdims=0)


_KINDS: Final[dict[str, Callable[[Builder, Model, Value, str], Value]]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_squared_error,
}


def _label_input(model: Model, name: str, dtype: DType, dims: Sequence[Size]) -> Value:
    """A new input; dims that are not numbers or names get names of their own."""
    if any(v.name == name for v in model.graph.all_values()):
        raise InvalidArgument(f"the model already has a value {name!r}; choose other `labels`")
    shape = tuple(
        d if isinstance(d, int) or lone_name(d) is not None else symbol(f"{name}.{i}")
        for i, d in enumerate(dims)
    )
    value = Value(name, Fact(dtype, shape))
    model.graph.add_input(value)
    names = [lone_name(d) if not isinstance(d, int) else d for d in shape]
    model.graph.scope.entry.update(n for n in names if isinstance(n, str))
    model.inputs.append(Declared(name, value.fact, tuple(names)))
    return value
