"""Starting kernels with little work on the host."""

from __future__ import annotations

from typing import Any, Final

import torch

from sardonyx.providers.torch.kernels import is_interpreted, overlaps

_COMPILED: Final[dict[tuple[Any, ...], Any]] = {}
_MOST: Final = 1 << 14  # ways to start kernels that are remembered


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    given: tuple[Any, ...],
    constants: tuple[Any, ...],
    n_warps: int,
    leads: bool = False,
) -> None:
    """Starts a Triton kernel on tensors, None and numbers, then constants, in their order.

    The first tensor names the device. The last constant of a kernel, `overlap`, comes from here: 1
    lets it wait for the one before, and 2 lets the one after begin early, too. `leads` says that
    this is safe: that the next kernel is one of ours. Those of libraries may begin early as well,
    and not all of them wait.
    """
    device = given[0].device
    if is_interpreted():
        kernel[grid](*given, *constants, 0)
        return
    index = device.index or 0
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            launch(kernel, grid, given, constants, n_warps, leads)
        return
    # What a kernel is compiled for: types, whether addresses are multiples of 16, numbers.
    overlap = (2 if leads else 1) if overlaps(device) else 0
    told: list[Any] = [kernel, index, n_warps, constants, overlap]
    plain: list[Any] = []  # addresses, which the launcher takes as they are
    for x in given:
        if isinstance(x, torch.Tensor):
            address = x.data_ptr()
            plain.append(address)
            told.append((x.dtype, address & 15 == 0))
        else:
            plain.append(x)
            told.append(x)
    key = tuple(told)
    compiled = _COMPILED.get(key)
    if compiled is None:
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[key] = kernel[grid](
            *given, *constants, overlap, num_warps=n_warps, launch_pdl=bool(overlap)
        )
        return
    compiled.run(
        *grid, torch._C._cuda_getCurrentRawStream(index), compiled.function,
        compiled.packed_metadata, None, None, None, *plain, *constants, overlap,
    )  # fmt: skip
