// For functions in headers that kernels include: a copy of their own would be a symbol that the
// libraries of all ISAs share (tools/isa_symbols.py).
#pragma once

#define SDX_INLINE inline __attribute__((always_inline))
