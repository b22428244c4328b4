"""Launches Triton kernels with little work on the host.

Triton's own launcher binds arguments and builds a specialization key in Python on each call, which
takes longer than a small kernel runs. Here compiled kernels are looked up by a cheaper key and
started directly.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from sardonyx.providers.torch.kernels import has_dependent_launch, is_interpreted

_COMPILED: Final[dict[tuple[Any, ...], Any]] = {}
_MAX_COMPILED: Final = 1 << 14  # then the cache is cleared: keys contain numbers that may vary


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    arguments: tuple[Any, ...],
    constants: tuple[Any, ...],
    n_warps: int,
    next_waits: bool = False,
) -> None:
    """Launch a Triton kernel on arguments (tensors, None, numbers), then constants, by position.

    The first argument is a tensor and determines the device. The last constant of each kernel,
    `overlap`, is set here: 1 makes it wait for the previous kernel, and 2 also lets the next one
    start early. `next_waits` says that this is safe, because the next kernel is one of ours, which
    wait. Kernels of libraries may start early as well, and not all of them wait.
    """
    device = arguments[0].device
    if is_interpreted():
        kernel[grid](*arguments, *constants, 0)
        return
    index = device.index or 0
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            launch(kernel, grid, arguments, constants, n_warps, next_waits)
        return
    # Triton specializes on types, 16-byte alignment and properties of integers. The key holds the
    # integers themselves, which is stricter, and cheaper to build.
    overlap = (2 if next_waits else 1) if has_dependent_launch(device) else 0
    key, raw_arguments = _specialization(arguments, (kernel, index, n_warps, constants, overlap))
    compiled = _COMPILED.get(key)
    if compiled is None:
        if len(_COMPILED) >= _MAX_COMPILED:
            _COMPILED.clear()
        _COMPILED[key] = kernel[grid](
            *arguments, *constants, overlap, num_warps=n_warps, launch_pdl=bool(overlap)
        )
        return
    compiled.run(
        *grid, torch._C._cuda_getCurrentRawStream(index), compiled.function,
        compiled.packed_metadata, None, None, None, *raw_arguments, *constants, overlap,
    )  # fmt: skip


def _specialization(
    arguments: tuple[Any, ...], compiled_for: tuple[Any, ...]
) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the key of the compiled kernel, and the arguments with tensors as addresses."""
    key = list(compiled_for)
    raw: list[Any] = []
    for x in arguments:
        if isinstance(x, torch.Tensor):
            address = x.data_ptr()
            raw.append(address)
            key.append((x.dtype, address & 15 == 0))
        else:
            raw.append(x)
            key.append(x)
    return tuple(key), raw
