"""Signals: Fourier transforms, windows, and the weights that turn a spectrum into mel bands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import by_onnx
from sardonyx.graph.op import ONNX
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.signal import FACTORS, mel
from sardonyx.providers.torch.dtypes import TORCH, as_tensor
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import wide


def dft(
    x: Tensor,
    length: Array | None = None,
    axis: Array | None = None,
    **attrs: int,
) -> Tensor:
    """The Fourier transform along an axis, or its inverse."""
    is_back, is_half = attrs["inverse"], attrs["onesided"]
    where = -2 if axis is None else one_int(axis, "axis")
    where = where + 1 if where < 0 else where  # without the last axis, of real and imaginary parts
    z = _joined(wide(x))
    size = z.shape[where]
    if length is not None:
        size = one_int(length, "dft_length")
    elif is_back and is_half:
        size = 2 * (size - 1)
    if size < 1:
        raise InvalidArgument(f"dft_length is {size}, and must be 1 or more")
    if is_back and is_half:
        return _transformed(torch.fft.irfft, z, size, where)[..., None].to(x.dtype)
    if is_half:
        if z.is_complex():
            raise InvalidArgument("a one-sided transform takes real numbers, and these are complex")
        return _parted(_transformed(torch.fft.rfft, z, size, where), x.dtype)
    full = torch.fft.ifft if is_back else torch.fft.fft
    return _parted(_transformed(full, z, size, where), x.dtype)


def _transformed(transform: Callable[..., Tensor], z: Tensor, size: int, axis: int) -> Tensor:
    """A transform; of nothing, which libraries of transforms do not take, by way of one zero."""
    if z.numel():
        return transform(z, size, axis)
    one = transform(z.new_zeros(1), size)
    shape = list(z.shape)
    shape[axis] = one.shape[0]
    return one.new_zeros(shape)


def _joined(x: Tensor) -> Tensor:
    """Numbers without their last axis: real, or complex."""
    return x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def _parted(z: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_real(z.resolve_conj()).to(dtype)


def stft(
    x: Tensor,
    step: Array,
    window: Tensor | None = None,
    length: Array | None = None,
    *,
    onesided: int,
) -> Tensor:
    """Fourier transforms of frames."""
    total, hop = x.shape[1], one_int(step, "frame_step")
    frame = total if window is None else window.shape[0]
    if length is not None:
        frame = one_int(length, "frame_length")
    if hop < 1 or not 1 <= frame <= total or (window is not None and window.shape[0] != frame):
        raise InvalidArgument(
            f"frames of {frame} samples every {hop} do not fit a signal of {total}"
            + ("" if window is None else f" and a window of {window.shape[0]}")
        )
    z = wide(x) if x.ndim == 2 else _joined(wide(x))
    frames = z.unfold(1, frame, hop)
    if window is not None:
        frames = frames * wide(window)
    if onesided and not z.is_complex():
        return _parted(_transformed(torch.fft.rfft, frames, frame, -1), x.dtype)
    bins = frame // 2 + 1 if onesided else frame
    return _parted(_transformed(torch.fft.fft, frames, frame, -1)[..., :bins], x.dtype)


def _type_of(number: int) -> torch.dtype:
    ours = by_onnx(number)
    assert ours is not None
    return TORCH[ours]


def _window(*factors: float) -> Callable[..., Tensor]:
    """A window: the sum of factor * cos(k * angle), where torch makes new tensors."""

    def run(size: Array, *, output_datatype: int, periodic: int) -> Tensor:
        count = one_int(size, "size")
        if count < 0:
            raise InvalidArgument(f"a window has no {count} samples")
        span = count if periodic else count - 1
        turn = 2 * math.pi / span if span else math.nan
        angle = torch.arange(count, dtype=torch.float64) * turn
        made: Any = sum(f * (k * angle).cos() for k, f in enumerate(factors))
        return made.to(_type_of(output_datatype))  # type: ignore[no-any-return]

    return run


def mel_weights(*inputs: Array, output_datatype: int) -> Tensor:
    """Triangles over a spectrum, made on the host and brought to where torch makes new tensors."""
    assert mel.reference_rule is not None
    made = mel.reference_rule(*inputs, output_datatype=output_datatype)
    ours = by_onnx(output_datatype)
    assert ours is not None
    return as_tensor(made, ours).to(torch.get_default_device())


KERNELS: Final[TorchKernels] = {
    (ONNX, "DFT"): TorchKernel(dft, REALS, host=(1, 2)),
    (ONNX, "STFT"): TorchKernel(stft, REALS, host=(1, 3)),
    (ONNX, "MelWeightMatrix"): TorchKernel(mel_weights, PLAIN, host=(0, 1, 2, 3, 4), syncs=True),
    **{
        (ONNX, name): TorchKernel(_window(*factors), PLAIN, host=(0,))
        for name, factors in FACTORS.items()
    },
}
