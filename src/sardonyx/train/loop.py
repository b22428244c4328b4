"""The training loop: epochs of steps, with evaluation, checkpoints, interruption and resumption.

A resumed run is bitwise equal to an uninterrupted one: a checkpoint holds parameters, optimizer
state, the position in the data, and the states of random generators.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable
from numbers import Integral
from typing import Any, Final, Self

import numpy as np

from sardonyx.base.log import logger
from sardonyx.base.progress import track
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument, located
from sardonyx.train import resumption
from sardonyx.train.batches import Batches, Feeds
from sardonyx.train.checkpoint import CheckpointFolder
from sardonyx.train.evaluation import Evaluation
from sardonyx.train.optimizers import LearningRate
from sardonyx.train.resumption import State, Step
from sardonyx.train.speed import StepReport, StepTimer

NAN_HINT: Final = (
    "lower the learning rate or begin with a warmup, clip gradients (max_norm=1.0), "
    "and look for infinities, logarithms of 0 and wrong labels in this batch"
)


@frozen
class LoopOptions:
    """How long to train, and when to evaluate, save and stop."""

    loss: str  # the name of the output
    epochs: int | None = None
    steps: int | None = None
    lr: LearningRate | None = None  # overrides the optimizer's
    evaluate_every: int | None = None  # steps; None: at the end of each epoch
    patience: int | None = None  # evaluations without an improvement
    monitor: str = "loss"  # of the evaluation; a loss is minimized, a metric maximized
    save_every: int | None = None  # steps; None: only at the end and when interrupted
    resume: bool = False
    seed: int = 0


class Loop:
    """One run of a training step over data."""

    def __init__(
        self,
        step: Step,
        batches: Batches,
        options: LoopOptions,
        evaluation: Evaluation | None = None,
        checkpoints: CheckpointFolder | None = None,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> None:
        self.step = step
        self.state = State()
        # Parameters and running statistics of the best evaluation, with patience.
        self.best: dict[str, Array] = {}
        self._batches, self._options = batches, options
        self._evaluation, self._checkpoints, self._on_step = evaluation, checkpoints, on_step
        self._saved: str | None = None  # the newest checkpoint
        self._generators = resumption.Generators()
        _check(options, evaluation, checkpoints)
        if on_step is not None and not callable(on_step):
            raise InvalidArgument(f"on_step must be a function of a report, got {on_step!r:.60}")

    @property
    def total(self) -> int | None:
        """The number of steps of the whole run, where it is known."""
        options, count = self._options, self._batches.count
        by_epochs = None if options.epochs is None or count is None else options.epochs * count
        return min((n for n in (options.steps, by_epochs) if n is not None), default=None)

    def run(self) -> None:
        """Train to the end; Ctrl-C writes a checkpoint and raises KeyboardInterrupt."""
        resumption.seed_sessions(self._options.seed)
        if self._checkpoints is not None:
            self._checkpoints.create()
            self._restore(self._checkpoints)
        before = self.state.step
        with _Interrupts() as interrupts, track("training") as progress:
            speed = StepTimer(self.total)

            def report(feeds: Feeds) -> None:
                state = self.state
                made = speed.report(state.step, state.epoch, state.losses[-1], feeds)
                progress.update(state.step, self.total or state.step, made.text())
                if self._on_step is not None:
                    self._on_step(made)

            while not self._is_done:
                self._epoch(interrupts, report)
                if interrupts.requested:  # while the epoch was evaluated
                    self._interrupt()
        if self._checkpoints is not None and self.state.step > before:
            self._save_last()
        if self.best and (self._options.patience is not None or self.state.early_stop_reason):
            resumption.load_best(self.step, self.best)

    @property
    def _is_done(self) -> bool:
        options, state = self._options, self.state
        reached_max_steps = options.steps is not None and state.step >= options.steps
        reached_max_epochs = options.epochs is not None and state.epoch >= options.epochs
        return bool(state.early_stop_reason) or reached_max_steps or reached_max_epochs

    def _epoch(self, interrupts: _Interrupts, report: Callable[[Feeds], None]) -> None:
        """Run the rest of the current epoch."""
        state, options = self.state, self._options
        # After a resumption, data that uses the global generators repeats its draws.
        self._generators.enter_epoch()
        for feeds in self._batches.epoch(state.epoch, skip=state.batch):
            self._run_step(feeds)
            if options.evaluate_every and state.step % options.evaluate_every == 0:
                self._evaluate()
            report(feeds)
            is_due = options.save_every and state.step % options.save_every == 0
            if is_due and self._checkpoints is not None:
                self._save()
            if interrupts.requested:
                self._interrupt()
            if self._is_done and state.batch != self._batches.count:
                return  # within the epoch, which is not evaluated
        if not state.batch:
            raise InvalidArgument(f"the data has no batches in epoch {state.epoch}")
        if not options.evaluate_every:
            self._evaluate()
        state.epoch, state.batch = state.epoch + 1, 0
        self._generators.leave_epoch()

    def _run_step(self, feeds: Feeds) -> None:
        state, options = self.state, self._options
        where = f"step {state.step + 1}, batch {state.batch + 1} of epoch {state.epoch + 1}"
        saved = self._saved or "none; pass a folder as `checkpoints`"
        with located(training=where, checkpoint=saved):
            outputs = self.step.run(feeds, options.lr)
            loss = float(np.mean(outputs[options.loss]))
            if not math.isfinite(loss):
                raise Fail(f"the loss is {loss}", hint=NAN_HINT)
        state.step, state.batch = state.step + 1, state.batch + 1
        state.losses.append(loss)

    def _evaluate(self) -> None:
        """Evaluate, and keep the parameters if the result is the best so far."""
        if self._evaluation is None:
            return
        state, options = self.state, self._options
        with located(evaluation=f"after step {state.step}"):
            values = self._evaluation.run(self.step.to_model())
        state.evaluations.append({"step": state.step, **values})
        if options.patience is None:
            return
        value = values[options.monitor]
        is_better = value < state.best if options.monitor == "loss" else value > state.best
        if is_better or math.isnan(state.best):
            state.best, state.n_worse = value, 0
            self.best = resumption.best_of(self.step)
            return
        state.n_worse += 1
        if state.n_worse >= options.patience:
            state.early_stop_reason = (
                f"{options.monitor} has been no better than {state.best:.6g} "
                f"for {state.n_worse} evaluations"
            )

    def _interrupt(self) -> None:
        text = f"training was interrupted after step {self.state.step}"
        if self._checkpoints is None:
            raise KeyboardInterrupt(f"{text}; without `checkpoints`, its progress is lost")
        path = self._save()
        raise KeyboardInterrupt(f"{text}, and saved as {path}: fit(..., resume=True) continues")

    def _save(self) -> str:
        assert self._checkpoints is not None
        tensors, metadata = resumption.pack(self.step, self.state, self.best, self._generators)
        metadata["data"] = self._identity
        self._saved = self._checkpoints.save(self.state.step, tensors, metadata)
        return self._saved

    def _save_last(self) -> None:
        """Save a run that has ended; a failure is logged, as what was trained is returned."""
        try:
            self._save()
        except Fail as error:
            logger.warning("training has ended, and is not saved: %s", error.what)

    @property
    def _identity(self) -> dict[str, Any]:
        """What must be equal in all runs of one training."""
        return {"batches in an epoch": self._batches.count, "seed": int(self._options.seed)}

    def _restore(self, checkpoints: CheckpointFolder) -> None:
        if not self._options.resume:
            if path := checkpoints.latest():
                raise InvalidArgument(
                    f"{path} already exists, from an earlier run",
                    hint="pass resume=True to continue it, or another folder",
                )
            return
        found = checkpoints.load_latest()
        if found is None:
            return
        known = found.metadata.get("data")
        if not isinstance(known, dict):  # of another program: `unpack` says so
            known = self._identity
        for what, value in self._identity.items():
            before = known.get(what)
            if before != value:
                raise InvalidArgument(
                    f"the checkpoint {found.path} was made with {before} {what}, not {value}",
                    hint="resume with the same data and seed, or use another folder",
                )
        self.state, self.best = resumption.unpack(found, self.step, self._generators)
        self._saved = found.path
        logger.info("training continues after step %d of %s", self.state.step, found.path)


def _check(
    options: LoopOptions, evaluation: Evaluation | None, checkpoints: CheckpointFolder | None
) -> None:
    if options.epochs is None and options.steps is None:
        raise InvalidArgument("pass `epochs` or `steps`: how long to train")
    numbers = ("epochs", "steps", "evaluate_every", "patience", "save_every")
    for name in numbers:
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidArgument(f"{name} must be a positive integer, got {value!r}")
    if not isinstance(options.seed, Integral) or options.seed < 0:
        raise InvalidArgument(f"seed must be an integer from 0 on, got {options.seed!r}")
    for name in ("patience", "evaluate_every"):
        if evaluation is None and getattr(options, name) is not None:
            raise InvalidArgument(f"`{name}` needs data for `evaluation`")
    known = ["loss"] if evaluation is None else evaluation.names
    if options.monitor not in known:
        raise InvalidArgument(f"monitor must be one of {', '.join(known)}, got {options.monitor!r}")
    for name in ("resume", "save_every"):
        if checkpoints is None and getattr(options, name):
            raise InvalidArgument(f"`{name}` needs a folder of `checkpoints`")


class _Interrupts:
    """Defers Ctrl-C to the end of a step; a second one interrupts immediately."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
