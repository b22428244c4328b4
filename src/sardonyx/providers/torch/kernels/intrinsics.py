"""Programmatic dependent launch (PDL), and instructions that Triton has no function for.

With PDL a kernel may be resident before its predecessor on the stream has ended: it loads weights
and other constants meanwhile, and waits before it reads what the predecessor writes.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from sardonyx.providers.torch.kernels import is_interpreted

_INTERPRETED: Final = tl.constexpr(is_interpreted())  # the interpreter has no inline assembly


@triton.jit
def launch_dependents(overlap: tl.constexpr):
    """Allow the next kernel on the stream to start; it must call `wait_for_previous`."""
    if overlap == 2:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(overlap: tl.constexpr):
    """Wait until the previous kernel has ended and its writes are visible."""
    if overlap:
        gdc_wait()


@triton.jit
def dot4(a, b, c):
    """Return c + the dot product of four unsigned bytes of a and four signed bytes of b (dp4a)."""
    if _INTERPRETED:
        for i in tl.static_range(4):
            c += ((a >> (8 * i)) & 255) * ((b << (24 - 8 * i)) >> 24)
        return c
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], tl.int32, True, 1
    )


@triton.jit
def rounded(x):
    """Return x rounded to the nearest int32, ties to even; 0 for NaN."""
    if _INTERPRETED:
        magic = 12582912.0  # 1.5 * 2^23: the sum has no fraction bits, so the addition rounds
        return tl.where(x == x, x + magic - magic, 0.0).to(tl.int32)
    return tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [x], tl.int32, True, 1)


@triton.jit
def nan_max(a, b):
    """Return the maximum; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
