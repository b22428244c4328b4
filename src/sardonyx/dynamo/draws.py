"""Dropout masks that equal torch's, drawn faster than torch draws them."""

from __future__ import annotations

from functools import cache

import torch

import sardonyx._native as native


def bernoulli(empty: torch.Tensor, p: float) -> torch.Tensor:
    """Return what `aten.bernoulli.p` draws from torch's generator for a tensor of these sizes.

    A contiguous mask on the CPU is filled in place. Torch draws its elements one by one; the native
    function advances the generator's state many words at a time, and leaves it as torch would.
    """
    is_mask = empty.dtype is torch.bool and empty.device.type == "cpu" and empty.is_contiguous()
    if not (is_mask and 0 <= p <= 1 and draws_as_torch()):
        return torch.ops.aten.bernoulli.p(empty, p)  # type: ignore[no-any-return]
    native.bernoulli(torch.default_generator, p, empty.numpy())
    return empty


@cache
def draws_as_torch() -> bool:
    """Whether native draws, and the generator's state after them, equal torch's on this machine.

    On some CPUs torch draws masks with MKL, by another algorithm, and a later torch may change its
    own, or the layout of the state.
    """
    by_torch, by_native = torch.Generator(), torch.Generator()
    by_torch.manual_seed(19937)
    torch.randint(2, (7,), generator=by_torch)  # from an odd position
    torch.randn(1, generator=by_torch)  # caches the second Box-Muller value in the state
    by_native.set_state(by_torch.get_state())
    expected = torch.empty(3001, dtype=torch.bool).bernoulli_(0.9, generator=by_torch)
    mask = torch.empty_like(expected)
    try:
        native.bernoulli(by_native, 0.9, mask.numpy())
    except ValueError:
        return False
    return torch.equal(mask, expected) and torch.equal(by_native.get_state(), by_torch.get_state())
