"""Starting kernels with little work on the host."""

from __future__ import annotations

from typing import Any, Final

import torch

from sardonyx.providers.torch.kernels import is_interpreted, overlaps

_COMPILED: Final[dict[tuple[Any, ...], Any]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    given: tuple[Any, ...],
    constants: tuple[Any, ...],
    n_warps: int,
) -> None:
    """Starts a Triton kernel on tensors, None and numbers, then constants, in their order.

    The first tensor names the device. Kernels whose last constant is `overlap` get it from here.
    """
    device = given[0].device
    if is_interpreted():
        kernel[grid](*given, *constants, False)
        return
    index = device.index or 0
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            launch(kernel, grid, given, constants, n_warps)
        return
    # What a kernel is compiled for: types, whether addresses are multiples of 16, numbers.
    told = [(x.dtype, x.data_ptr() & 15 == 0) if isinstance(x, torch.Tensor) else x for x in given]
    key = (kernel, index, n_warps, constants, *told)
    compiled = _COMPILED.get(key)
    if compiled is None:
        overlap = overlaps(device)
        _COMPILED[key] = kernel[grid](
            *given, *constants, overlap, num_warps=n_warps, launch_pdl=overlap
        )
        return
    stream = torch._C._cuda_getCurrentRawStream(index)
    compiled[grid](*given, *constants, overlaps(device), stream=stream)
