"""`TrainingStep`: trains an ONNX model, one session run per step.

Forward, backward, clipping, accumulation and update are nodes of one graph
(`autodiff/training_graph.py`). Parameters and states are arrays of this object, which the nodes
update in place; the session has no copy of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from sardonyx.autodiff.gradient import loaded_model
from sardonyx.autodiff.recompute import Choice, FirstLayers
from sardonyx.autodiff.training_graph import (
    LOSS_SCALE_INPUT,
    SETTINGS_INPUT,
    StepModel,
    StepOptions,
    training_model,
)
from sardonyx.base.locks import Lock
from sardonyx.base.log import logger
from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument, RuntimeException, SardonyxError, located
from sardonyx.graph.dtype import BF16, F16
from sardonyx.load.model import Model
from sardonyx.load.source import read_model
from sardonyx.ops.loss import NEGATIVE_LABEL
from sardonyx.ort.options import SessionOptions
from sardonyx.session import InferenceSession
from sardonyx.session.feeds import describe
from sardonyx.train.inference_form import without_loss
from sardonyx.train.loss_scale import LossScale
from sardonyx.train.optimizers import AdamW, LearningRate, Optimizer, is_at_least_0
from sardonyx.train.step_arrays import load_arrays, save_trained, trained_model
from sardonyx.train.step_memory import step_bytes

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]

# Of the layers, that a memory budget may have recomputed.
_SHARES: Final = (0.25, 0.5, 0.75, 1.0)
_COUNTERS: Final = ("step", "runs", "loss_scale", "loss_scale.updates")  # of the state
_PRECISIONS: Final = {None: None, "bfloat16": BF16, "float16": F16}


class TrainingStep:
    """A model in training: its parameters, the optimizer's state, and the step.

    `loss` names the output to minimize; the default is the only output. `parameters` are names of
    initializers, or patterns as in fnmatch; for the default see `gradient`. All others are frozen:
    their gradients are not computed.

    `max_norm` clips the gradients by their norm over all parameters. With `accumulate=n` the
    gradients of n runs are averaged, and the last run updates the parameters. `mixed_precision`
    computes matmuls and convolutions in float16 or bfloat16 on float32 parameters; for float16 the
    loss is scaled, and steps whose gradients overflow are skipped.

    `recompute` is that of `gradient`. With `memory_budget` in bytes, as many layers are recomputed
    as the values of the first step need to fit. `dims` fixes symbolic dims by name.

    Results are bitwise equal for any number of threads. One thread runs a step at a time.
    """

    def __init__(  # noqa: PLR0913 - options, passed by name
        self,
        model: Any,
        *,
        loss: str | None = None,
        parameters: Sequence[str] | None = None,
        optimizer: Optimizer | None = None,
        max_norm: float | None = None,
        accumulate: int = 1,
        mixed_precision: str | None = None,
        recompute: Choice = None,
        memory_budget: int | None = None,
        dims: Mapping[str, int] | None = None,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
    ) -> None:
        """`model` is anything that a session accepts."""
        self._optimizer: Optimizer = AdamW() if optimizer is None else optimizer
        _check_optimizer(self._optimizer)
        _check(max_norm, accumulate, mixed_precision, memory_budget)
        self._accumulate = accumulate
        self._budget = None if recompute is not None else memory_budget
        self._session_arguments = sess_options, providers
        self._source = model if isinstance(model, Model) else read_model(model)
        self._options = StepOptions(
            self._optimizer.rule(),
            loss,
            _listed(parameters),
            max_norm,
            accumulate > 1,
            _PRECISIONS[mixed_precision],
            mixed_precision == "float16",
            recompute,
            dims,
        )
        self._scale = LossScale() if mixed_precision == "float16" else None
        self._count = np.zeros((), np.int64)
        self._runs = np.zeros((), np.int64)
        self._lock = Lock()
        made = training_model(self._source, self._options)
        self._loss = made.loss
        self._outputs = [d.name for d in made.model.outputs[:-1]]
        self._allocate(made)
        self._session = InferenceSession(made.model, *self._session_arguments)
        self.inputs = [i.name for i in self._session.get_inputs() if i.name not in self._own]

    def _allocate(self, made: StepModel) -> None:
        """Make the arrays that runs update in place."""
        arrays: Arrays = {n: np.array(c.view()) for n, c in made.parameters.items()}
        states: Arrays = {n: np.array(c.view()) for n, c in made.statistics.items()}
        states.update((n, np.zeros(shape, dtype.np)) for n, (dtype, shape) in made.states.items())
        self._parameters, self._states = arrays, states
        self._statistics = list(made.statistics)
        _check_statistics(self._statistics)
        self._settings = np.zeros(6)
        self._loss_scale = np.ones((), np.float32)
        self._own = {SETTINGS_INPUT: self._settings, LOSS_SCALE_INPUT: self._loss_scale}
        self._own |= self._parameters | self._states

    @property
    def loss(self) -> str:
        """The name of the output that is minimized."""
        return self._loss

    @property
    def accumulate(self) -> int:
        """The number of runs that make one update."""
        return self._accumulate

    @property
    def parameters(self) -> Arrays:
        """The trained arrays by name: writable; changes take effect in the next step."""
        return dict(self._parameters)

    @property
    def state(self) -> Arrays:
        """The arrays, other than the parameters, that another process needs to resume, by name.

        `step` counts the updates and `runs` the runs, `<parameter>.exp_avg` and the like are the
        optimizer's, `<parameter>.grad_sum` are accumulated gradients, with `_` at the end where the
        model has a value of that name. Running statistics of batch norms have their own names.
        """
        scale = {} if self._scale is None else self._scale.state
        return {"step": self._count, "runs": self._runs, **scale, **self._states}

    @property
    def statistics(self) -> Arrays:
        """The running statistics of batch norms in training mode, which `state` has too."""
        return {name: self._states[name] for name in self._statistics}

    @property
    def session(self) -> InferenceSession:
        """The session that runs the step."""
        return self._session

    def run(self, feeds: Mapping[str, Any], lr: LearningRate | None = None) -> dict[str, Any]:
        """Run one step and return the outputs of the model by name.

        `lr` replaces the learning rate of the optimizer. A loss that is not finite is an error, and
        changes nothing.
        """
        with self._lock:
            self._check_feeds(feeds)
            if self._budget is not None:
                self._keep_within_budget(feeds)
            self._set(self._optimizer.lr if lr is None else lr)
            with _for_feeds(feeds):
                *outputs, updated = self._session.run(None, {**feeds, **self._own})
            results = dict(zip(self._outputs, outputs, strict=True))
            self._advance(results[self._loss], bool(updated.all()))
            return results

    def _check_feeds(self, feeds: Mapping[str, Any]) -> None:
        for name in feeds:
            if name in self.inputs:
                continue
            if name in self._own:
                raise InvalidArgument(
                    f"{name} is a parameter or state, not a feed",
                    hint="change its array in step.parameters or step.state",
                )
            listed = ", ".join(sorted(self.inputs))
            raise InvalidArgument(f"{name} is not an input; the inputs are {listed}")
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise InvalidArgument(
                f"the feeds lack {', '.join(missing)}; they have {', '.join(feeds) or 'nothing'}"
            )

    def _keep_within_budget(self, feeds: Mapping[str, Any]) -> None:
        """Recompute as few layers as the budget allows for the values of a step of these sizes."""
        budget, self._budget = self._budget, None
        assert budget is not None
        if self._step_bytes(feeds) <= budget:
            return
        low, high, compiled = 0, len(_SHARES) - 1, -1
        while low < high:
            compiled = (low + high) // 2
            self._recompute(_SHARES[compiled])
            fits = self._step_bytes(feeds) <= budget
            low, high = (low, compiled) if fits else (compiled + 1, high)
        if compiled != high:
            self._recompute(_SHARES[high])
        needed = self._step_bytes(feeds)
        if needed > budget:
            logger.warning(
                "memory_budget is %d bytes, and a step takes %d with all layers recomputed",
                budget,
                needed,
            )

    def _step_bytes(self, feeds: Mapping[str, Any]) -> int:
        return step_bytes(self._session, {**feeds, **self._own})

    def _recompute(self, share: float) -> None:
        """Compile the step again, with a share of its layers recomputed, for the same arrays."""
        made = training_model(self._source, replace(self._options, recompute=FirstLayers(share)))
        self._session = InferenceSession(made.model, *self._session_arguments)

    def _set(self, lr: LearningRate) -> None:
        """Write the settings that the nodes read in this run."""
        count, run = int(self._count), int(self._runs)
        rate = lr(count) if callable(lr) else lr
        if not is_at_least_0(rate):
            raise InvalidArgument(f"the learning rate of step {count + 1} is {rate!r:.60}")
        micro = run % self._accumulate
        updates, keep = micro == self._accumulate - 1, micro > 0
        scale = 1.0 if self._scale is None else self._scale.value
        self._loss_scale[...] = scale
        factor = 1 / (scale * self._accumulate)
        self._settings[:] = rate, count + 1, factor, updates, keep, run

    def _advance(self, loss: Any, is_updated: bool) -> None:
        """Count the run; raise if it was skipped because its loss is not finite."""
        if not np.isfinite(loss).all():
            raise RuntimeException(
                f"the loss of step {int(self._count) + 1} is {float(np.asarray(loss).reshape(()))}",
                hint="parameters and states are those before the step; lower the learning rate, "
                "clip gradients by max_norm, or look for such numbers in the feeds",
            )
        if self._settings[3]:
            if self._scale is not None:
                with located(training=f"step {int(self._count) + 1}"):
                    self._scale.update(is_updated)
            self._count += is_updated
        self._runs += 1

    def load(
        self,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy parameters, state or both from another step of this model.

        Raise, before anything is changed, if names, shapes or types differ.
        """
        with self._lock:
            own = self.state
            load_arrays(self._parameters, parameters, "parameter", only_check=True)
            load_arrays(own, state, "state")
            load_arrays(self._parameters, parameters, "parameter")

    def to_model(self, *, with_loss: bool = True) -> Model:
        """Return the model with the trained parameters, which a session or `gradient` accepts.

        Without the loss, a model that `add_loss` made is what it was before.
        """
        model, _ = loaded_model(self._source, None)
        return trained_model(model if with_loss else without_loss(model), self._trained())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with the trained parameters, atomically; external data stays external."""
        model, _ = loaded_model(self._source, None)
        source = None if isinstance(self._source, Model) else self._source.source
        save_trained(model, self._trained(), os.fspath(path), source)

    def _trained(self) -> Arrays:
        return self._parameters | self.statistics


def _check(
    max_norm: float | None, accumulate: int, precision: str | None, budget: int | None
) -> None:
    if max_norm is not None and not is_at_least_0(max_norm):
        raise InvalidArgument(f"max_norm must be at least 0, got {max_norm!r}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise InvalidArgument(f"accumulate must be a positive integer, got {accumulate!r}")
    if precision not in _PRECISIONS:
        raise InvalidArgument(
            f"mixed_precision must be None, 'bfloat16' or 'float16', got {precision!r}"
        )
    if budget is not None and not is_at_least_0(budget):
        raise InvalidArgument(f"memory_budget must be at least 0 bytes, got {budget!r}")


def _listed(parameters: Any) -> Sequence[str] | None:
    """A name alone as a list."""
    if parameters is None or isinstance(parameters, str):
        return parameters if parameters is None else [parameters]
    if not isinstance(parameters, Iterable):
        raise InvalidArgument(f"`parameters` must be names or patterns, got {parameters!r:.60}")
    return list(parameters)


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, type) or not hasattr(optimizer, "rule"):
        raise InvalidArgument(
            f"optimizer must be one of sardonyx.train, got {optimizer!r:.60}",
            hint="pass AdamW(lr=...), Adam, SGD or Adafactor",
        )


def _check_statistics(names: Iterable[str]) -> None:
    for name in names:
        if name in _COUNTERS:
            raise InvalidArgument(
                f"the running statistic {name} has the name of a counter in the state of a step",
                hint="rename the initializer",
            )


@contextmanager
def _for_feeds(feeds: Mapping[str, Any]) -> Iterator[None]:
    """Let errors of a run name what the user fed, and not what the step added to it."""
    try:
        yield
    except SardonyxError as error:
        if "fed" in error.where:
            error.where["fed"] = describe(feeds)
        position = re.match(rf"index {NEGATIVE_LABEL} at position (\d+) ", error.what)
        if position is None:
            raise
        raise InvalidArgument(
            f"the label at position {position[1]} is below 0",
            hint="labels are class numbers from 0, or the ignore_index of the loss",
        ).add_context(**error.where) from None
