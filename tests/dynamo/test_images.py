"""Convolutions, pooling, resizing and sampling: steps against eager torch, static and dynamic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402 - after the check for torch
from sardonyx.dynamo.report import Report  # noqa: E402

F = torch.nn.functional
resize = F.interpolate

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "conv": lambda x, w: F.conv2d(x, w[:6, :4], stride=2, padding=1),
    "conv grouped": lambda x, w: F.conv2d(x, w[:6, :2], groups=2, dilation=2, padding=2),
    "conv depthwise": lambda x, w: F.conv2d(x, w[:4, :1], groups=4, stride=2, padding=1),
    "conv transposed": lambda x, w: F.conv_transpose2d(
        x, w[:4, :5], stride=2, padding=1, output_padding=1
    ),
    "conv transposed depthwise": lambda x, w: F.conv_transpose2d(x, w[:4, :1], groups=4),
    "max": lambda x, w: F.max_pool2d(x, 3, 2, 1),
    "average": lambda x, w: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "bilinear": lambda x, w: resize(x, scale_factor=2, mode="bilinear"),
    "bilinear to corners": lambda x, w: resize(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
    "bicubic": lambda x, w: resize(x, scale_factor=1.5, mode="bicubic"),
    "nearest": lambda x, w: resize(x, scale_factor=2),
}
STATIC: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "shuffle": lambda x, w: F.pixel_shuffle(x, 2),
    "columns": lambda x, w: F.unfold(x, 3, padding=1, stride=2),
    "adaptive average": lambda x, w: F.adaptive_avg_pool2d(x, 1),
    "sum by divisor": lambda x, w: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=7),
    "adaptive max": lambda x, w: F.adaptive_max_pool2d(x, (3, 4)),
    "adaptive uneven": lambda x, w: F.adaptive_avg_pool2d(x, (3, 4)),
    "nearest uneven": lambda x, w: resize(x, size=(7, 25)),
    "antialiased": lambda x, w: resize(x, size=(5, 6), mode="bilinear", antialias=True),
    "samples": lambda x, w: F.grid_sample(
        x, torch.tanh(x.sum(1)[..., None].expand(-1, -1, -1, 2)), align_corners=False
    ),
    "reflected cubic samples": lambda x, w: F.grid_sample(
        x,
        2 * torch.tanh(x.sum(1)[..., None].expand(-1, -1, -1, 2)),
        mode="bicubic",
        padding_mode="reflection",
        align_corners=True,
    ),
}


def _step(function: Callable[..., Any], x: Any, w: Any) -> list[Any]:
    x, w = x.clone().requires_grad_(), torch.nn.Parameter(w)  # sizes of parameters are static
    y = function(x, w)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    grads = torch.autograd.grad((y * weights).sum(), (x, w), allow_unused=True)
    return [y, *grads]


def _check(function: Callable[..., Any], batches: tuple[int, ...], dynamic: bool) -> None:
    torch._dynamo.reset()
    report = Report()
    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    torch.manual_seed(0)
    w = torch.randn(6, 5, 3, 3)
    for batch in batches:
        x = torch.randn(batch, 4, 10 if not dynamic else 8 + batch, 9)
        actual, expected = _step(compiled, x, w), _step(function, x, w)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=3e-5)
    assert not report.fallbacks


@pytest.mark.parametrize("name", STATIC)
def test_static(name: str) -> None:
    _check(STATIC[name], (2,), dynamic=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamic(name: str) -> None:
    _check(FUNCTIONS[name], (2, 3), dynamic=True)
