"""Optimizers of torch whose step is one fused native pass over all parameters.

SGD, Adam, AdamW and Adafactor are subclasses of torch.optim's: the same arguments, defaults,
parameter groups, state names, `state_dict` and hooks, so that checkpoints move both ways. Lion has
the arguments and state of lion-pytorch. All take `max_norm=`, which clips gradients by their norm
over all parameters, as torch.nn.utils.clip_grad_norm_ does, within the step.

    optimizer = sardonyx.train.optim.AdamW(model.parameters(), lr=3e-4, max_norm=1.0)

Tensors that the kernel does not update (another device, float64, sparse gradients, tensor
subclasses, strides with gaps) are updated by torch's functions; `optimizer.fallbacks` counts them
by reason, and each reason is logged once.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import adam as torch_adam
from torch.optim import sgd as torch_sgd
from torch.optim._adafactor import adafactor

from sardonyx.train.fused_step import FusedStep, Group, ParameterUpdate, number

__all__ = ["SGD", "Adafactor", "Adam", "AdamW", "Lion"]

_Class = TypeVar("_Class", bound=type)


def _with_max_norm(cls: _Class) -> _Class:
    """Give a class the signature of torch's class, and `max_norm`."""
    of_torch = inspect.signature(_torch_class(cls))
    max_norm = inspect.Parameter(
        "max_norm", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="float | None"
    )
    signature = of_torch.replace(parameters=[*of_torch.parameters.values(), max_norm])
    type.__setattr__(cls, "__signature__", signature)
    return cls


def _torch_class(cls: type) -> type:
    return next(base for base in cls.__mro__ if base.__module__.startswith("torch.optim"))


def _sign(group: Group) -> float:
    return -1.0 if group["maximize"] else 1.0


def _columns(entries: list[ParameterUpdate]) -> list[list[Any]]:
    """Return the first states of all entries, the second ones, and so on."""
    return [list(states) for states in zip(*(e.states for e in entries), strict=True)]


def _steps(entries: list[ParameterUpdate]) -> list[Any]:
    return [e.step for e in entries]


class _AdamStep(FusedStep):
    """The step of Adam and AdamW."""

    kernel = "adam_step"

    def collect(self, group: Group) -> list[ParameterUpdate]:
        lists: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self._init_group(group, *lists)  # type: ignore[attr-defined] # of torch's class
        params, grads, means, squares, tops, steps = lists
        states = zip(means, squares, tops or [None] * len(params), strict=True)
        return list(map(ParameterUpdate, params, grads, states, steps))

    def hyperparameters(self, group: Group) -> list[float]:
        beta1, beta2 = group["betas"]
        return [
            number(group["lr"]),
            number(beta1),
            number(beta2),
            group["eps"],
            group["weight_decay"],
            group["amsgrad"],
            group["decoupled_weight_decay"],
            _sign(group),
        ]

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        beta1, beta2 = group["betas"]
        means, squares, tops = _columns(entries)
        torch_adam.adam(
            [e.param for e in entries],
            [e.grad for e in entries],
            means,
            squares,
            tops if group["amsgrad"] else [],
            _steps(entries),
            has_complex=any(e.param.is_complex() for e in entries),
            beta1=beta1,
            beta2=beta2,
            **{
                option: group[option]
                for option in (
                    "amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "capturable",
                    "differentiable", "fused", "decoupled_weight_decay",
                )
            },
        )  # fmt: skip


@_with_max_norm
class Adam(_AdamStep, torch.optim.Adam):
    """torch.optim.Adam with a fused native step."""


@_with_max_norm
class AdamW(_AdamStep, torch.optim.AdamW):
    """torch.optim.AdamW with a fused native step."""


