"""What kernels share: waiting for the kernel before, instructions that Triton has no name for."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from sardonyx.providers.torch.kernels import is_interpreted

_PLAIN: Final = tl.constexpr(is_interpreted())  # the interpreter knows no assembly


@triton.jit
def let_next(overlap: tl.constexpr):
    """The kernel after this one may begin, if it waits before it reads what this one writes."""
    if overlap == 2:
        gdc_launch_dependents()


@triton.jit
def wait_before(overlap: tl.constexpr):
    """What the kernel before this one wrote can be read."""
    if overlap:
        gdc_wait()


@triton.jit
def dot4(a, b, c):
    """c plus the products of the four unsigned bytes of a and the four signed ones of b."""
    if _PLAIN:
        for i in tl.static_range(4):
            c += ((a >> (8 * i)) & 255) * ((b << (24 - 8 * i)) >> 24)
        return c
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], tl.int32, True, 1
    )


@triton.jit
def rounded(x):
    """The nearest whole number, the even one of two, as int32; 0 for NaN."""
    if _PLAIN:
        bits = 12582912.0  # 1.5 * 2^23: adding it leaves no place for fractions
        return tl.where(x == x, x + bits - bits, 0.0).to(tl.int32)
    return tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [x], tl.int32, True, 1)


@triton.jit
def larger(a, b):
    """The larger of two, NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
