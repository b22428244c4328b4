// For functions in headers that kernels include. Every ISA library would otherwise emit a weak copy
// of the function, and the linker could keep one that uses instructions an older CPU does not have;
// tools/isa_symbols.py fails the build for such symbols.
#pragma once

#define SDX_INLINE inline __attribute__((always_inline))
