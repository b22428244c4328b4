"""`FusedAdam` of onnxruntime.training.optim, by the fused native step of `sardonyx.train.optim`.

The native kernel computes torch's Adam:

    p = p (1 - lr decay) - lr / c1 m / (sqrt(v / c2) + eps), c = 1 - beta^step

The other variants are the same update with other numbers (`hyperparameters`).
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from sardonyx.train.fused_step import Group, ParameterUpdate, number
from sardonyx.train.optim import _AdamStep


class AdamWMode(IntEnum):
    """What weight decay means."""

    ADAM_L2_REGULARIZATION = 0  # a gradient, as in torch.optim.Adam
    ADAMW_TRANSFORMERS = 1  # taken from the updated parameters, as transformers' AdamW did
    ADAMW_TORCH = 2  # taken from the parameters before the update, as in torch.optim.AdamW


class _Update(NamedTuple):
    """The coefficients of p = p (1 - decay) - factor m / (sqrt(v) + eps)."""

    factor: float
    eps: float
    decay: float


class FusedAdam(_AdamStep, torch.optim.Adam):
    """Adam with onnxruntime's arguments and defaults; its state is that of torch.optim.Adam."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._mode = AdamWMode(adam_w_mode)
        self._set_grad_none = set_grad_none
        self.defaults["bias_correction"] = bias_correction
        for group in self.param_groups:
            group.setdefault("bias_correction", bias_correction)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: self.__dict__[name] for name in ("_mode", "_set_grad_none")}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a state, which may be that of torch.optim.Adam."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for group in self.param_groups:
            group.setdefault("bias_correction", True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; with `set_grad_none` and `set_to_none` both false, zero them."""
        super().zero_grad(set_to_none=self._set_grad_none or set_to_none)

    def hyperparameters(self, group: Group) -> list[float]:
        """Return the kernel's numbers for which its update is the one of the group."""
        beta1, beta2 = map(number, group["betas"])
        step = self._steps(group)[0]
        update = self._update_at(group, step)
        root = math.sqrt(1 - beta2**step)
        lr = update.factor * (1 - beta1**step) / root
        is_l2 = self._mode is AdamWMode.ADAM_L2_REGULARIZATION
        decay = group["weight_decay"] if is_l2 else update.decay / lr if lr else 0.0
        return [lr, beta1, beta2, update.eps / root, decay, False, not is_l2, 1.0]

    def _update_at(self, group: Group, step: float) -> _Update:
        lr, (beta1, beta2) = number(group["lr"]), map(number, group["betas"])
        decay = 0.0 if self._mode is AdamWMode.ADAM_L2_REGULARIZATION else group["weight_decay"]
        factor, eps = lr, group["eps"]
        if group["bias_correction"]:
            root = math.sqrt(1 - beta2**step)
            factor *= root / (1 - beta1**step)
            if self._mode is not AdamWMode.ADAMW_TRANSFORMERS:
                eps *= root  # of sqrt(v / c2), not of sqrt(v)
        if self._mode is AdamWMode.ADAMW_TRANSFORMERS:  # (p - update) (1 - lr decay)
            factor *= 1 - lr * decay
        return _Update(factor, eps, lr * decay)

    def _steps(self, group: Group) -> list[float]:
        """Return the different numbers of the coming step of the group's parameters."""
        states = (self.state.get(p) for p in group["params"] if p.grad is not None)
        return sorted({1 + (number(s["step"]) if s else 0) for s in states}) or [1]

    def _group_fallback_reason(self, group: Group) -> str | None:
        first, *others = self._steps(group)
        if others:
            return "parameters of a group that took different numbers of steps"
        if not self._update_at(group, first).factor:  # the kernel's decay is relative to it
            return "a step of length 0"
        return super()._group_fallback_reason(group)

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        beta1, beta2 = map(number, group["betas"])
        for param, grad, (mean, square, _), step in entries:
            assert mean is not None
            assert square is not None
            assert step is not None
            step += 1
            update = self._update_at(group, number(step))
            if self._mode is AdamWMode.ADAM_L2_REGULARIZATION:
                grad = grad.add(param, alpha=group["weight_decay"])
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            param.mul_(1 - update.decay)
            param.addcdiv_(mean, square.sqrt().add_(update.eps), value=-update.factor)


def FP16_Optimizer(optimizer: Any, **_: Any) -> Any:  # noqa: N802 - onnxruntime's name
    """Return the optimizer: onnxruntime replaces CUDA loops of apex and DeepSpeed in it."""
    return optimizer
