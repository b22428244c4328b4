"""`Optimizer` and `LinearLRScheduler`: update the parameters of a module by its gradients."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ort.options import threads_of
from sardonyx.session import InferenceSession
from sardonyx.training.checkpoint import Path
from sardonyx.training.module import Module
from sardonyx.training.optimizer_model import read_optimizer_model
from sardonyx.training.state import GROUP, OptimizerState
from sardonyx.training.update import Trained, check_tensors, update


class Optimizer:
    """The optimizer of a module; its state is part of the module's checkpoint state."""

    def __init__(self, optimizer_uri: Path, module: Module) -> None:
        """Read an optimizer model; moments of the checkpoint are used, if it has any."""
        if not isinstance(module, Module):
            raise TypeError(f"module must be a Module, got {type(module).__name__}")
        self._model = read_optimizer_model(optimizer_uri)
        self._state = module._state
        options = module._session_options
        self._threads = threads_of(options)
        # A model with other nodes runs as it is; the native pass is faster and clips in place.
        self._session = None
        if not self._model.is_plain:
            self._session = InferenceSession(optimizer_uri, options)
        self._group = self._state.groups.setdefault(GROUP, OptimizerState())
        if not self._state.is_nominal:
            self._trained()

    def _trained(self) -> list[Trained]:
        """Return parameters, gradients and moments, which are zeros before the first step.

        A training step may replace the arrays of gradients.
        """
        moments, names = self._group.moments, self._model.moments
        trained, is_new = [], not moments
        for name, parameter in self._state.parameters.items():
            if not parameter.requires_grad:
                continue
            data, grad = parameter.data, parameter.grad
            assert data is not None
            if grad is None:
                raise InvalidArgument(f"the training model has no gradient of {name}")
            if is_new:
                moments[name] = {moment: np.zeros_like(data) for moment in names}
            missing = [moment for moment in names if moment not in moments.get(name, {})]
            if missing:
                raise InvalidArgument(
                    f"the checkpoint has optimizer states, but not {missing[0]} of {name}",
                    hint="it was saved with another optimizer or other trainable parameters",
                )
            entry = Trained(name, data, grad, tuple(moments[name][moment] for moment in names))
            check_tensors(entry)
            trained.append(entry)
        if not trained:
            raise InvalidArgument("the checkpoint has no parameters to train")
        return trained

    def step(self) -> None:
        """Update the parameters by their gradients."""
        self._state.need_values()
        group, tensors = self._group, self._trained()
        is_updated = True
        if self._session is None:
            update(self._model, group.step + 1, group.rate, tensors, self._threads)
        else:
            numbers = np.array([group.rate], np.float32), np.array([group.step + 1])
            moments = zip(*(t.moments for t in tensors), strict=True)
            lists = [[t.data for t in tensors], [t.grad for t in tensors], *map(list, moments)]
            feeds = dict(zip(self._model.inputs, (*numbers, *lists), strict=True))
            is_updated = bool(np.all(self._session.run(None, feeds)[0]))
        group.step += is_updated

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the following steps."""
        self._group.rate = float(np.float32(learning_rate))

    def get_learning_rate(self) -> float:
        """Return the learning rate."""
        return self._group.rate


class LinearLRScheduler:
    """Raises the learning rate from 0 in a warm-up, then lowers it to 0 over the other steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        """Set the rate for the optimizer's current step; `initial_lr` is the highest one."""
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an Optimizer, got {type(optimizer).__name__}")
        self._group = optimizer._group
        self._warmup = np.float32(warmup_step_count)
        self._total = np.float32(total_step_count)
        self._group.initial_rate = float(np.float32(initial_lr))
        self.step()

    def step(self) -> None:
        """Set the learning rate; call it after each step of the optimizer."""
        one, step = np.float32(1), np.float32(self._group.step)
        if step < self._warmup:
            factor = step / max(one, self._warmup)
        else:
            factor = max(np.float32(0), (self._total - step) / max(one, self._total - self._warmup))
        self._group.rate = float(np.float32(self._group.initial_rate) * factor)
