"""Random numbers by torch's generator of the device, and Dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import I32, I64, by_onnx
from sardonyx.graph.graph import Node
from sardonyx.ops.arrays import Array
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.elementwise.cast import convert
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import wide, wide_type

Draw = Callable[[Sequence[int], torch.dtype, torch.device | None, dict[str, Any]], Tensor]


def _anew(draw: Draw) -> Callable[..., Tensor]:
    """A function that fills a shape, on the device that torch makes new tensors on."""

    def run(*, shape: tuple[int, ...], dtype: int, **attrs: Any) -> Tensor:
        wanted = _dtype_of(dtype)
        return convert(draw(shape, wide_type(wanted), None, attrs), wanted)

    return run


def _like(draw: Draw) -> Callable[..., Tensor]:
    """A function that fills the shape of its input."""

    def run(x: Tensor, *, dtype: int | None, **attrs: Any) -> Tensor:
        wanted = x.dtype if dtype is None else _dtype_of(dtype)
        return convert(draw(x.shape, wide_type(wanted), x.device, attrs), wanted)

    return run


def _dtype_of(number: int) -> torch.dtype:
    ours = by_onnx(number)
    assert ours is not None
    return TORCH[ours]


def _normal(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | None, attrs: dict[str, Any]
) -> Tensor:
    drawn = torch.randn(shape, dtype=dtype, device=device)
    return drawn.mul_(attrs["scale"]).add_(attrs["mean"])


def _uniform(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | None, attrs: dict[str, Any]
) -> Tensor:
    drawn = torch.rand(shape, dtype=dtype, device=device)
    return drawn.mul_(attrs["high"] - attrs["low"]).add_(attrs["low"])


def _bernoulli(x: Tensor, *, dtype: int | None, seed: None) -> Tensor:
    chance = wide(x)
    wanted = x.dtype if dtype is None else _dtype_of(dtype)
    return convert(torch.rand_like(chance) < chance, wanted)


def _multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: None) -> Tensor:
    upto = torch.cumsum(torch.softmax(wide(x), 1), 1)
    shape = (x.shape[0], sample_size)
    draws = torch.rand(shape, dtype=upto.dtype, device=x.device) * upto[:, -1:]
    found = torch.searchsorted(upto, draws, right=True)
    return found.clamp(max=x.shape[1] - 1).to(_dtype_of(dtype))


def _dropout(
    x: Tensor, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None
) -> tuple[Tensor, Tensor]:
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if not 0 <= share <= 1:
        raise InvalidArgument(f"the ratio of Dropout is {share}, and lies in [0, 1]")
    if training_mode is None or not training_mode.reshape(-1)[0] or share == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand(x.shape, device=x.device) >= share
    kept = wide(x) * (1 / (1 - share) if share < 1 else 0)
    return torch.where(mask, kept, 0).to(x.dtype), mask


def _refuses_seed(node: Node) -> str:
    if node.attrs["seed"] is None:
        return ""
    return "a seed fixes the numbers of the CPU's generator: leave it out to draw on the device"


def _refuses_dropout(node: Node) -> str:
    trains = len(node.inputs) > 2 and node.inputs[2] is not None
    return _refuses_seed(node) if trains else ""


KERNELS: Final[TorchKernels] = {
    ("", "RandomNormal"): TorchKernel(_anew(_normal), REALS, refuses=_refuses_seed),
    ("", "RandomUniform"): TorchKernel(_anew(_uniform), REALS, refuses=_refuses_seed),
    ("", "RandomNormalLike"): TorchKernel(_like(_normal), PLAIN, refuses=_refuses_seed),
    ("", "RandomUniformLike"): TorchKernel(_like(_uniform), PLAIN, refuses=_refuses_seed),
    ("", "Bernoulli"): TorchKernel(_bernoulli, PLAIN, refuses=_refuses_seed),
    ("", "Multinomial"): TorchKernel(_multinomial, REALS | {I32, I64}, refuses=_refuses_seed),
    ("", "Dropout"): TorchKernel(_dropout, PLAIN, host=(1, 2), refuses=_refuses_dropout),
}
