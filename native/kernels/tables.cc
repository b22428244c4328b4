// The kernel tables of all families for one ISA; registry.cc collects those of all ISAs.
#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

#define FAMILY(name) extern const KernelTable name##_kernels;
#include "kernels/list.inc"
#undef FAMILY

extern const KernelTable* const kTables[];
#define FAMILY(name) &name##_kernels,
const KernelTable* const kTables[] = {
#include "kernels/list.inc"
};
#undef FAMILY

}  // namespace sdx::SDX_ISA
