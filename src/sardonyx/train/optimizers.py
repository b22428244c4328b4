"""Optimizers of `TrainingStep`: hyperparameters, which torch's classes of these names have too.

`lr` is a number, or a function of the number of updates so far (`sardonyx.train.schedules`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sardonyx.autodiff.training_graph import UpdateRule
from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Shape
from sardonyx.ops.optimizer.training_step import moment_shapes

LearningRate = float | Callable[[int], float]


class Optimizer(Protocol):
    """The interface of an optimizer that `TrainingStep` uses."""

    @property
    def lr(self) -> LearningRate:
        """The default learning rate of a step."""

    def rule(self) -> UpdateRule:
        """Return how one parameter is updated; raise for hyperparameters out of range."""


def is_at_least_0(number: Any) -> bool:
    """Whether an argument is a number from 0 on; NaN, strings and larger arrays are not."""
    try:
        return not isinstance(number, str) and float(number) >= 0
    except (TypeError, ValueError):
        return False


def _at_least_0(**numbers: float) -> None:
    for name, number in numbers.items():
        if not is_at_least_0(number):
            raise InvalidArgument(f"{name} must be at least 0, got {number!r}")


def _check_betas(betas: tuple[float, float]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidArgument(f"betas must be two numbers in [0, 1), got {betas}")


@frozen
class AdamW:
    """Adam with decoupled weight decay (torch.optim.AdamW)."""

    lr: LearningRate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def rule(self) -> UpdateRule:
        """Return how one parameter is updated."""
        return _adam_rule(self.betas, self.eps, self.weight_decay, is_decoupled=True)


@frozen
class Adam:
    """Adam, whose weight decay is added to the gradients (torch.optim.Adam)."""

    lr: LearningRate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def rule(self) -> UpdateRule:
        """Return how one parameter is updated."""
        return _adam_rule(self.betas, self.eps, self.weight_decay, is_decoupled=False)


def _adam_rule(
    betas: tuple[float, float], eps: float, weight_decay: float, is_decoupled: bool
) -> UpdateRule:
    _check_betas(betas)
    _at_least_0(eps=eps, weight_decay=weight_decay)
    attrs = {
        "beta1": float(betas[0]), "beta2": float(betas[1]), "eps": float(eps),
        "weight_decay": float(weight_decay), "decoupled": int(is_decoupled),
    }  # fmt: skip
    return UpdateRule("AdamUpdate", attrs, lambda shape: {"exp_avg": shape, "exp_avg_sq": shape})


@frozen
class SGD:
    """Stochastic gradient descent (torch.optim.SGD without dampening)."""

    lr: LearningRate = 1e-3
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def rule(self) -> UpdateRule:
        """Return how one parameter is updated."""
        _at_least_0(momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise InvalidArgument("nesterov needs a momentum above 0")
        attrs = {
            "momentum": float(self.momentum), "nesterov": int(self.nesterov),
            "weight_decay": float(self.weight_decay),
        }  # fmt: skip

        def states(shape: Shape) -> dict[str, Shape]:
            return {"momentum_buffer": shape} if self.momentum else {}

        return UpdateRule("SGDUpdate", attrs, states)


@frozen
class Adafactor:
    """Adafactor (torch.optim.Adafactor); eps[0] is None for the epsilon of the parameter's type."""

    lr: LearningRate = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0

    def rule(self) -> UpdateRule:
        """Return how one parameter is updated."""
        eps1, eps2 = self.eps
        _at_least_0(weight_decay=self.weight_decay, eps2=eps2, eps1=0 if eps1 is None else eps1)
        if not self.d >= 1:
            raise InvalidArgument(f"d must be at least 1, got {self.d}")
        if not self.beta2_decay <= 0:
            raise InvalidArgument(f"beta2_decay must be at most 0, got {self.beta2_decay}")
        attrs = {
            "beta2_decay": float(self.beta2_decay), "eps1": -1.0 if eps1 is None else float(eps1),
            "eps2": float(eps2), "d": float(self.d), "weight_decay": float(self.weight_decay),
        }  # fmt: skip
        return UpdateRule("AdafactorUpdate", attrs, _adafactor_states)


def _adafactor_states(shape: Shape) -> dict[str, Shape]:
    shapes = moment_shapes(shape)
    names = ("variance",) if len(shapes) == 1 else ("row_var", "col_var")
    return dict(zip(names, shapes, strict=True))
