"""FusedAdam of onnxruntime.training.optim: its three modes against their definitions."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from sardonyx.as_onnxruntime import environment  # noqa: E402 - torch may be missing
from sardonyx.train.ort_optim import AdamWMode, FP16_Optimizer, FusedAdam  # noqa: E402

SHAPES = ((7, 5), (33,), ())


def parameters() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def gradients(n_steps: int) -> list[list[Any]]:
    torch.manual_seed(1)
    return [[torch.randn(shape) for shape in SHAPES] for _ in range(n_steps)]


class Reference:
    """The three modes in float64, as onnxruntime's kernel computes them."""

    def __init__(self, params: list[Any], mode: AdamWMode, **options: Any) -> None:
        self.params = [p.detach().double().clone() for p in params]
        self.means = [torch.zeros_like(p) for p in self.params]
        self.squares = [torch.zeros_like(p) for p in self.params]
        self.mode, self.options, self.step_count = mode, options, 0

    def step(self, grads: list[Any]) -> None:
        self.step_count += 1
        for i, grad in enumerate(grads):
            self.params[i] = self.updated(i, grad.double())

    def updated(self, i: int, grad: Any) -> Any:
        o, p = self.options, self.params[i]
        (beta1, beta2), lr, decay = o["betas"], o["lr"], o["weight_decay"]
        if self.mode is AdamWMode.ADAM_L2_REGULARIZATION:
            grad = grad + decay * p
        self.means[i] = m = beta1 * self.means[i] + (1 - beta1) * grad
        self.squares[i] = v = beta2 * self.squares[i] + (1 - beta2) * grad * grad
        is_corrected = o["bias_correction"]
        c1 = 1 - beta1**self.step_count if is_corrected else 1.0
        c2 = 1 - beta2**self.step_count if is_corrected else 1.0
        if self.mode is AdamWMode.ADAMW_TRANSFORMERS:
            p = p - lr * math.sqrt(c2) / c1 * m / (v.sqrt() + o["eps"])
            return p - lr * decay * p
        if self.mode is AdamWMode.ADAMW_TORCH:
            p = p - lr * decay * p
        return p - lr * (m / c1) / ((v / c2).sqrt() + o["eps"])


@pytest.mark.parametrize(
    ("mode", "is_corrected", "decay"), list(itertools.product(AdamWMode, (True, False), (0.0, 0.1)))
)
def test_modes(mode: AdamWMode, is_corrected: bool, decay: float) -> None:
    options: dict[str, Any] = {
        "lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay,
        "bias_correction": is_corrected,
    }  # fmt: skip
    params = parameters()
    optimizer = FusedAdam(params, adam_w_mode=mode, **options)
    reference = Reference(params, mode, **options)
    for grads in gradients(8):
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        assert not optimizer.fallbacks
        optimizer.zero_grad()
        reference.step(grads)
    for p, expected in zip(params, reference.params, strict=True):
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", AdamWMode)
def test_torch_updates_what_the_kernel_does_not(mode: AdamWMode) -> None:
    """A parameter that had no gradient at first, and one of float64."""
    options: dict[str, Any] = {
        "lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "bias_correction": True,
    }  # fmt: skip
    params = [torch.nn.Parameter(p.detach().double()) for p in parameters()]
    late = torch.nn.Parameter(torch.ones(3))
    optimizer = FusedAdam([*params, late], adam_w_mode=mode, **options)
    reference, one = Reference(params, mode, **options), Reference([late], mode, **options)
    for i, grads in enumerate(gradients(5)):
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.double()
        if i >= 2:
            late.grad = torch.full((3,), 0.5)
            one.step([late.grad])
        optimizer.step()
        assert optimizer.fallbacks
        reference.step(grads)
    torch.testing.assert_close(late.detach().double(), one.params[0], rtol=1e-5, atol=1e-6)
    for p, expected in zip(params, reference.params, strict=True):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-9, atol=1e-9)


def test_groups_schedules_and_checkpoints() -> None:
    def made() -> tuple[list[Any], FusedAdam, Any]:
        params = parameters()
        groups = [{"params": params[:1], "lr": 1e-2}, {"params": params[1:], "weight_decay": 0.1}]
        optimizer = FusedAdam(groups, lr=1e-3)
        return params, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def run(params: list[Any], optimizer: FusedAdam, schedule: Any, steps: list[Any]) -> None:
        for grads in steps:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad.clone()
            optimizer.step()
            schedule.step()

    grads = gradients(6)
    params, optimizer, schedule = made()
    run(params, optimizer, schedule, grads)
    first, half, half_schedule = made()
    run(first, half, half_schedule, grads[:3])
    second, resumed, resumed_schedule = made()
    with torch.no_grad():
        for p, q in zip(second, first, strict=True):
            p.copy_(q)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    resumed_schedule.load_state_dict(half_schedule.state_dict())
    run(second, resumed, resumed_schedule, grads[3:])
    assert all(map(torch.equal, params, second))
    assert pickle.loads(pickle.dumps(resumed)).param_groups[0]["lr"] == schedule.get_last_lr()[0]


def test_gradients_are_dropped_or_zeroed() -> None:
    params = parameters()
    for p in params:
        p.grad = torch.ones_like(p)
    FusedAdam(params, set_grad_none=False).zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in params)
    FusedAdam(params).zero_grad(set_to_none=False)
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize(("lr", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_steps_of_length_0(lr: float, expected: float) -> None:
    """A learning rate of 0, and decay that leaves nothing."""
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    FusedAdam([param], lr=lr, weight_decay=1.0).step()
    assert param.tolist() == [expected] * 3


def test_defaults_are_those_of_onnxruntime() -> None:
    optimizer = FusedAdam(parameters())
    (group,) = optimizer.param_groups
    expected = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
    assert {name: group[name] for name in expected} == expected
    assert group["bias_correction"] is True
    assert FP16_Optimizer(optimizer, anything=1) is optimizer


def test_programs_for_onnxruntime_import_it() -> None:
    code = (
        "from onnxruntime.training.optim import FusedAdam, AdamWMode, FP16_Optimizer\n"
        "from onnxruntime.training.optim.fused_adam import FusedAdam as same\n"
        "from onnxruntime.training.optim.fp16_optimizer import FP16_Optimizer as other\n"
        "assert same is FusedAdam and other is FP16_Optimizer\n"
        "assert FusedAdam.__module__ == 'sardonyx.train.ort_optim'"
    )
    variables = {**os.environ, **environment()}
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)
