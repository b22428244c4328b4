"""`fit`: trains an ONNX model on data, with evaluation, checkpoints and resumption."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.load.model import Model
from sardonyx.save import SaveOptions, save
from sardonyx.train.adapters import Adapted
from sardonyx.train.batches import Batches, BatchOptions, Data, holds_arrays
from sardonyx.train.checkpoint import CheckpointFolder
from sardonyx.train.evaluation import Evaluation, Metric
from sardonyx.train.inference_form import inference_form
from sardonyx.train.loop import Loop, LoopOptions
from sardonyx.train.loss_curve import loss_curve
from sardonyx.train.optimizers import LearningRate, Optimizer
from sardonyx.train.speed import StepReport
from sardonyx.train.training_step import TrainingStep

_ADAPTER: Final = ".onnx_adapter"


@frozen(eq=False)
class Fitted:
    """The result of `fit`: the trained parameters, and the history of losses."""

    step: TrainingStep  # running it continues the training
    losses: list[float]  # by step
    evaluations: list[dict[str, float]]  # "step", "loss" and metrics
    stopped: str  # why training ended before its last step; empty if it did not
    adapted: Adapted | None = None

    @property
    def parameters(self) -> dict[str, Array]:
        """The trained parameters by name."""
        return self.step.parameters

    def to_model(self) -> Model:
        """Return the trained model for inference: running statistics, no Dropout.

        Adapters are its optional inputs, with the trained parameters as defaults. A loss that
        `add_loss` added is left out: inputs and outputs are those of the model before.
        """
        return inference_form(self.step.to_model(with_loss=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model; of a model with adapters, `*.onnx_adapter` has only them."""
        target = os.fspath(path)
        if not target.endswith(_ADAPTER):
            model = self.to_model()
            data = f"{os.path.basename(target)}.data" if _is_large(model) else None
            save(model, SaveOptions(target, data))
        elif self.adapted is not None:
            self.adapted.save(target, self.parameters)
        else:
            raise InvalidArgument(
                f"{target} would be an adapter, but the model has none",
                hint="pass the result of sardonyx.train.lora to fit",
            )

    def save_curve(self, path: str | os.PathLike[str], title: str = "loss") -> None:
        """Write the losses of training and evaluation as an SVG image."""
        text = loss_curve(self.losses, self.evaluations, title)
        try:
            with writing(os.fspath(path)) as file:
                file.write(text.encode())
        except OSError as error:
            raise Fail(
                f"the curve cannot be written to {os.fspath(path)}: {error.strerror}"
            ) from error


def _is_large(model: Model) -> bool:
    """Whether the weights exceed half of protobuf's 2 GB limit, and are stored as external data."""
    constants = (value.const for value in model.graph.all_values())
    return sum(const.size_bytes for const in constants if const is not None) > 1 << 30


