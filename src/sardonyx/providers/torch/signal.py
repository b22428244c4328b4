"""Signals: DFT, STFT, window functions and mel filter banks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import by_onnx
from sardonyx.graph.op import ONNX, Op
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.signal.standard import dft_size, frame_sizes, mel, windows
from sardonyx.providers.torch.dtypes import as_tensor, wide
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels


def dft(x: Tensor, length: Array | None = None, axis: Array | None = None, **attrs: int) -> Tensor:
    """Return the Fourier transform along an axis, or its inverse."""
    is_inverse, is_one_sided = attrs["inverse"], attrs["onesided"]
    where = -2 if axis is None else one_int(axis, "axis")
    where = where + 1 if where < 0 else where  # z lacks the last axis, of real and imaginary parts
    z = _as_complex(wide(x))
    size = dft_size(z.shape[where], length, is_half=bool(is_inverse and is_one_sided))
    if is_inverse and is_one_sided:
        return _transformed(torch.fft.irfft, z, size, where)[..., None].to(x.dtype)
    if is_one_sided:
        if z.is_complex():
            raise InvalidArgument("a one-sided transform needs real numbers, got complex ones")
        return _as_real(_transformed(torch.fft.rfft, z, size, where), x.dtype)
    full = torch.fft.ifft if is_inverse else torch.fft.fft
    return _as_real(_transformed(full, z, size, where), x.dtype)


def _transformed(transform: Callable[..., Tensor], z: Tensor, size: int, axis: int) -> Tensor:
    """Return a transform; FFT libraries reject empty tensors, whose shape one zero determines."""
    if z.numel():
        return transform(z, size, axis)
    # Only the size of the transformed axis is needed.
    one = transform(z.new_zeros(1), size)
    shape = list(z.shape)
    shape[axis] = one.shape[0]
    return one.new_zeros(shape)


def _as_complex(x: Tensor) -> Tensor:
    """Return numbers without their last axis: real, or complex if it has two elements."""
    return x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def _as_real(z: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_real(z.resolve_conj()).to(dtype)


def stft(
    x: Tensor,
    step: Array,
    window: Tensor | None = None,
    length: Array | None = None,
    *,
    onesided: int,
) -> Tensor:
    """Return the Fourier transforms of overlapping frames."""
    hop, frame = frame_sizes(x.shape[1], step, None if window is None else len(window), length)
    z = wide(x) if x.ndim == 2 else _as_complex(wide(x))
    # A view [batch, frames, samples] of overlapping frames.
    frames = z.unfold(1, frame, hop)
    if window is not None:
        frames = frames * wide(window)
    if onesided and not z.is_complex():
        return _as_real(_transformed(torch.fft.rfft, frames, frame, -1), x.dtype)
    bins = frame // 2 + 1 if onesided else frame
    return _as_real(_transformed(torch.fft.fft, frames, frame, -1)[..., :bins], x.dtype)


def _on_host(op: Op) -> TorchKernel:
    """Return a kernel that computes the reference on the host and copies it to torch's device."""
    reference = op.reference_rule
    assert reference is not None

    def run(*inputs: Array, output_datatype: int, **attrs: Any) -> Tensor:
        dtype = by_onnx(output_datatype)
        assert dtype is not None
        array = reference(*inputs, output_datatype=output_datatype, **attrs)
        return as_tensor(array, dtype).to(torch.get_default_device())

    return TorchKernel(run, PLAIN, host=tuple(range(len(op.inputs))), syncs=True)


KERNELS: Final[TorchKernels] = {
    (ONNX, "DFT"): TorchKernel(dft, REALS, host=(1, 2)),
    (ONNX, "STFT"): TorchKernel(stft, REALS, host=(1, 3)),
    **{op.key: _on_host(op) for op in (mel, *windows)},
}
