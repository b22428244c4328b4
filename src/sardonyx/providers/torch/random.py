"""Random numbers by torch's generator of the device, and Dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import I32, I64
from sardonyx.graph.graph import Node
from sardonyx.ops.arrays import Array
from sardonyx.providers.torch.dtypes import torch_type, wide, wide_type
from sardonyx.providers.torch.elementwise.cast import convert
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels


def _normal(drawn: Tensor, attrs: dict[str, Any]) -> Tensor:
    return drawn.normal_().mul_(attrs["scale"]).add_(attrs["mean"])


def _uniform(drawn: Tensor, attrs: dict[str, Any]) -> Tensor:
    return drawn.uniform_().mul_(attrs["high"] - attrs["low"]).add_(attrs["low"])


def _filled(fill: Callable[[Tensor, dict[str, Any]], Tensor]) -> Callable[..., Tensor]:
    """Return a kernel that fills a new tensor, of the shape of its input or of an attribute."""

    def run(*like: Tensor, dtype: int | None, shape: Any = (), **attrs: Any) -> Tensor:
        if like:
            shape = like[0].shape
        to = like[0].dtype if dtype is None else torch_type(dtype)
        # Without an input, the provider sets torch's default device.
        device = like[0].device if like else None
        return convert(fill(torch.empty(shape, dtype=wide_type(to), device=device), attrs), to)

    return run


def _bernoulli(x: Tensor, *, dtype: int | None, seed: None) -> Tensor:
    probability = wide(x)
    to = x.dtype if dtype is None else torch_type(dtype)
    return convert(torch.rand_like(probability) < probability, to)


def _multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: None) -> Tensor:
    # Inverse transform sampling: the class whose cumulative probability exceeds a uniform number.
    cumulative = torch.cumsum(torch.softmax(wide(x), 1), 1)
    shape = (x.shape[0], sample_size)
    draws = torch.rand(shape, dtype=cumulative.dtype, device=x.device) * cumulative[:, -1:]
    classes = torch.searchsorted(cumulative, draws, right=True)
    return classes.clamp(max=x.shape[1] - 1).to(torch_type(dtype))


def _dropout(
    x: Tensor, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None
) -> tuple[Tensor, Tensor]:
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if not 0 <= share <= 1:
        raise InvalidArgument(f"the ratio of Dropout must be in [0, 1], got {share}")
    if training_mode is None or not training_mode.reshape(-1)[0] or share == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand(x.shape, device=x.device) >= share
    # Scaled by 1 / (1 - ratio), so that the expected value does not change.
    scaled = wide(x) * (1 / (1 - share) if share < 1 else 0)
    return torch.where(mask, scaled, 0).to(x.dtype), mask


def _refuses_seed(node: Node) -> str:
    if node.attrs["seed"] is None:
        return ""
    return "a seed fixes the numbers of the CPU's generator: leave it out to draw on the device"


def _refuses_dropout(node: Node) -> str:
    # At inference Dropout draws no numbers, so its seed has no effect.
    trains = len(node.inputs) > 2 and node.inputs[2] is not None
    return _refuses_seed(node) if trains else ""


KERNELS: Final[TorchKernels] = {
    ("", "RandomNormal"): TorchKernel(_filled(_normal), REALS, refuses=_refuses_seed),
    ("", "RandomUniform"): TorchKernel(_filled(_uniform), REALS, refuses=_refuses_seed),
    ("", "RandomNormalLike"): TorchKernel(_filled(_normal), PLAIN, refuses=_refuses_seed),
    ("", "RandomUniformLike"): TorchKernel(_filled(_uniform), PLAIN, refuses=_refuses_seed),
    ("", "Bernoulli"): TorchKernel(_bernoulli, PLAIN, refuses=_refuses_seed),
    ("", "Multinomial"): TorchKernel(_multinomial, REALS | {I32, I64}, refuses=_refuses_seed),
    ("", "Dropout"): TorchKernel(_dropout, PLAIN, host=(1, 2), refuses=_refuses_dropout),
}