def fit(  # noqa: PLR0913 - options, passed by name
    model: Any,
    data: Data,
    *,
    loss: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    seed: int = 0,
    parameters: Sequence[str] | None = None,
    optimizer: Optimizer | None = None,
    lr: LearningRate | None = None,
    max_norm: float | None = None,
    accumulate: int = 1,
    mixed_precision: str | None = None,
    memory_budget: int | None = None,
    dims: Mapping[str, int] | None = None,
    evaluation: Data | None = None,
    metrics: Mapping[str, Metric] | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    monitor: str = "loss",
    checkpoints: str | os.PathLike[str] | CheckpointFolder | None = None,
    save_every: int | None = None,
    resume: bool = False,
    on_step: Callable[[StepReport], None] | None = None,
) -> Fitted:
    """Train a model: anything that a session accepts, the result of `lora`, or a `TrainingStep`.

    `data` are arrays by input (or a tuple of them in the order of the inputs) in batches of
    `batch_size`; or feeds, each of which is a batch: a list, another iterable, or a function from
    the number of an epoch to an iterable. A step is one batch, and training ends after `epochs` or
    `steps`. Arrays and lists are shuffled in each epoch, as `seed` determines.

    `loss` names the output to minimize. `parameters`, `optimizer`, `max_norm`, `accumulate`,
    `mixed_precision`, `memory_budget` and `dims` are those of `TrainingStep`; they cannot be
    overridden if `model` is one; `lr` replaces the optimizer's learning rate, and may be a function
    of the number of updates (`sardonyx.train.schedules`).

    The model is evaluated on `evaluation` at the end of each epoch, or every `evaluate_every`
    steps: its mean loss, and the means of `metrics`, which are functions of the outputs and the
    feeds of a batch. With `patience`, training stops after that many evaluations without a better
    `monitor`ed value; the result has the parameters and running statistics of the best evaluation,
    however training ended. Without, it has those of the last step.

    With `checkpoints`, a folder, the state is written every `save_every` steps, at the end, and on
    Ctrl-C. With `resume` the newest one is continued, if there is any: data, random numbers and
    optimizer state continue bitwise equal to an uninterrupted run.

    `on_step` is called with a report after each step.
    """
    adapted = model if isinstance(model, Adapted) else None
    if adapted is not None:
        model = adapted.model
        parameters = list(adapted.parameters) if parameters is None else parameters
    step = _step_of(
        model,
        loss=loss,
        parameters=parameters,
        optimizer=optimizer,
        max_norm=max_norm,
        accumulate=accumulate,
        mixed_precision=mixed_precision,
        memory_budget=memory_budget,
        dims=dims,
    )
    options = LoopOptions(
        loss=step.loss,
        epochs=epochs,
        steps=steps,
        lr=lr,
        evaluate_every=evaluate_every,
        patience=patience,
        monitor=monitor,
        save_every=save_every,
        resume=resume,
        seed=seed,
    )
    batches = Batches(data, step.inputs, BatchOptions(batch_size, shuffle, seed, drop_last))
    validation = _validation(step, evaluation, metrics or {}, batch_size)
    folder = _checkpoint_folder(checkpoints)
    loop = Loop(step, batches, options, validation, folder, on_step)
    if folder is None:  # else a later run may complete the update
        _check_accumulate(step, loop)
    loop.run()
    state = loop.state
    return Fitted(step, state.losses, state.evaluations, state.early_stop_reason, adapted)


def _checkpoint_folder(
    checkpoints: str | os.PathLike[str] | CheckpointFolder | None,
) -> CheckpointFolder | None:
    if checkpoints is None or isinstance(checkpoints, CheckpointFolder):
        return checkpoints
    if not isinstance(checkpoints, (str, os.PathLike)):
        raise InvalidArgument(f"checkpoints must be the path of a folder, got {checkpoints!r:.60}")
    return CheckpointFolder(checkpoints)


def _check_accumulate(step: TrainingStep, loop: Loop) -> None:
    """Raise if training ends before its first update."""
    if loop.total is not None and loop.total < step.accumulate:
        raise InvalidArgument(
            f"accumulate must be at most the {loop.total} steps of training, got {step.accumulate}"
        )


def _step_of(model: Any, *, loss: str | None, accumulate: int, **options: Any) -> TrainingStep:
    """Return the step to train: a new one with these options, or `model` if it is a step."""
    if not isinstance(model, TrainingStep):
        return TrainingStep(model, loss=loss, accumulate=accumulate, **options)
    if accumulate != 1 or any(option is not None for option in options.values()):
        raise InvalidArgument(
            "the options of a TrainingStep cannot be overridden; pass them to TrainingStep"
        )
    if loss not in (None, model.loss):
        raise InvalidArgument(f"the step minimizes {model.loss}, not {loss}")
    return model


def _validation(
    step: TrainingStep, data: Data | None, metrics: Mapping[str, Metric], batch_size: int | None
) -> Evaluation | None:
    """Return the evaluation on some data, in their order; None without data."""
    if data is None:
        if metrics:
            raise InvalidArgument("`metrics` need data for `evaluation`")
        return None
    if not isinstance(metrics, Mapping):
        raise InvalidArgument(f"metrics must be functions by name, got {metrics!r:.60}")
    size = batch_size if holds_arrays(data) else None
    in_order = BatchOptions(size, shuffle=False, purpose="evaluation")
    return Evaluation(Batches(data, step.inputs, in_order), step.loss, metrics)