@_with_max_norm
class SGD(FusedStep, torch.optim.SGD):
    """torch.optim.SGD with a fused native step."""

    kernel = "sgd_step"
    states_on_first_step = True

    def collect(self, group: Group) -> list[ParameterUpdate]:
        has_buffer = group["momentum"] != 0
        return [
            ParameterUpdate(
                p, p.grad, (self.state[p].get("momentum_buffer"),) if has_buffer else ()
            )
            for p in group["params"]
            if p.grad is not None
        ]

    def new_states(self, entry: ParameterUpdate) -> ParameterUpdate:
        if not entry.states or entry.states[0] is not None:
            return entry
        buffer = torch.zeros_like(entry.param)
        self.state[entry.param]["momentum_buffer"] = buffer
        return entry._replace(states=(buffer,))

    def hyperparameters(self, group: Group) -> list[float]:
        return [
            number(group["lr"]),
            number(group["momentum"]),
            number(group["dampening"]),
            number(group["weight_decay"]),
            group["nesterov"],
            0,
            0,
            _sign(group),
        ]

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        buffers = [e.states[0] if e.states else None for e in entries]
        torch_sgd.sgd(
            [e.param for e in entries],
            [e.grad for e in entries],
            buffers,
            has_sparse_grad=any(e.grad.is_sparse for e in entries),
            **{
                option: group[option]
                for option in (
                    "weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize",
                    "foreach", "fused",
                )
            },
        )  # fmt: skip
        if group["momentum"] != 0:
            for entry, buffer in zip(entries, buffers, strict=True):
                self.state[entry.param]["momentum_buffer"] = buffer


@_with_max_norm
class Adafactor(FusedStep, torch.optim.Adafactor):
    """torch.optim.Adafactor with a fused native step."""

    kernel = "adafactor_step"
    row_major = True

    def collect(self, group: Group) -> list[ParameterUpdate]:
        lists: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self._init_group(group, *lists)
        params, grads, rows, columns, variances, steps = lists
        return list(
            map(ParameterUpdate, params, grads, zip(rows, columns, variances, strict=True), steps)
        )

    def hyperparameters(self, group: Group) -> list[float]:
        eps1, eps2 = group["eps"]
        return [
            number(group["lr"]),
            group["beta2_decay"],
            -1 if eps1 is None else eps1,  # the kernel takes the epsilon of each parameter's type
            eps2,
            group["weight_decay"],
            group["d"],
            0,
            _sign(group),
        ]

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        eps1, eps2 = group["eps"]
        rows, columns, variances = _columns(entries)
        adafactor(
            [e.param for e in entries],
            [e.grad for e in entries],
            rows,
            columns,
            variances,
            _steps(entries),
            eps1=eps1,
            eps2=eps2,
            **{
                option: group[option]
                for option in ("d", "lr", "beta2_decay", "weight_decay", "maximize", "foreach")
            },
        )


class Lion(FusedStep, torch.optim.Optimizer):
    """Lion (Chen et al., Symbolic Discovery of Optimization Algorithms), with a fused native step.

    p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g
    """

    kernel = "lion_step"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        max_norm: float | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        for i, beta in enumerate(betas):
            if not 0 <= beta <= 1:
                raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
        if not weight_decay >= 0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, max_norm=max_norm)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # lion-pytorch's checkpoints have no `maximize`
            group.setdefault("maximize", False)

    def collect(self, group: Group) -> list[ParameterUpdate]:
        entries = []
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("Lion does not support sparse gradients")
            state = self.state[p]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(p)
            entries.append(ParameterUpdate(p, p.grad, (state["exp_avg"],)))
        return entries

    def hyperparameters(self, group: Group) -> list[float]:
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        return [number(group["lr"]), beta1, beta2, decay, 0, 0, 0, _sign(group)]

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        for param, grad, (mean,), _ in entries:
            assert mean is not None
            g = -grad if group["maximize"] else grad
            param.mul_(1 - lr * group["weight_decay"])
            param.sub_(mean.mul(beta1).add_(g, alpha=1 - beta1).sign_() * lr)
            mean.mul_(beta2).add_(g, alpha=1 - beta2)
